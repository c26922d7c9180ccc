//! Objects kept in etcd: several servers side by side serve the same objects.
//!
//! Writes are transactions that compare what the writer has seen. Each also writes one marker key, whose revision is thus
//! that of the newest write. All reads come from memory, which follows a watch; a read that must see everything asks
//! for the marker first and waits until memory has come that far.

mod call;
mod channel;
mod fresh;
mod layout;
mod mirror;

use crate::memory::{Memory, WriteError};
use crate::object::{Event, EventCache, Object, Stored};
use ambit_proto::etcd::compare::{CompareResult, CompareTarget, TargetUnion};
use ambit_proto::etcd::request_op::Request;
use ambit_proto::etcd::{Compare, DeleteRangeRequest, PutRequest, RequestOp, TxnRequest};
use ambit_store::{Conflict, Expect, Key, Revision};
use call::{Calls, txn_error};
use fresh::Fresh;
use layout::Layout;
use mirror::{Link, Mirror};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long a write or a read waits for memory to see what etcd holds already.
const CATCH_UP_WAIT: Duration = Duration::from_secs(5);

/// Where etcd is and what of it is ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdSettings {
    /// `HOST:PORT` of the members; each is tried.
    pub members: Vec<String>,
    /// All keys begin with this.
    pub prefix: String,
    /// `None`: plain text.
    pub tls: Option<EtcdTls>,
}

/// How a server shows itself to etcd and knows it. All files are PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// Authorities that vouch for etcd.
    pub authorities: PathBuf,
    /// Certificate chain and private key shown to etcd.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Etcd cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Certificates or keys cannot be used.
    #[error("cannot speak TLS to etcd with the files given: {detail}")]
    Tls {
        /// What is wrong.
        detail: String,
    },
    /// An address cannot be used.
    #[error("{member:?} is not an address of etcd: give it as HOST:PORT")]
    Member {
        /// What was given.
        member: String,
    },
    /// It does not answer as it should.
    #[error("etcd at {members} cannot be read: {detail}")]
    Unreadable {
        /// The addresses tried.
        members: String,
        /// What it said.
        detail: String,
    },
    /// Something else is kept under the prefix.
    #[error("etcd's key {key:?} holds no object of this program: choose another prefix, or remove it")]
    Foreign {
        /// The key.
        key: String,
    },
}

/// What a write relies on: nothing of a collection has been written after a revision.
#[derive(Debug, Clone)]
pub(crate) struct Unchanged {
    pub(crate) collection: Arc<str>,
    pub(crate) since: Revision,
}

/// An etcd cluster that is followed.
pub(crate) struct Etcd {
    calls: Calls,
    layout: Arc<Layout>,
    memory: Arc<Memory>,
    fresh: Fresh,
    link: Link,
    /// Ends the followers with the last request.
    _followers: JoinSet<()>,
}

impl Etcd {
    /// Reads all objects, and follows what becomes of them until the value is dropped.
    pub(crate) async fn open(settings: &EtcdSettings) -> Result<(Self, Arc<Memory>), EtcdError> {
        let calls = Calls::new(channel::channel(settings).await?);
        let layout = Arc::new(Layout::new(&settings.prefix));
        let mirror = Mirror::load(calls.clone(), layout.clone()).await.map_err(|e| e.at(settings))?;
        let (memory, link) = (mirror.memory(), mirror.link());
        let mut followers = JoinSet::new();
        followers.spawn(mirror.run());
        let (fresh, asking) = Fresh::new(calls.clone(), layout.clone());
        followers.spawn(asking);
        let etcd = Self { calls, layout, memory: memory.clone(), fresh, link, _followers: followers };
        // What was written since the revision that was loaded is still on its way.
        etcd.fresh().await.map_err(|e| EtcdError::Unreadable {
            members: settings.members.join(", "),
            detail: e.to_string(),
        })?;
        Ok((etcd, memory))
    }

    /// Returns once all that was written before the call is visible.
    pub(crate) async fn fresh(&self) -> Result<(), WriteError> {
        let newest = self.fresh.newest().await?;
        self.reach(newest, WriteError::Unreachable).await
    }

    pub(crate) fn healthy(&self) -> Result<(), WriteError> {
        match self.link.trouble() {
            Some(trouble) => Err(WriteError::Unreachable(trouble)),
            None => Ok(()),
        }
    }

    /// Writes a value, whose resourceVersion becomes the revision that etcd gives it.
    pub(crate) async fn put(
        &self,
        unchanged: Option<&Unchanged>,
        (key, expect): (Key, Expect),
        make: impl FnOnce(Revision) -> Arc<Object>,
    ) -> Result<Arc<Event>, WriteError> {
        let old = self.expected(&key, expect)?;
        let new = make(0);
        let put = PutRequest { key: self.layout.object(&key).into(), value: new.json().clone() };
        let revision = self.commit(&key, (old.as_ref(), unchanged), Request::RequestPut(put)).await?;
        let new = Some(Object::written(new.value(), revision));
        Ok(Arc::new(Event { revision, key, old, new, cache: EventCache::default() }))
    }

    /// Deletes an object.
    pub(crate) async fn delete(&self, key: Key, expect: Expect) -> Result<Arc<Event>, WriteError> {
        let old = self.expected(&key, expect)?;
        if old.is_none() {
            return Err(Conflict::Missing { key }.into());
        }
        let delete = DeleteRangeRequest { key: self.layout.object(&key).into() };
        let revision = self.commit(&key, (old.as_ref(), None), Request::RequestDeleteRange(delete)).await?;
        Ok(Arc::new(Event { revision, key, old, new: None, cache: EventCache::default() }))
    }

    fn expected(&self, key: &Key, expect: Expect) -> Result<Option<Stored>, Conflict> {
        self.memory.read(|store| store.expected(key, expect))
    }

    /// Does one change if the object still is as `old` says; returns its revision once that is visible here.
    async fn commit(
        &self,
        key: &Key,
        (old, unchanged): (Option<&Stored>, Option<&Unchanged>),
        change: Request,
    ) -> Result<Revision, WriteError> {
        let marker = self.layout.marker();
        let mark = PutRequest { key: marker.clone().into(), value: bytes::Bytes::new() };
        let as_seen = (CompareResult::Equal, old.map_or(0, |old| old.revision));
        let object = compare((self.layout.object(key).into(), Vec::new()), as_seen);
        let others = unchanged.map(|unchanged| {
            compare(self.layout.collection(&unchanged.collection), (CompareResult::Less, unchanged.since + 1))
        });
        let op = |request| RequestOp { request: Some(request) };
        let txn = TxnRequest {
            compare: std::iter::once(object).chain(others).collect(),
            success: vec![op(change), op(Request::RequestPut(mark))],
            failure: vec![op(Request::RequestRange(call::one(marker)))],
        };
        let outcome = self.calls.txn(txn).await.map_err(txn_error)?;
        self.reach(outcome.revision, WriteError::Uncertain).await?;
        if outcome.succeeded {
            return Ok(outcome.revision);
        }
        // Memory has seen now what came between.
        let found = self.memory.read(|store| store.head(key));
        Err(match (old, found) {
            (None, Some(_)) => Conflict::Exists { key: key.clone() }.into(),
            (Some(_), None) => Conflict::Missing { key: key.clone() }.into(),
            (Some(old), Some(found)) if old.revision != found.revision => {
                Conflict::Changed { key: key.clone(), expected: old.revision, found: found.revision }.into()
            }
            _ => WriteError::Overtaken(unchanged.map_or(&key.collection, |u| &u.collection).clone()),
        })
    }

    async fn reach(&self, revision: Revision, late: fn(String) -> WriteError) -> Result<(), WriteError> {
        match tokio::time::timeout(CATCH_UP_WAIT, self.memory.reach(revision)).await {
            Ok(reached) => reached,
            Err(_) => {
                let link = self.link.trouble().unwrap_or_else(|| "it is being followed".into());
                Err(late(format!(
                    "etcd's revision {revision} has not arrived within {CATCH_UP_WAIT:?} ({link})"
                )))
            }
        }
    }

    /// Forgets history before a revision, in etcd too; that only tidies up, so a failure waits for the next time.
    pub(crate) fn compact(&self, revision: Revision) {
        let calls = self.calls.clone();
        tokio::spawn(async move {
            if let Err(error) = calls.compact(signed(revision)).await {
                tracing::debug!(%error, revision, "etcd did not compact");
            }
        });
    }
}

/// The condition that the keys of a range were last written as told; absent ones at revision 0.
fn compare((key, end): (Vec<u8>, Vec<u8>), (result, revision): (CompareResult, Revision)) -> Compare {
    Compare {
        result: result.into(),
        target: CompareTarget::Mod.into(),
        key: key.into(),
        target_union: Some(TargetUnion::ModRevision(signed(revision))),
        range_end: end.into(),
    }
}

/// A revision as etcd counts it.
fn signed(revision: Revision) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// A revision as the store counts it.
fn unsigned(revision: i64) -> Revision {
    Revision::try_from(revision).unwrap_or_default()
}

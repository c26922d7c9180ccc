//! Whole objects that belong together: made, kept as wanted, and deleted when they are not wanted any more.

use super::{Applier, OnConflict, Written};
use crate::informer::{Informer, ObjectKey};
use crate::write_error::WriteError;
use ambit_api::meta::OwnerReference;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;

/// What belongs together: the objects of a kind with one label, of one owner if it has one.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectSet {
    label: (String, String),
    namespace: Option<String>,
    owner: Option<OwnerReference>,
}

/// What keeping a set did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// Objects made or changed.
    pub changed: usize,
    /// Objects that were as wanted.
    pub unchanged: usize,
    /// Objects deleted, because they are not wanted any more.
    pub deleted: usize,
}

impl fmt::Display for ObjectSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.label.0, self.label.1)?;
        match &self.owner {
            Some(owner) => write!(f, " of {} {}", owner.kind, owner.name),
            None => Ok(()),
        }
    }
}

impl ObjectSet {
    /// The objects with this label, which nobody else may use.
    pub fn labelled(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { label: (key.into(), value.into()), namespace: None, owner: None }
    }

    /// Only those of this namespace.
    #[must_use]
    pub fn in_namespace(self, namespace: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), ..self }
    }

    /// Only those of this owner, and with a reference to it, so that they go with it.
    #[must_use]
    pub fn owned_by(self, owner: OwnerReference) -> Self {
        Self { owner: Some(owner), ..self }
    }

    /// Whether an object with this metadata is of the set.
    pub(super) fn has(&self, metadata: &Value) -> bool {
        let owners = metadata["ownerReferences"].as_array();
        metadata["labels"][&self.label.0] == self.label.1.as_str()
            && self.owner.as_ref().is_none_or(|owner| {
                owners.is_some_and(|owners| owners.iter().any(|one| one["uid"] == owner.uid.as_str()))
            })
    }

    fn holds<K: Resource>(&self, object: &K) -> bool {
        object.labels().get(&self.label.0) == Some(&self.label.1)
            && self
                .owner
                .as_ref()
                .is_none_or(|owner| object.owner_references().iter().any(|one| one.uid == owner.uid))
    }

    /// The object as one of the set.
    fn with<K: Resource>(&self, mut object: K) -> K {
        let meta = object.meta_mut();
        meta.namespace = meta.namespace.take().or_else(|| self.namespace.clone());
        meta.labels.get_or_insert_default().insert(self.label.0.clone(), self.label.1.clone());
        if let Some(owner) = &self.owner {
            let owners = meta.owner_references.get_or_insert_default();
            owners.retain(|one| one.uid != owner.uid);
            owners.push(owner.clone());
        }
        object
    }
}

/// A write that has not begun. Boxed, since the compiler does not see that a stream of nameless ones may change threads.
type Write<'a> = BoxFuture<'a, Result<Written, WriteError>>;

impl<K> Applier<K>
where
    K: Resource<DynamicType: Send + Sync> + Serialize + Send + Sync + 'static,
{
    /// Makes the objects of a set be those that are `wanted`: each is applied, and once all are there, those that the view
    /// shows beside them are deleted, if they still are as it shows them. `view` must show all objects of the set.
    ///
    /// An object of a wanted name that is not of the set is left alone, whatever becomes of conflicts about fields.
    ///
    /// # Errors
    /// The first that an object met with. The others have been applied nevertheless; nothing has been deleted unless all
    /// were applied.
    pub async fn keep(
        &self,
        set: &ObjectSet,
        wanted: Vec<K>,
        view: &Informer<K>,
        on_conflict: OnConflict,
    ) -> Result<Kept, WriteError> {
        let wanted: Vec<K> = wanted.into_iter().map(|object| set.with(object)).collect();
        let mut keys = BTreeSet::new();
        for key in wanted.iter().map(ObjectKey::of) {
            if let Some(twice) = keys.replace(key) {
                let (object, fault) = (self.named(&twice), "it is wanted twice".to_owned());
                return Err(WriteError::Unfit { object, fault });
            }
        }
        let writes = wanted.iter().map(|object| {
            let live = view.by_key(&ObjectKey::of(object));
            let write = async move { self.apply_in(object, live.as_deref(), on_conflict, Some(set)).await };
            write.boxed()
        });
        let (changed, unchanged) = self.all(writes.collect()).await?;
        let mut surplus = match &set.namespace {
            Some(namespace) => view.list_in(namespace),
            None => view.list(),
        };
        surplus.retain(|object| {
            let gone = object.meta().deletion_timestamp.is_some();
            !gone && set.holds(object.as_ref()) && !keys.contains(&ObjectKey::of(object.as_ref()))
        });
        let deletions = surplus.iter().map(|object| self.delete(object.as_ref()).boxed());
        let (deleted, _) = self.all(deletions.collect()).await?;
        Ok(Kept { changed, unchanged, deleted })
    }

    /// Does all of it, whatever becomes of single writes; how many changed something, and how many did not.
    async fn all(&self, writes: Vec<Write<'_>>) -> Result<(usize, usize), WriteError> {
        let mut running = futures::stream::iter(writes).buffer_unordered(self.manager.at_once);
        let (mut counts, mut outcome) = ((0, 0), Ok(()));
        while let Some(written) = running.next().await {
            match written {
                Ok(Written::Changed) => counts.0 += 1,
                Ok(Written::Unchanged) => counts.1 += 1,
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome.map(|()| counts)
    }
}

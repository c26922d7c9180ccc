//! Tells informers of kinds that the server does not know when a definition of theirs comes or changes, so that they need
//! not keep asking.

use crate::informer::{Informer, ObjectKey, Writer};
use ambit_api::apiextensions::CustomResourceDefinition;
use kube::Resource;
use kube::core::PartialObjectMeta;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, watch};

/// What is read of a definition.
pub(crate) type Metadata = PartialObjectMeta<CustomResourceDefinition>;
/// By the name of the definition, `PLURAL.GROUP`.
type Senders = Arc<Mutex<BTreeMap<String, watch::Sender<()>>>>;

/// One watch of all definitions, which begins when it is first needed.
pub(crate) struct Definitions {
    followed: Informer<Metadata>,
    senders: Senders,
    needed: Notify,
}

impl Definitions {
    pub(crate) fn new() -> Self {
        let followed = Informer::<Metadata>::new(Metadata::url_path(&(), None));
        let senders = Senders::default();
        let told = senders.clone();
        followed.on_change(move |change| {
            let name = ObjectKey::of(change.latest().as_ref()).name;
            if let Some(sender) = told.lock().unwrap_or_else(PoisonError::into_inner).get(&name) {
                sender.send_replace(());
            }
        });
        Self { followed, senders, needed: Notify::new() }
    }

    /// Waits until somebody needs them to be followed. Cancel safe.
    pub(crate) async fn needed(&self) {
        self.needed.notified().await;
    }

    /// The side of whoever follows them.
    pub(crate) fn writer(&self) -> Writer<Metadata> {
        Writer::of(&self.followed)
    }

    /// The definition of a kind; none for built-in kinds.
    pub(crate) fn of<K: Resource>(self: &Arc<Self>, kind: &K::DynamicType) -> Option<Definition> {
        let group = K::group(kind);
        if group.is_empty() || group == CustomResourceDefinition::group(&()) {
            return None;
        }
        let name = format!("{}.{group}", K::plural(kind));
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = senders.entry(name).or_default().subscribe();
        Some(Definition { all: self.clone(), changed })
    }
}

/// The definition of one kind, which may not exist yet.
pub(crate) struct Definition {
    all: Arc<Definitions>,
    changed: watch::Receiver<()>,
}

impl Definition {
    /// Asks for the definitions to be followed.
    pub(crate) fn need(&self) {
        self.all.needed.notify_one();
    }

    /// Whether a change would be told. Not where the definitions must not be read, or there are no such things.
    pub(crate) fn is_followed(&self) -> bool {
        let synced = self.all.followed.synced();
        synced.is_synced() && !synced.is_absent() && synced.trouble().is_none()
    }

    /// Waits for a change since the last one. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        if self.changed.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

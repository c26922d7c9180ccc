//! What all handlers share: the database, the catalog of served kinds, the clock and the settings of the cluster.

use crate::database::Database;
use crate::metrics::Metrics;
use crate::object::{Object, Stored};
use crate::rbac::Rbac;
use crate::request::{Target, collection};
use crate::status::{Answer, Failure};
use crate::tokens::Tokens;
use ambit_runtime::{Clock, Entropy};
use ambit_schema::{Catalog, ResourceType};
use ambit_store::{Key, Range, Revision};
use arc_swap::ArcSwap;
use ipnet::IpNet;
use rand::Rng as _;
use serde_json::Value;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Letters of generated names: no vowels, so no words. Source: apimachinery util/rand.
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Length of a generated suffix. Source: apiserver storage/names.
const SUFFIX_LENGTH: usize = 5;

/// Collection of the definitions of custom resources.
pub(crate) const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions";

/// The state of the API server.
pub(crate) struct Cluster {
    pub(crate) db: Database,
    catalog: ArcSwap<Catalog>,
    /// Tells when definitions have changed. Held while the catalog is made anew, so that an older one never replaces a
    /// newer one.
    definitions: RwLock<watch::Receiver<Revision>>,
    pub(crate) rbac: Rbac,
    pub(crate) tokens: Tokens,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
    pub(crate) options: Options,
    /// Held from the choice of a service address to its write.
    pub(crate) address_turn: tokio::sync::Mutex<()>,
}

/// Settings that handlers need.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) service_cidr: IpNet,
    /// The cluster's CA, as clients of nodes trust it.
    pub(crate) ca_pem: String,
    /// The client certificate and key that the node's server knows.
    pub(crate) node_client: ambit_trust::pki::Credentials,
}

impl Cluster {
    pub(crate) fn new(db: Database, tokens: Tokens, options: Options) -> Self {
        let mut definitions = db.subscribe(&DEFINITIONS.into());
        // What is stored already is news too.
        definitions.mark_changed();
        Self {
            definitions: RwLock::new(definitions),
            rbac: Rbac::new(&db),
            db,
            catalog: ArcSwap::from_pointee(Catalog::builtin()),
            tokens,
            metrics: Metrics::new(),
            clock: Clock,
            options,
            address_turn: tokio::sync::Mutex::default(),
        }
    }

    /// The kinds that are served now: as soon as a write of a definition has been answered, those that it makes.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        let definitions = self.definitions.read().unwrap_or_else(PoisonError::into_inner);
        if !definitions.has_changed().unwrap_or(true) {
            return self.catalog.load_full();
        }
        drop(definitions);
        let mut definitions = self.definitions.write().unwrap_or_else(PoisonError::into_inner);
        // Marked as seen before they are read: what comes later marks them again.
        definitions.mark_unchanged();
        let (catalog, problems) = self.catalog.load().with_crds(&self.values(DEFINITIONS, None));
        for problem in problems {
            tracing::warn!(definition = %problem.definition, reason = %problem.reason, message = %problem.message,
                is_served = !problem.fatal, "definition has a problem");
        }
        self.catalog.store(Arc::new(catalog));
        self.catalog.load_full()
    }

    /// A built-in kind that the server itself relies on.
    pub(crate) fn built_in(&self, group: &str, version: &str, kind: &str) -> Arc<ResourceType> {
        self.catalog().kind(group, version, kind).expect("the type table has every kind of this room").clone()
    }

    /// The stored objects of a collection that readers see.
    pub(crate) fn values(&self, collection: &str, namespace: Option<&str>) -> Vec<Value> {
        let page = self.db.list(&Range::new(collection, namespace), None);
        page.map(|page| page.items.into_iter().map(|(_, stored)| stored.value.value()).collect())
            .unwrap_or_default()
    }

    /// Whether a collection holds any object.
    pub(crate) fn is_empty(&self, collection: &str) -> bool {
        self.db.list(&Range::new(collection, None), None).is_ok_and(|page| page.items.is_empty())
    }

    /// A stored object that readers see.
    pub(crate) fn object(&self, collection: &str, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.db.get(&Key::new(collection, namespace, name)).map(|stored| stored.value)
    }

    /// The object a request names, or 404.
    pub(crate) fn stored(&self, target: &Target) -> Answer<Stored> {
        self.db.get(&target.key()).ok_or_else(|| Failure::not_found(&target.kind, &target.name))
    }

    /// The object a request is about to change, or 404.
    pub(crate) fn head(&self, target: &Target) -> Answer<Stored> {
        self.db.head(&target.key()).ok_or_else(|| Failure::not_found(&target.kind, &target.name))
    }

    /// The time, as objects record it: whole seconds.
    pub(crate) fn now_text(&self) -> String {
        seconds_text(self.clock.timestamp())
    }

    /// Random letters for a generated name.
    pub(crate) fn name_suffix(&self) -> String {
        let mut rng = Entropy.rng();
        (0..SUFFIX_LENGTH)
            .map(|_| char::from(NAME_LETTERS[rng.random_range(0..NAME_LETTERS.len())]))
            .collect()
    }

    /// A range over a target's collection.
    pub(crate) fn range(target: &Target) -> Range {
        let namespace = (!target.namespace.is_empty()).then_some(target.namespace.as_str());
        Range::new(collection(&target.kind), namespace)
    }
}

/// RFC 3339 in whole seconds.
pub(crate) fn seconds_text(time: jiff::Timestamp) -> String {
    jiff::Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

//! Publishes the root certificate to every namespace.

use crate::metrics::Metrics;
use ambit_api::core::v1::{ConfigMap, Namespace};
use ambit_kube::{Informer, Informers, Next, Query, Queue, is_already_exists, is_not_found};
use ambit_runtime::Shutdown;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name of the ConfigMap, as the field has it.
pub(crate) const CONFIG_MAP: &str = "istio-ca-root-cert";
const KEY: &str = "root-cert.pem";
const LABEL: (&str, &str) = ("istio.io/config", "true");
/// Namespaces without workloads of their own.
const SKIPPED: [&str; 3] = ["kube-public", "kube-node-lease", "local-path-storage"];

/// Keeps the ConfigMap in every namespace as it should be.
pub(crate) struct RootPublisher {
    client: kube::Client,
    namespaces: Informer<Namespace>,
    config_maps: Informer<ConfigMap>,
    queue: Queue<String>,
}

impl RootPublisher {
    /// Follows namespaces and their ConfigMaps from now on.
    pub(crate) fn new(informers: &Informers, namespaces: Informer<Namespace>, metrics: &Metrics) -> Self {
        let config_maps: Informer<ConfigMap> =
            informers.informer(Query::all().fields(format!("metadata.name={CONFIG_MAP}")));
        let queue = Queue::with(metrics.queue("root-publisher"));
        let adds = queue.clone();
        namespaces.on_change(move |change| {
            adds.add(change.latest().metadata.name.clone().unwrap_or_default());
        });
        let adds = queue.clone();
        config_maps.on_change(move |change| {
            adds.add(change.latest().metadata.namespace.clone().unwrap_or_default());
        });
        Self { client: informers.client().clone(), namespaces, config_maps, queue }
    }

    /// Publishes until `shutdown`.
    pub(crate) async fn run(self, root_pem: String, shutdown: Shutdown) {
        let this = Arc::new((self, root_pem));
        let handler = |namespace: String| {
            let this = this.clone();
            async move {
                this.0.publish(&namespace, &this.1).await?;
                Ok::<_, kube::Error>(Next::Done)
            }
        };
        this.0.queue.run(handler, &shutdown).await;
    }

    async fn publish(&self, namespace: &str, root_pem: &str) -> Result<(), kube::Error> {
        let Some(object) = self.namespaces.get(None, namespace) else { return Ok(()) };
        if SKIPPED.contains(&namespace) || object.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let wanted = wanted(root_pem);
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let written = match self.config_maps.get(Some(namespace), CONFIG_MAP) {
            Some(current) if holds(&current, &wanted) => return Ok(()),
            Some(_) => api.patch(CONFIG_MAP, &PatchParams::default(), &Patch::Merge(&wanted)).await,
            None => api.create(&PostParams::default(), &wanted).await,
        };
        match written {
            // The view lags, or the namespace is on its way out: its next change brings the key back.
            Err(error) if is_already_exists(&error) || is_not_found(&error) => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

fn wanted(root_pem: &str) -> ConfigMap {
    let labels = BTreeMap::from([(LABEL.0.to_owned(), LABEL.1.to_owned())]);
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(CONFIG_MAP.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(KEY.to_owned(), root_pem.to_owned())])),
        ..ConfigMap::default()
    }
}

/// Whether everything wanted is there; other labels and keys are nobody's concern.
fn holds(current: &ConfigMap, wanted: &ConfigMap) -> bool {
    let covers = |current: &Option<BTreeMap<String, String>>, wanted: &Option<BTreeMap<String, String>>| {
        wanted.iter().flatten().all(|(key, value)| current.as_ref().and_then(|c| c.get(key)) == Some(value))
    };
    covers(&current.metadata.labels, &wanted.metadata.labels) && covers(&current.data, &wanted.data)
}

//! The controllers' shared views of the cluster.

use ambit_api::apps::v1::{Deployment, ReplicaSet};
use ambit_api::coordination::v1::Lease;
use ambit_api::core::v1::{ConfigMap, Namespace, Node, Pod, Service, ServiceAccount};
use ambit_api::discovery::v1::EndpointSlice;
use ambit_api::rbac::v1::ClusterRole;
use ambit_kube::{Informer, Informers, Query, Queue, QueueMetrics, QueueSettings, Synced};
use ambit_workloads::{node_health, root_ca, service_account};
use kube::Client;
use std::fmt::Debug;
use std::hash::Hash;

/// One view per kind; every controller reads the same ones.
#[derive(Clone)]
pub(crate) struct Views {
    pub(crate) client: Client,
    pub(crate) namespaces: Informer<Namespace>,
    pub(crate) pods: Informer<Pod>,
    pub(crate) services: Informer<Service>,
    pub(crate) slices: Informer<EndpointSlice>,
    pub(crate) replica_sets: Informer<ReplicaSet>,
    pub(crate) deployments: Informer<Deployment>,
    pub(crate) nodes: Informer<Node>,
    /// Leases of nodes only.
    pub(crate) leases: Informer<Lease>,
    /// Accounts named `default` only.
    pub(crate) service_accounts: Informer<ServiceAccount>,
    /// ConfigMaps with the root certificate only.
    pub(crate) root_cas: Informer<ConfigMap>,
    pub(crate) cluster_roles: Informer<ClusterRole>,
    queues: QueueMetrics,
}

impl Views {
    pub(crate) fn new(informers: &Informers, queues: QueueMetrics) -> Self {
        let named = |name: &str| Query::all().fields(format!("metadata.name={name}"));
        Self {
            client: informers.client().clone(),
            namespaces: informers.informer(Query::all()),
            pods: informers.informer(Query::all()),
            services: informers.informer(Query::all()),
            slices: informers.informer(Query::all()),
            replica_sets: informers.informer(Query::all()),
            deployments: informers.informer(Query::all()),
            nodes: informers.informer(Query::all()),
            leases: informers.informer(Query::all().namespace(node_health::LEASE_NAMESPACE)),
            service_accounts: informers.informer(named(service_account::NAME)),
            root_cas: informers.informer(named(root_ca::NAME)),
            cluster_roles: informers.informer(Query::all()),
            queues,
        }
    }

    /// A queue that hands out nothing before every view has synced: half a view would look like deletions.
    pub(crate) fn queue<K: Clone + Eq + Hash + Debug>(&self, name: &'static str, workers: usize) -> Queue<K> {
        let settings = QueueSettings::new(name).workers(workers).after(self.synced()).metrics(&self.queues);
        Queue::with(settings)
    }

    fn synced(&self) -> [Synced; 11] {
        [
            self.namespaces.synced(),
            self.pods.synced(),
            self.services.synced(),
            self.slices.synced(),
            self.replica_sets.synced(),
            self.deployments.synced(),
            self.nodes.synced(),
            self.leases.synced(),
            self.service_accounts.synced(),
            self.root_cas.synced(),
            self.cluster_roles.synced(),
        ]
    }
}

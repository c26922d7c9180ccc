//! Everything the proxy knows of workloads, services and policies, indexed for the questions of one connection.
//!
//! A [`State`] is a value: cloning it is cheap, and a clone does not change when the original does.

use crate::policy::{Policy, PolicyScope};
use crate::resource::{NetworkAddress, ResourceError, Service, Workload};
use ambit_names::spiffe::Identity;
use ambit_names::type_url;
use ambit_proto::{security, workload as wire};
use ipnet::IpNet;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

/// One change of the proxy's knowledge, as it came over discovery.
#[derive(Debug, Clone)]
pub enum Change {
    /// A resource is new or replaces the one of its name.
    Put {
        /// Type URL.
        type_url: String,
        /// Resource name.
        name: String,
        /// Encoded message.
        body: bytes::Bytes,
    },
    /// A resource is gone.
    Remove {
        /// Type URL.
        type_url: String,
        /// Resource name.
        name: String,
    },
}

/// The name of a workload of this node as the node agent knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalName {
    /// Pod name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Service account.
    pub service_account: String,
}

/// Knowledge at one moment.
#[derive(Debug, Clone, Default)]
pub struct State {
    addresses: Arc<Addresses>,
    policies: Arc<Policies>,
}

#[derive(Debug, Clone, Default)]
struct Addresses {
    workloads: HashMap<Arc<str>, Arc<Workload>>,
    workloads_by_address: HashMap<NetworkAddress, Vec<Arc<str>>>,
    workloads_by_name: HashMap<(Arc<str>, String), Vec<Arc<str>>>,
    workloads_by_node: HashMap<Arc<str>, Vec<Arc<str>>>,
    endpoints: HashMap<Arc<str>, BTreeMap<Arc<str>, Arc<Workload>>>,
    services: HashMap<Arc<str>, Arc<Service>>,
    services_by_vip: HashMap<NetworkAddress, Vec<Arc<str>>>,
    services_by_hostname: HashMap<Arc<str>, Vec<Arc<str>>>,
    services_by_cidr: Vec<(Arc<str>, IpNet, Arc<str>)>,
}

#[derive(Debug, Clone, Default)]
struct Policies {
    by_key: HashMap<Arc<str>, Arc<Policy>>,
    by_namespace: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    global: BTreeSet<Arc<str>>,
}

/// Adds to a list kept under a key.
fn index<K: Hash + Eq, V: PartialEq>(map: &mut HashMap<K, Vec<V>>, key: K, value: V) {
    let list = map.entry(key).or_default();
    if !list.contains(&value) {
        list.push(value);
    }
}

/// Takes from a list kept under a key; an empty list is dropped.
fn unindex<K: Hash + Eq, V: PartialEq>(map: &mut HashMap<K, Vec<V>>, key: &K, value: &V) {
    if let Some(list) = map.get_mut(key) {
        list.retain(|kept| kept != value);
        if list.is_empty() {
            map.remove(key);
        }
    }
}

impl State {
    /// Applies one change.
    ///
    /// # Errors
    /// The resource is refused. An earlier version of it stays in force; a policy without an earlier version is
    /// replaced by one that refuses everything in its place.
    pub fn apply(&mut self, change: &Change) -> Result<(), ResourceError> {
        match change {
            Change::Put { type_url, name, body } => match type_url.as_str() {
                type_url::ADDRESS => self.put_address(body),
                type_url::WORKLOAD => {
                    let workload = wire::Workload::decode(body.clone()).map_err(undecodable)?;
                    self.put_workload(workload.try_into()?);
                    Ok(())
                }
                type_url::AUTHORIZATION => self.put_policy(name, body),
                other => Err(ResourceError::Type(other.to_owned())),
            },
            Change::Remove { type_url, name } => {
                match type_url.as_str() {
                    type_url::ADDRESS => self.remove_address(name),
                    type_url::WORKLOAD => self.remove_workload(name),
                    type_url::AUTHORIZATION => self.remove_policy(name),
                    other => return Err(ResourceError::Type(other.to_owned())),
                }
                Ok(())
            }
        }
    }

    fn put_address(&mut self, body: &bytes::Bytes) -> Result<(), ResourceError> {
        use wire::address::Type;
        match wire::Address::decode(body.clone()).map_err(undecodable)?.r#type {
            Some(Type::Workload(workload)) => self.put_workload(workload.try_into()?),
            Some(Type::Service(service)) => self.put_service(service.try_into()?),
            None => return Err(ResourceError::Missing { field: "type" }),
        }
        Ok(())
    }

    /// Puts a workload in, replacing the one of the same uid.
    pub fn put_workload(&mut self, workload: Workload) {
        let all = Arc::make_mut(&mut self.addresses);
        all.take_workload(&workload.uid);
        let (uid, workload) = (workload.uid.clone(), Arc::new(workload));
        for address in host_addresses(&workload) {
            index(&mut all.workloads_by_address, address, uid.clone());
        }
        index(&mut all.workloads_by_name, name_key(&workload), uid.clone());
        index(&mut all.workloads_by_node, workload.node.clone(), uid.clone());
        for service in workload.services.keys() {
            all.endpoints.entry(service.clone()).or_default().insert(uid.clone(), workload.clone());
        }
        all.workloads.insert(uid, workload);
    }

    /// Puts a service in, replacing the one of the same key.
    pub fn put_service(&mut self, service: Service) {
        let all = Arc::make_mut(&mut self.addresses);
        all.take_service(&service.key);
        let key = service.key.clone();
        for vip in &service.vips {
            index(&mut all.services_by_vip, vip.clone(), key.clone());
        }
        for (network, net) in &service.cidrs {
            all.services_by_cidr.push((network.clone(), *net, key.clone()));
        }
        index(&mut all.services_by_hostname, service.hostname.clone(), key.clone());
        all.services.insert(key, Arc::new(service));
    }

    fn put_policy(&mut self, name: &str, body: &bytes::Bytes) -> Result<(), ResourceError> {
        let decoded = security::Authorization::decode(body.clone()).map_err(undecodable);
        let (read, scope) = match &decoded {
            Ok(message) => (Policy::parse(name, message), wire_scope(message.scope)),
            Err(error) => (Err(error.clone()), PolicyScope::Namespace),
        };
        let fault = match read {
            Ok(policy) => {
                self.insert_policy(policy);
                return Ok(());
            }
            Err(fault) => fault,
        };
        if !self.policies.by_key.contains_key(name) {
            self.insert_policy(Policy::refusing(name, scope));
        }
        Err(fault)
    }

    /// Puts a policy in, replacing the one of the same key.
    pub fn insert_policy(&mut self, policy: Policy) {
        self.remove_policy(&policy.key);
        let all = Arc::make_mut(&mut self.policies);
        match policy.scope {
            PolicyScope::Global => {
                all.global.insert(policy.key.clone());
            }
            PolicyScope::Namespace => {
                all.by_namespace.entry(policy.namespace.clone()).or_default().insert(policy.key.clone());
            }
            PolicyScope::Workload => {}
        }
        all.by_key.insert(policy.key.clone(), Arc::new(policy));
    }

    fn remove_policy(&mut self, key: &str) {
        if !self.policies.by_key.contains_key(key) {
            return;
        }
        let all = Arc::make_mut(&mut self.policies);
        if let Some(policy) = all.by_key.remove(key) {
            all.global.remove(key);
            if let Some(of_namespace) = all.by_namespace.get_mut(&policy.namespace) {
                of_namespace.remove(key);
                if of_namespace.is_empty() {
                    all.by_namespace.remove(&policy.namespace);
                }
            }
        }
    }

    /// The name alone does not say what is removed: a workload if there is one, else a service.
    fn remove_address(&mut self, name: &str) {
        if self.addresses.workloads.contains_key(name) {
            self.remove_workload(name);
        } else if name.split_once('/').is_some_and(|(_, hostname)| !hostname.contains('/')) {
            Arc::make_mut(&mut self.addresses).take_service(name);
        }
    }

    fn remove_workload(&mut self, uid: &str) {
        Arc::make_mut(&mut self.addresses).take_workload(uid);
    }

    /// The workload of that uid.
    pub fn workload(&self, uid: &str) -> Option<&Arc<Workload>> {
        self.addresses.workloads.get(uid)
    }

    /// The service of that key (`namespace/hostname`).
    pub fn service(&self, key: &str) -> Option<&Arc<Service>> {
        self.addresses.services.get(key)
    }

    /// The policy of that key (`namespace/name`).
    pub fn policy(&self, key: &str) -> Option<&Arc<Policy>> {
        self.policies.by_key.get(key)
    }

    /// All workloads, in no order.
    pub fn workloads(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.addresses.workloads.values()
    }

    /// All services, in no order.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.addresses.services.values()
    }

    /// All policies, in no order.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.by_key.values()
    }

    /// The workload at an address; pods that share their node's addresses are not found by address.
    pub fn workload_at(&self, at: &NetworkAddress) -> Option<&Arc<Workload>> {
        let uids = self.addresses.workloads_by_address.get(at)?;
        uids.iter().find_map(|uid| self.workload(uid))
    }

    /// The workload that the node agent handed over under `name`.
    pub fn local_workload(&self, name: &LocalName) -> Option<&Arc<Workload>> {
        let key = (name.namespace.as_str().into(), name.name.clone());
        let uids = self.addresses.workloads_by_name.get(&key)?;
        let mut found = uids.iter().filter_map(|uid| self.workload(uid));
        found.find(|workload| workload.identity.service_account() == name.service_account)
    }

    /// Identities of the workloads of a node that speak HBONE.
    pub fn node_identities(&self, node: &str) -> BTreeSet<Identity> {
        let uids = self.addresses.workloads_by_node.get(node).into_iter().flatten();
        uids.filter_map(|uid| self.workload(uid))
            .filter(|workload| workload.native_tunnel || workload.tunnel == crate::resource::Tunnel::Hbone)
            .map(|workload| workload.identity.clone())
            .collect()
    }

    /// Endpoints of a service, by uid.
    pub fn endpoints(&self, service_key: &str) -> impl Iterator<Item = &Arc<Workload>> {
        self.addresses.endpoints.get(service_key).into_iter().flat_map(BTreeMap::values)
    }

    /// The best service at an address for a client of `namespace`.
    pub fn service_at(&self, at: &NetworkAddress, namespace: &str) -> Option<&Arc<Service>> {
        let exact = self.addresses.services_by_vip.get(at);
        if let Some(found) = self.best_service(exact.into_iter().flatten(), namespace) {
            return Some(found);
        }
        let ranges = self.addresses.services_by_cidr.iter();
        ranges
            .filter(|(network, net, _)| *network == at.network && net.contains(&at.address))
            .filter_map(|(_, net, key)| Some((net, self.service(key)?)))
            .filter(|(_, service)| visible(service, namespace))
            .max_by_key(|(net, service)| {
                (&*service.namespace == namespace, net.prefix_len(), service.canonical)
            })
            .map(|(_, service)| service)
    }

    /// The best service of a host name for a client of `namespace`.
    pub fn service_named(&self, hostname: &str, namespace: &str) -> Option<&Arc<Service>> {
        let named = self.addresses.services_by_hostname.get(hostname);
        self.best_service(named.into_iter().flatten(), namespace)
    }

    /// Visible, then of the same namespace, then canonical, then first seen.
    fn best_service<'a>(
        &'a self,
        keys: impl Iterator<Item = &'a Arc<str>>,
        namespace: &str,
    ) -> Option<&'a Arc<Service>> {
        let visible = keys.filter_map(|key| self.service(key)).filter(|service| visible(service, namespace));
        let rank = |service: &Service| (&*service.namespace == namespace, service.canonical);
        visible.reduce(|best, next| if rank(next) > rank(best) { next } else { best })
    }

    /// Keys of the policies for all workloads of a namespace, then of those for all workloads.
    pub(crate) fn general_policies(&self, namespace: &str) -> impl Iterator<Item = &Arc<Policy>> {
        let of_namespace = self.policies.by_namespace.get(namespace).into_iter().flatten();
        of_namespace.chain(&self.policies.global).filter_map(|key| self.policy(key))
    }
}

impl Addresses {
    fn take_workload(&mut self, uid: &str) {
        let Some(workload) = self.workloads.remove(uid) else { return };
        for address in host_addresses(&workload) {
            unindex(&mut self.workloads_by_address, &address, &workload.uid);
        }
        unindex(&mut self.workloads_by_name, &name_key(&workload), &workload.uid);
        unindex(&mut self.workloads_by_node, &workload.node, &workload.uid);
        for service in workload.services.keys() {
            if let Some(endpoints) = self.endpoints.get_mut(service) {
                endpoints.remove(uid);
                if endpoints.is_empty() {
                    self.endpoints.remove(service);
                }
            }
        }
    }

    fn take_service(&mut self, key: &str) {
        let Some(service) = self.services.remove(key) else { return };
        for vip in &service.vips {
            unindex(&mut self.services_by_vip, vip, &service.key);
        }
        unindex(&mut self.services_by_hostname, &service.hostname, &service.key);
        self.services_by_cidr.retain(|(_, _, of)| *of != service.key);
    }
}

fn visible(service: &Service, namespace: &str) -> bool {
    !service.namespace_only || &*service.namespace == namespace
}

fn name_key(workload: &Workload) -> (Arc<str>, String) {
    (workload.namespace.clone(), workload.name.clone())
}

fn host_addresses(workload: &Workload) -> Vec<NetworkAddress> {
    if workload.host_network {
        return vec![];
    }
    let at = |address: &IpAddr| NetworkAddress { network: workload.network.clone(), address: *address };
    workload.addresses.iter().map(at).collect()
}

fn undecodable(error: prost::DecodeError) -> ResourceError {
    ResourceError::Decode(error.to_string())
}

fn wire_scope(scope: i32) -> PolicyScope {
    match security::Scope::try_from(scope) {
        Ok(security::Scope::Global) => PolicyScope::Global,
        Ok(security::Scope::WorkloadSelector) => PolicyScope::Workload,
        Ok(security::Scope::Namespace) | Err(_) => PolicyScope::Namespace,
    }
}

#[cfg(test)]
mod tests;

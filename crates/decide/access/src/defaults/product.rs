//! Roles of the product's own parts: each may do what it does, and no more.

use super::people::events;
use super::{Default, READ};
use crate::rule::Rule;

pub(super) fn roles() -> Vec<Default> {
    vec![
        Default::new("system:node", node()).group("system:nodes"),
        Default::new("ambit:controllers", controllers()).user("ambit:controllers"),
        Default::new("ambit:control-plane", control_plane()).user("ambit:control-plane"),
        Default::new("ambit:agent", agent()).user("ambit:agent"),
    ]
}

/// A node, which here also routes services and answers for cluster DNS.
fn node() -> Vec<Rule> {
    let read = ["configmaps", "persistentvolumeclaims", "persistentvolumes", "secrets", "serviceaccounts"];
    vec![
        Rule::of("authentication.k8s.io", &["tokenreviews"], &["create"]),
        Rule::of("authorization.k8s.io", &["localsubjectaccessreviews", "subjectaccessreviews"], &["create"]),
        Rule::of("", &["endpoints", "namespaces", "services"], &READ),
        Rule::of("discovery.k8s.io", &["endpointslices"], &READ),
        Rule::of("", &["nodes"], &["create", "get", "list", "patch", "update", "watch"]),
        Rule::of("", &["nodes/status"], &["patch", "update"]),
        Rule::of("", &["pods"], &["create", "delete", "get", "list", "watch"]),
        Rule::of("", &["pods/status"], &["patch", "update"]),
        Rule::of("", &["pods/eviction"], &["create"]),
        Rule::of("", &read, &READ),
        Rule::of("", &["serviceaccounts/token"], &["create"]),
        Rule::of("coordination.k8s.io", &["leases"], &["create", "delete", "get", "patch", "update"]),
        Rule::of("storage.k8s.io", &["csidrivers", "volumeattachments"], &READ),
        Rule::of("storage.k8s.io", &["csinodes"], &["create", "delete", "get", "patch", "update"]),
        Rule::of("node.k8s.io", &["runtimeclasses"], &READ),
        Rule::of("resource.k8s.io", &["resourceclaims"], &["get"]),
        events(),
        // The cluster's DNS is a service of the node.
        Rule::of("", &["services"], &["create", "patch", "update"]),
        Rule::of("discovery.k8s.io", &["endpointslices"], &["create", "patch", "update"]),
    ]
}

/// All built-in controllers, which run as one. Collecting garbage and emptying namespaces takes all kinds.
fn controllers() -> Vec<Rule> {
    let own = ["create", "delete", "get", "list", "patch", "update", "watch"];
    vec![
        Rule::of("*", &["*"], &["delete", "deletecollection", "get", "list", "patch", "update", "watch"]),
        Rule::of("", &["configmaps", "pods", "serviceaccounts"], &own),
        Rule::of("", &["bindings", "pods/binding", "pods/eviction"], &["create"]),
        Rule::of("apps", &["controllerrevisions", "replicasets"], &own),
        Rule::of("discovery.k8s.io", &["endpointslices"], &own),
        Rule::of("coordination.k8s.io", &["leases"], &own),
        Rule::of(super::GROUP, &["clusterroles"], &["escalate"]),
        events(),
        Rule::of_paths(&["/api", "/api/*", "/apis", "/apis/*"], &["get"]),
    ]
}

/// Workloads, services and policies to proxies; their certificates.
fn control_plane() -> Vec<Rule> {
    let security = ["authorizationpolicies", "peerauthentications", "requestauthentications"];
    let statuses =
        ["authorizationpolicies/status", "peerauthentications/status", "requestauthentications/status"];
    vec![
        Rule::of("", &["endpoints", "namespaces", "nodes", "pods", "services"], &READ),
        Rule::of("discovery.k8s.io", &["endpointslices"], &READ),
        Rule::of("security.istio.io", &security, &READ),
        Rule::of("security.istio.io", &statuses, &["get", "patch", "update"]),
        Rule::of("networking.istio.io", &["*"], &READ),
        Rule::of("gateway.networking.k8s.io", &["*"], &READ),
        Rule::of("apiextensions.k8s.io", &["customresourcedefinitions"], &READ),
        Rule::of("authentication.k8s.io", &["tokenreviews"], &["create"]),
        // The root certificate goes into every namespace, the last good mesh configuration into the system's.
        Rule::of("", &["configmaps"], &["create", "get", "list", "patch", "update", "watch"]),
        Rule::of("", &["secrets"], &["create", "get", "list", "update", "watch"]),
        Rule::of("coordination.k8s.io", &["leases"], &["create", "get", "patch", "update"]),
        events(),
    ]
}

/// Which pods of the node are captured.
fn agent() -> Vec<Rule> {
    vec![
        Rule::of("", &["namespaces", "nodes", "pods"], &READ),
        Rule::of("", &["pods/status"], &["patch", "update"]),
        events(),
    ]
}

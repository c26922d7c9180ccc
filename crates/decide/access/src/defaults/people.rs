//! Roles for people and for the field's own parts.

use super::{Default, READ, WRITE};
use crate::rule::Rule;

/// Where anybody may ask how the server is.
const HEALTH: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

pub(super) fn roles() -> Vec<Default> {
    vec![
        Default::new("cluster-admin", vec![Rule::of("*", &["*"], &["*"]), Rule::of_paths(&["*"], &["*"])])
            .group("system:masters"),
        Default::new("system:discovery", vec![Rule::of_paths(&discovery_paths(), &["get"])])
            .group("system:authenticated"),
        Default::new("system:basic-user", own_reviews()).group("system:authenticated"),
        Default::new("system:public-info-viewer", vec![Rule::of_paths(&HEALTH, &["get"])])
            .group("system:authenticated")
            .group("system:unauthenticated"),
        Default::new("system:monitoring", vec![Rule::of_paths(&monitoring_paths(), &["get"])])
            .group("system:monitoring"),
        Default::new(
            "system:service-account-issuer-discovery",
            vec![Rule::of_paths(&issuer_paths(), &["get"])],
        )
        .group("system:serviceaccounts"),
        Default::new("admin", vec![]).made_of("admin"),
        Default::new("edit", vec![]).made_of("edit").part_of("admin"),
        Default::new("view", vec![]).made_of("view").part_of("edit"),
        Default::new("system:aggregate-to-admin", admin()).part_of("admin"),
        Default::new("system:aggregate-to-edit", edit()).part_of("edit"),
        Default::new("system:aggregate-to-view", view()).part_of("view"),
        Default::new("system:auth-delegator", delegator()),
        Default::new("system:kubelet-api-admin", kubelet_api()),
        Default::new("system:persistent-volume-provisioner", provisioner()),
        Default::new("system:kube-dns", vec![Rule::of("", &["endpoints", "services"], &["list", "watch"])]),
        Default::new("system:node-proxier", proxier()).user("system:kube-proxy"),
        Default::new("system:node-problem-detector", problem_detector()),
        Default::new("system:kube-scheduler", scheduler()).user("system:kube-scheduler"),
    ]
}

fn discovery_paths() -> Vec<&'static str> {
    let mut paths = vec!["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"];
    paths.extend(HEALTH);
    paths
}

fn monitoring_paths() -> Vec<&'static str> {
    vec!["/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/metrics/slis", "/readyz", "/readyz/*"]
}

fn issuer_paths() -> Vec<&'static str> {
    vec![
        "/.well-known/openid-configuration",
        "/.well-known/openid-configuration/",
        "/openid/v1/jwks",
        "/openid/v1/jwks/",
    ]
}

fn own_reviews() -> Vec<Rule> {
    let access = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"];
    vec![
        Rule::of("authorization.k8s.io", &access, &["create"]),
        Rule::of("authentication.k8s.io", &["selfsubjectreviews"], &["create"]),
    ]
}

fn read_and_write() -> Vec<&'static str> {
    [&READ[..], &WRITE[..]].concat()
}

fn admin() -> Vec<Rule> {
    vec![
        Rule::of("authorization.k8s.io", &["localsubjectaccessreviews"], &["create"]),
        Rule::of(super::GROUP, &["rolebindings", "roles"], &read_and_write()),
    ]
}

fn edit() -> Vec<Rule> {
    let connections = ["pods/attach", "pods/exec", "pods/portforward", "pods/proxy"];
    let read = [&connections[..], &["secrets", "services/proxy"]].concat();
    let pods = [&["pods"], &connections[..]].concat();
    let core = [
        "configmaps",
        "events",
        "persistentvolumeclaims",
        "replicationcontrollers",
        "replicationcontrollers/scale",
        "secrets",
        "serviceaccounts",
        "services",
        "services/proxy",
    ];
    let apps = [
        "daemonsets",
        "deployments",
        "deployments/rollback",
        "deployments/scale",
        "replicasets",
        "replicasets/scale",
        "statefulsets",
        "statefulsets/scale",
    ];
    vec![
        Rule::of("", &read, &READ),
        Rule::of("", &["serviceaccounts"], &["impersonate"]),
        Rule::of("", &pods, &WRITE),
        Rule::of("", &["pods/eviction"], &["create"]),
        Rule::of("", &core, &WRITE),
        Rule::of("", &["serviceaccounts/token"], &["create"]),
        Rule::of("apps", &apps, &WRITE),
        Rule::of("autoscaling", &["horizontalpodautoscalers"], &WRITE),
        Rule::of("batch", &["cronjobs", "jobs"], &WRITE),
        Rule::of("policy", &["poddisruptionbudgets"], &WRITE),
        Rule::of("networking.k8s.io", &["ingresses", "networkpolicies"], &WRITE),
        Rule::of("coordination.k8s.io", &["leases"], &read_and_write()),
        Rule::of("resource.k8s.io", &["resourceclaims", "resourceclaimtemplates"], &WRITE),
    ]
}

fn view() -> Vec<Rule> {
    let core = [
        "bindings",
        "configmaps",
        "endpoints",
        "events",
        "limitranges",
        "namespaces",
        "namespaces/status",
        "persistentvolumeclaims",
        "persistentvolumeclaims/status",
        "pods",
        "pods/log",
        "pods/status",
        "replicationcontrollers",
        "replicationcontrollers/scale",
        "replicationcontrollers/status",
        "resourcequotas",
        "resourcequotas/status",
        "serviceaccounts",
        "services",
        "services/status",
    ];
    let apps = [
        "controllerrevisions",
        "daemonsets",
        "daemonsets/status",
        "deployments",
        "deployments/scale",
        "deployments/status",
        "replicasets",
        "replicasets/scale",
        "replicasets/status",
        "statefulsets",
        "statefulsets/scale",
        "statefulsets/status",
    ];
    let scalers = ["horizontalpodautoscalers", "horizontalpodautoscalers/status"];
    let network = ["ingresses", "ingresses/status", "networkpolicies"];
    vec![
        Rule::of("", &core, &READ),
        Rule::of("discovery.k8s.io", &["endpointslices"], &READ),
        Rule::of("apps", &apps, &READ),
        Rule::of("autoscaling", &scalers, &READ),
        Rule::of("batch", &["cronjobs", "cronjobs/status", "jobs", "jobs/status"], &READ),
        Rule::of("policy", &["poddisruptionbudgets", "poddisruptionbudgets/status"], &READ),
        Rule::of("networking.k8s.io", &network, &READ),
        Rule::of(
            "resource.k8s.io",
            &["resourceclaims", "resourceclaims/status", "resourceclaimtemplates"],
            &READ,
        ),
    ]
}

fn delegator() -> Vec<Rule> {
    vec![
        Rule::of("authentication.k8s.io", &["tokenreviews"], &["create"]),
        Rule::of("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ]
}

fn kubelet_api() -> Vec<Rule> {
    let parts = ["nodes/log", "nodes/metrics", "nodes/proxy", "nodes/stats"];
    vec![Rule::of("", &["nodes"], &["get", "list", "watch", "proxy"]), Rule::of("", &parts, &["*"])]
}

fn provisioner() -> Vec<Rule> {
    vec![
        Rule::of("", &["persistentvolumes"], &["create", "delete", "get", "list", "watch"]),
        Rule::of("", &["persistentvolumeclaims"], &["get", "list", "update", "watch"]),
        Rule::of("storage.k8s.io", &["storageclasses"], &READ),
        Rule::of("", &["events"], &["watch"]),
        events(),
    ]
}

fn proxier() -> Vec<Rule> {
    vec![
        Rule::of("", &["endpoints", "services"], &["list", "watch"]),
        Rule::of("", &["nodes"], &READ),
        Rule::of("discovery.k8s.io", &["endpointslices"], &["list", "watch"]),
        events(),
        Rule::of("events.k8s.io", &["events"], &["create", "patch", "update"]),
    ]
}

fn problem_detector() -> Vec<Rule> {
    vec![
        Rule::of("", &["nodes"], &["get"]),
        Rule::of("", &["nodes/status"], &["patch"]),
        events(),
        Rule::of("events.k8s.io", &["events"], &["create", "patch", "update"]),
    ]
}

fn scheduler() -> Vec<Rule> {
    let leases = ["leases"];
    vec![
        events(),
        Rule::of("events.k8s.io", &["events"], &["create", "patch", "update"]),
        Rule::of("coordination.k8s.io", &leases, &["create"]),
        Rule::of("coordination.k8s.io", &leases, &["get", "list", "patch", "update", "watch"])
            .named(&["kube-scheduler"]),
        Rule::of("", &["namespaces", "nodes", "persistentvolumeclaims", "persistentvolumes"], &READ),
        Rule::of("", &["replicationcontrollers", "services"], &READ),
        Rule::of("", &["pods"], &["delete", "get", "list", "watch"]),
        Rule::of("", &["bindings", "pods/binding"], &["create"]),
        Rule::of("", &["pods/status"], &["patch", "update"]),
        Rule::of("apps", &["replicasets", "statefulsets"], &READ),
        Rule::of("policy", &["poddisruptionbudgets"], &READ),
        Rule::of(
            "storage.k8s.io",
            &["csidrivers", "csinodes", "csistoragecapacities", "storageclasses"],
            &READ,
        ),
        Rule::of("authentication.k8s.io", &["tokenreviews"], &["create"]),
        Rule::of("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ]
}

/// Telling what happens.
pub(super) fn events() -> Rule {
    Rule::of("", &["events"], &["create", "patch", "update"])
}

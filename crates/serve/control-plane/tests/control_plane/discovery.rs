//! Workloads, services and policies as a discovery client sees them.

use crate::client::{Discovery, root};
use crate::cluster::{Cluster, account, ask, pod, proxy};
use ambit_names::type_url::{ADDRESS, AUTHORIZATION};
use ambit_proto::workload::{Address, Workload, address};
use ambit_proto::{security, workload};
use prost::Message;
use serde_json::{Value, json};
use std::collections::HashMap;
use tonic::Code;

const WEB: &str = "Kubernetes//Pod/demo/web";
const SERVICE: &str = "demo/web.demo.svc.cluster.local";

fn service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "demo", "name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}})
}

fn policy() -> Value {
    json!({"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"namespace": "demo", "name": "deny"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "action": "DENY",
                 "rules": [{"from": [{"source": {"principals": ["cluster.local/ns/demo/sa/client"]}}]}]}})
}

async fn cluster_with_proxy() -> (Cluster, String) {
    let cluster = Cluster::start().await;
    cluster.create(account("istio-system", "ztunnel")).await;
    cluster.create(account("demo", "web")).await;
    cluster.create(proxy("node1")).await;
    let token = cluster.token(&proxy("node1"), "istio-ca").await;
    (cluster, token)
}

fn web(stream: &Discovery) -> Option<Workload> {
    let address = Address::decode(stream.get(ADDRESS, WEB)?).unwrap();
    match address.r#type? {
        address::Type::Workload(workload) => Some(workload),
        address::Type::Service(_) => panic!("it is a workload"),
    }
}

#[tokio::test]
async fn resources_follow_the_cluster() {
    let (cluster, token) = cluster_with_proxy().await;
    cluster.create(pod("demo", "web", "web", "node1", "10.244.0.5")).await;
    let control_plane = cluster.control_plane().await;
    let root = root(&cluster).await;
    let mut stream = Discovery::open(&control_plane, &root, Some(&token), "istio-system").await.unwrap();
    stream.subscribe(ADDRESS, HashMap::new()).await;
    stream.subscribe(AUTHORIZATION, HashMap::new()).await;
    // The control plane was ready: the first answer is the whole cluster.
    let first = stream.next().await.unwrap();
    assert!(first.resources.iter().any(|r| r.name == WEB), "{:?}", first.resources);
    let workload = web(&stream).unwrap();
    assert_eq!(workload.addresses, [vec![10, 244, 0, 5]]);
    assert_eq!((workload.node.as_str(), workload.service_account.as_str()), ("node1", "web"));
    assert_eq!(workload.tunnel_protocol(), workload::TunnelProtocol::Hbone);
    assert_eq!(workload.status(), workload::WorkloadStatus::Healthy);
    assert_eq!(stream.next().await.unwrap().type_url, AUTHORIZATION);
    let metrics = ask(&control_plane, "/metrics").await;
    for line in ["ambit_control_plane_streams 1", "ambit_control_plane_responses_total{type=\"address\"} 1"] {
        assert!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
    }
    assert!(metrics.contains("workqueue_adds_total{name=\"root-publisher\"}"), "{metrics}");
    assert!(metrics.contains("informer_in_trouble{path=\"/api/v1/pods\",selector=\"\"} 0"), "{metrics}");
    let why = ask(&control_plane, "/debug/collections/why/addresses/Pod/demo/web").await;
    assert!(why.contains(r#""collection":"pods","key":"demo/web""#), "{why}");

    // A service comes with its cluster address, and its endpoint with the port.
    cluster.create(service()).await;
    stream.until(|s| web(s).is_some_and(|w| w.services.contains_key(SERVICE))).await;
    assert_eq!(web(&stream).unwrap().services[SERVICE].ports[0].target_port, 8080);
    let address = Address::decode(stream.get(ADDRESS, SERVICE).unwrap()).unwrap();
    let Some(address::Type::Service(sent)) = address.r#type else { panic!("it is a service") };
    assert_eq!(sent.addresses[0].address[..2], [10, 96]);

    // A policy arrives before the workload that names it.
    cluster.create(policy()).await;
    let response = stream.next().await.unwrap();
    assert_eq!((response.type_url.as_str(), response.resources.len()), (AUTHORIZATION, 1));
    let sent = security::Authorization::decode(stream.get(AUTHORIZATION, "demo/deny").unwrap()).unwrap();
    assert_eq!((sent.action(), sent.scope()), (security::Action::Deny, security::Scope::WorkloadSelector));
    stream.until(|s| web(s).is_some_and(|w| w.authorization_policies == ["demo/deny"])).await;

    // It goes after the workload has let go of it, and pods go when they go.
    cluster.delete(&policy()).await;
    let response = stream.next().await.unwrap();
    assert_eq!((response.type_url.as_str(), response.resources.len()), (ADDRESS, 1));
    assert_eq!(stream.next().await.unwrap().removed_resources, ["demo/deny"]);
    cluster.delete(&pod("demo", "web", "web", "node1", "10.244.0.5")).await;
    let response = stream.next().await.unwrap();
    assert_eq!((response.removed_resources, response.resources.len()), (vec![WEB.to_owned()], 0));
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn strict_peer_authentication_reaches_every_workload_of_its_namespace() {
    let (cluster, token) = cluster_with_proxy().await;
    cluster.create(pod("demo", "web", "web", "node1", "10.244.0.5")).await;
    let control_plane = cluster.control_plane().await;
    let root = root(&cluster).await;
    let mut stream = Discovery::open(&control_plane, &root, Some(&token), "istio-system").await.unwrap();
    stream.subscribe(AUTHORIZATION, HashMap::new()).await;
    stream.subscribe(ADDRESS, HashMap::new()).await;
    let strict = "istio-system/istio_converted_static_strict";
    let object = json!({"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
        "metadata": {"namespace": "demo", "name": "default"}, "spec": {"mtls": {"mode": "STRICT"}}});
    cluster.create(object.clone()).await;
    stream.until(|s| web(s).is_some_and(|w| w.authorization_policies == [strict])).await;
    assert!(stream.get(AUTHORIZATION, strict).is_some());
    cluster.patch(&object, json!({"spec": {"mtls": {"mode": "PERMISSIVE"}}})).await;
    stream.until(|s| web(s).is_some_and(|w| w.authorization_policies.is_empty())).await;
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_reconnecting_client_is_sent_nothing_it_has_also_by_a_new_control_plane() {
    let (cluster, token) = cluster_with_proxy().await;
    cluster.create(pod("demo", "web", "web", "node1", "10.244.0.5")).await;
    cluster.create(service()).await;
    cluster.create(policy()).await;
    let control_plane = cluster.control_plane().await;
    let root_before = root(&cluster).await;
    let mut stream =
        Discovery::open(&control_plane, &root_before, Some(&token), "istio-system").await.unwrap();
    stream.subscribe(ADDRESS, HashMap::new()).await;
    assert!(!stream.next().await.unwrap().resources.is_empty());
    stream.subscribe(AUTHORIZATION, HashMap::new()).await;
    assert!(!stream.next().await.unwrap().resources.is_empty());
    let (addresses, policies) = (stream.versions(ADDRESS), stream.versions(AUTHORIZATION));
    control_plane.stop().await;

    cluster.delete(&policy()).await;
    let control_plane = cluster.control_plane().await;
    // The root is kept: the certificates that were issued before stay good.
    assert_eq!(root(&cluster).await, root_before);
    let mut stream =
        Discovery::open(&control_plane, &root_before, Some(&token), "istio-system").await.unwrap();

    stream.subscribe(ADDRESS, addresses).await;
    let answer = stream.next().await.unwrap();
    // Only the workload differs: it no longer names the policy that went meanwhile.
    assert_eq!(answer.resources.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), [WEB]);
    assert!(answer.removed_resources.is_empty());
    stream.subscribe(AUTHORIZATION, policies).await;
    let answer = stream.next().await.unwrap();
    assert_eq!((answer.resources.len(), answer.removed_resources), (0, vec!["demo/deny".to_owned()]));
    control_plane.stop().await;
    cluster.stop().await;
}

#[tokio::test]
async fn only_authenticated_clients_that_are_who_they_say_are_served() {
    let (cluster, token) = cluster_with_proxy().await;
    let control_plane = cluster.control_plane().await;
    let root = root(&cluster).await;
    let foreign = cluster.token(&proxy("node1"), "vault").await;
    for (token, namespace, expected) in [
        (None, "istio-system", Code::Unauthenticated),
        (Some("nonsense"), "istio-system", Code::Unauthenticated),
        (Some(foreign.as_str()), "istio-system", Code::Unauthenticated),
        (Some(token.as_str()), "demo", Code::PermissionDenied),
    ] {
        let refused = Discovery::open(&control_plane, &root, token, namespace).await.map(|_| ());
        assert_eq!(refused.map_err(|status| status.code()), Err(expected), "{token:?} {namespace}");
    }
    // A token dies with its pod.
    cluster.delete(&proxy("node1")).await;
    let refused = Discovery::open(&control_plane, &root, Some(&token), "istio-system").await.map(|_| ());
    assert_eq!(refused.map_err(|status| status.code()), Err(Code::Unauthenticated));
    control_plane.stop().await;
    cluster.stop().await;
}

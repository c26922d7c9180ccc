//! Logs of pods: what is asked of the node's server, and how its answers are handed on.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod cluster;

use ambit_api::core::v1::{Node, Pod};
use bytes::Bytes;
use cluster::{TestCluster, object};
use futures::AsyncReadExt as _;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::api::{Api, LogParams, Patch, PatchParams, PostParams};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use std::sync::Arc;
use tokio::net::TcpListener;

/// The server of a node: accepts only the cluster's certificates, and answers with the path it was asked for and
/// the caller's name. Containers named `gone` are not found.
async fn node_server(cluster: &TestCluster) -> u16 {
    let credentials = cluster.pki.issue_server("node", &["127.0.0.1".into()]).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(cluster.pki.ca_pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(credentials.cert_pem.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(credentials.key_pem.as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let service = service_fn(|request: http::Request<hyper::body::Incoming>| async move {
                let asked = request.uri().to_string();
                let code = if asked.contains("/gone") { 404 } else { 200 };
                http::Response::builder().status(code).body(Full::new(Bytes::from(asked)))
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    });
    port
}

async fn cluster_with_pod(port: u16, cluster: &TestCluster) -> Api<Pod> {
    let nodes: Api<Node> = Api::all(cluster.client());
    let status = json!({"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}});
    nodes
        .create(&PostParams::default(), &object(json!({"metadata": {"name": "n"}, "status": status})))
        .await
        .unwrap();
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    let mirror = json!({"kubernetes.io/config.mirror": "x"});
    for (name, node) in [("p", json!("n")), ("waiting", json!(null))] {
        let containers = json!([{"name": "c", "image": "i"}, {"name": "gone", "image": "i"}]);
        let pod = json!({"metadata": {"name": name, "annotations": mirror}, "spec": {"nodeName": node, "containers": containers}});
        pods.create(&PostParams::default(), &object(pod)).await.unwrap();
    }
    pods
}

fn of(container: &str) -> LogParams {
    LogParams { container: Some(container.into()), ..LogParams::default() }
}

#[tokio::test]
async fn logs_come_from_the_node_of_the_pod() {
    let cluster = TestCluster::in_memory().await;
    let pods = cluster_with_pod(node_server(&cluster).await, &cluster).await;
    let text = pods.logs("p", &LogParams { tail_lines: Some(5), timestamps: true, ..of("c") }).await.unwrap();
    assert_eq!(text, "/containerLogs/default/p/c?tailLines=5&timestamps=true");
    let mut followed = String::new();
    let mut stream = pods.log_stream("p", &LogParams { follow: true, ..of("c") }).await.unwrap();
    stream.read_to_string(&mut followed).await.unwrap();
    assert_eq!(followed, "/containerLogs/default/p/c?follow=true");
    cluster.stop().await;
}

#[tokio::test]
async fn logs_that_cannot_be_had_say_why() {
    let cluster = TestCluster::in_memory().await;
    let pods = cluster_with_pod(node_server(&cluster).await, &cluster).await;
    let check = async |pod: &str, params: LogParams, expected: &str| {
        let refused = pods.logs(pod, &params).await.unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    };
    check("p", LogParams::default(), "a container name must be specified for pod p, choose one of: [c gone]")
        .await;
    check("p", of("x"), "container x is not valid for pod p").await;
    check("p", of("gone"), "/containerLogs/default/p/gone").await;
    check("waiting", of("c"), "no host assigned").await;
    check("none", of("c"), "pods \"none\" not found").await;
    let nodes: Api<Node> = Api::all(cluster.client());
    let unreachable = json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}});
    nodes.patch_status("n", &PatchParams::default(), &Patch::Merge(unreachable)).await.unwrap();
    check("p", of("c"), "https://127.0.0.1:1/containerLogs/default/p/c").await;
    cluster.stop().await;
}

//! Two servers side by side over one etcd: clients cannot tell which of them answers.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod etcd_member;

use ambit_api::core::v1::{ConfigMap, Service};
use ambit_apiserver::{ApiServer, EtcdSettings, EtcdTls, Settings, Storage};
use ambit_trust::pki::ClusterPki;
use etcd_member::EtcdMember;
use futures::TryStreamExt as _;
use kube::ResourceExt as _;
use kube::api::{
    Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use serde_json::json;
use std::collections::HashSet;
use std::path::PathBuf;

async fn server(etcd: EtcdSettings, pki: &ClusterPki) -> ApiServer {
    ApiServer::open(Settings {
        storage: Storage::Etcd(etcd),
        listen: None,
        advertise: None,
        pki: pki.clone(),
        service_cidr: "10.96.0.0/24".parse().unwrap(),
        cluster_domain: "cluster.local".into(),
    })
    .await
    .unwrap()
}

async fn pair(member: &EtcdMember) -> (kube::Client, kube::Client) {
    let pki = ClusterPki::in_memory(&[]).unwrap();
    let etcd = EtcdSettings { members: vec![member.address()], prefix: "/ambit".into(), tls: None };
    // At once, as the replicas of a Deployment start.
    let (a, b) = tokio::join!(server(etcd.clone(), &pki), server(etcd, &pki));
    (a.client("admin", &["system:masters"]), b.client("admin", &["system:masters"]))
}

fn object<K: serde::de::DeserializeOwned>(value: serde_json::Value) -> K {
    serde_json::from_value(value).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_server_writes_the_other_answers_at_once() {
    let member = EtcdMember::start();
    let (a, b) = pair(&member).await;
    let (here, there): (Api<ConfigMap>, Api<ConfigMap>) =
        (Api::default_namespaced(a), Api::default_namespaced(b));
    let made =
        here.create(&PostParams::default(), &object(json!({"metadata": {"name": "m"}}))).await.unwrap();
    let mut last = made.clone();
    for i in 0..20 {
        let (writer, reader) = if i % 2 == 0 { (&there, &here) } else { (&here, &there) };
        let patch = json!({"data": {"i": i.to_string()}});
        last = writer.patch("m", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        assert_eq!(reader.get("m").await.unwrap(), last);
    }
    let stale = there.replace("m", &PostParams::default(), &made).await.unwrap_err();
    assert!(matches!(&stale, kube::Error::Api(status) if status.code == 409), "{stale}");
    // A watch that began at one server goes on at the other, from the same revision.
    let from = made.resource_version().unwrap();
    let stream =
        there.watch(&WatchParams::default().fields("metadata.name=m").timeout(30), &from).await.unwrap();
    let seen: Vec<String> = stream
        .try_filter_map(|event| async move {
            let WatchEvent::Modified(map) = event else { panic!("{event:?}") };
            Ok(Some(map.data.unwrap()["i"].clone()))
        })
        .try_take_while(|i| std::future::ready(Ok(i != "19")))
        .try_collect()
        .await
        .unwrap();
    assert_eq!(seen, (0..19).map(|i| i.to_string()).collect::<Vec<_>>());
    assert_eq!(
        here.list(&ListParams::default()).await.unwrap().items,
        there.list(&ListParams::default()).await.unwrap().items
    );
    assert_eq!(there.get("m").await.unwrap(), last);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_made_at_one_server_is_served_by_the_other() {
    let member = EtcdMember::start();
    let (a, b) = pair(&member).await;
    let kind = ApiResource::from_gvk_with_plural(
        &kube::core::GroupVersionKind::gvk("example.com", "v1", "Widget"),
        "widgets",
    );
    let definitions: Api<DynamicObject> = Api::all_with(
        a,
        &ApiResource::from_gvk_with_plural(
            &kube::core::GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
            "customresourcedefinitions",
        ),
    );
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    });
    definitions.create(&PostParams::default(), &object(definition)).await.unwrap();
    let widgets: Api<DynamicObject> = Api::default_namespaced_with(b, &kind);
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    assert_eq!(widgets.create(&PostParams::default(), &object(widget)).await.unwrap().name_any(), "w");
}

#[tokio::test(flavor = "multi_thread")]
async fn services_made_at_both_servers_at_once_get_addresses_of_their_own() {
    let member = EtcdMember::start();
    let (a, b) = pair(&member).await;
    let services: [Api<Service>; 2] = [Api::default_namespaced(a), Api::default_namespaced(b)];
    let make = |services: &Api<Service>, name: String, address: String| {
        let services = services.clone();
        async move {
            let spec = json!({"clusterIP": address, "ports": [{"port": 80}]});
            let service = json!({"metadata": {"name": name}, "spec": spec});
            services.create(&PostParams::default(), &object(service)).await
        }
    };
    // The same address asked for at both: one of them gets it.
    for i in 2..15 {
        let address = format!("10.96.0.{i}");
        let [first, second] = ["x", "y"].map(|which| format!("{which}{i}"));
        let made = tokio::join!(
            make(&services[0], first, address.clone()),
            make(&services[1], second, address.clone())
        );
        let (one, refused) = match made {
            (Ok(one), Err(refused)) | (Err(refused), Ok(one)) => (one, refused),
            other => panic!("{address}: {other:?}"),
        };
        assert_eq!(one.spec.unwrap().cluster_ip, Some(address));
        assert!(refused.to_string().contains("already allocated"), "{refused}");
    }
    // Any address, while there are hardly enough.
    let given = (0..200).map(|i| make(&services[i % 2], format!("s{i}"), String::new()));
    let given = futures::future::join_all(given).await;
    let given: Vec<String> =
        given.into_iter().map(|made| made.unwrap().spec.unwrap().cluster_ip.unwrap()).collect();
    assert_eq!(given.iter().collect::<HashSet<_>>().len(), given.len(), "{given:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_is_spoken_to_over_tls_with_a_client_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| -> PathBuf {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let pki = ClusterPki::in_memory(&[]).unwrap();
    let authorities = file("ca.crt", pki.ca_pem());
    let ip = EtcdMember::own_ip();
    let own = pki.issue_server("etcd", &[ip.to_string()]).unwrap();
    let shown = pki.issue_client("apiserver", &[], std::time::Duration::from_secs(600)).unwrap();
    let own = [authorities.clone(), file("etcd.crt", &own.cert_pem), file("etcd.key", &own.key_pem)];
    let member = EtcdMember::start_with(ip, Some(own));
    let client = Some((file("client.crt", &shown.cert_pem), file("client.key", &shown.key_pem)));
    let tls = |client| Some(EtcdTls { authorities: authorities.clone(), client });
    let settings = |tls| EtcdSettings { members: vec![member.address()], prefix: "/ambit".into(), tls };
    let client = server(settings(tls(client)), &pki).await.client("admin", &["system:masters"]);
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    maps.create(&PostParams::default(), &object(json!({"metadata": {"name": "m"}}))).await.unwrap();
    // Etcd does not speak with who shows nothing, nor in plain text.
    for refused in [tls(None), None] {
        let open = ApiServer::open(Settings {
            storage: Storage::Etcd(settings(refused)),
            listen: None,
            advertise: None,
            pki: pki.clone(),
            service_cidr: "10.96.0.0/24".parse().unwrap(),
            cluster_domain: "cluster.local".into(),
        });
        let error = open.await.unwrap_err().to_string();
        assert!(error.contains("cannot be read"), "{error}");
    }
}

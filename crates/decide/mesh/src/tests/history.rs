//! INV-05: the state after any history equals the one computed from its last objects alone.

use super::{mesh_of, name_of, write};
use crate::{Mesh, MeshSettings};
use ambit_collect::Batch;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const NAMESPACES: [&str; 2] = ["demo", "istio-system"];

fn namespace() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMESPACES[..])
}

fn app() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![json!({"app": "a"}), json!({"app": "b"}), json!({})])
}

fn created(age: u8) -> String {
    format!("2026-01-0{}T00:00:00Z", age % 9 + 1)
}

fn pod() -> impl Strategy<Value = Value> {
    let annotations =
        prop::sample::select(vec![json!({}), json!({"ambient.istio.io/redirection": "enabled"})]);
    let phase = prop::sample::select(vec!["Running", "Failed"]);
    (namespace(), 0..3_u8, app(), annotations, 0..2_u8, prop::option::of(0..2_u8), phase).prop_map(
        |(namespace, n, labels, annotations, uid, node, phase)| {
            let port = json!({"name": "web", "containerPort": 8000 + u32::from(n)});
            json!({"kind": "Pod",
                "metadata": {"name": format!("p{n}"), "namespace": namespace, "labels": labels,
                             "annotations": annotations, "uid": format!("u{uid}")},
                "spec": {"containers": [{"name": "c", "ports": [port]}], "nodeName": node.map(|n| format!("n{n}"))},
                "status": {"phase": phase, "podIP": format!("10.0.0.{n}")}})
        },
    )
}

fn service() -> impl Strategy<Value = Value> {
    (namespace(), 0..2_u8, app(), prop::bool::ANY).prop_map(|(namespace, n, selector, named)| {
        let target = if named { json!("web") } else { json!(80) };
        json!({"kind": "Service", "metadata": {"name": format!("s{n}"), "namespace": namespace},
               "spec": {"selector": selector, "clusterIP": format!("10.96.0.{n}"),
                        "ports": [{"name": "http", "port": 80, "targetPort": target}]}})
    })
}

fn slice() -> impl Strategy<Value = Value> {
    (namespace(), 0..2_u8, 0..2_u8, 0..3_u8, 0..2_u8).prop_map(|(namespace, n, service, pod, uid)| {
        let target = json!({"kind": "Pod", "namespace": namespace, "name": format!("p{pod}"), "uid": format!("u{uid}")});
        json!({"kind": "EndpointSlice", "addressType": "IPv4",
               "metadata": {"name": format!("e{n}"), "namespace": namespace,
                            "labels": {"kubernetes.io/service-name": format!("s{service}")}},
               "endpoints": [{"addresses": ["10.0.0.1"], "targetRef": target}, {"addresses": ["192.0.2.1"]}],
               "ports": [{"name": "http", "port": 9000, "protocol": "TCP"}]})
    })
}

fn policy() -> impl Strategy<Value = Value> {
    let action = prop::sample::select(vec!["ALLOW", "DENY", "AUDIT"]);
    (namespace(), 0..2_u8, app(), action, prop::bool::ANY).prop_map(|(namespace, n, labels, action, http)| {
        let operation = if http { json!({"methods": ["GET"]}) } else { json!({"ports": ["80"]}) };
        json!({"kind": "AuthorizationPolicy", "metadata": {"name": format!("a{n}"), "namespace": namespace},
               "spec": {"action": action, "selector": {"matchLabels": labels},
                        "rules": [{"to": [{"operation": operation}]}]}})
    })
}

fn peer_authentication() -> impl Strategy<Value = Value> {
    let mode = || prop::sample::select(vec!["UNSET", "DISABLE", "PERMISSIVE", "STRICT"]);
    (namespace(), 0..3_u8, app(), mode(), prop::option::of(mode()), 0..9_u8).prop_map(
        |(namespace, n, labels, mode, port, age)| {
            let ports = port.map_or(json!({}), |mode| json!({"8000": {"mode": mode}}));
            json!({"kind": "PeerAuthentication",
                "metadata": {"name": format!("x{n}"), "namespace": namespace, "creationTimestamp": created(age)},
                "spec": {"selector": {"matchLabels": labels}, "mtls": {"mode": mode}, "portLevelMtls": ports}})
        },
    )
}

fn other() -> impl Strategy<Value = Value> {
    let network = prop::sample::select(vec![json!({}), json!({"topology.istio.io/network": "east"})]);
    let zone = prop::sample::select(vec!["z1", "z2"]);
    prop_oneof![
        (namespace(), network).prop_map(|(name, labels)| {
            json!({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        }),
        (0..2_u8, zone).prop_map(|(n, zone)| {
            json!({"kind": "Node", "metadata": {"name": format!("n{n}"),
                   "labels": {"topology.kubernetes.io/zone": zone}}})
        }),
    ]
}

fn step() -> impl Strategy<Value = (Value, bool)> {
    let object = prop_oneof![3 => pod(), 2 => service(), 1 => slice(), 1 => policy(), 2 => peer_authentication(), 1 => other()];
    (object, prop::bool::weighted(0.75))
}

fn state(mesh: &Mesh) -> String {
    let (graph, outputs) = (&mesh.graph, &mesh.outputs);
    format!(
        "{:#?} {:#?} {:#?}",
        graph.iter(outputs.addresses).collect::<Vec<_>>(),
        graph.iter(outputs.authorizations).collect::<Vec<_>>(),
        graph.iter(outputs.conditions).collect::<Vec<_>>(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn inv_05_incremental_equals_from_scratch(
        history in prop::collection::vec(prop::collection::vec(step(), 1..6), 1..15),
    ) {
        let mut incremental = Mesh::new(MeshSettings::default());
        let mut last: BTreeMap<_, Value> = BTreeMap::new();
        for steps in &history {
            let mut batch = Batch::new();
            for (object, present) in steps {
                write(&incremental, &mut batch, object, *present);
                let key = (object["kind"].to_string(), name_of(object));
                if *present { last.insert(key, object.clone()); } else { last.remove(&key); }
            }
            let commit = incremental.graph.apply(batch);
            prop_assert!(commit.faults().is_empty());
            let of = incremental.outputs.addresses;
            prop_assert!(commit.changes(of).all(|change| change.before != change.after));
        }
        let objects: Vec<Value> = last.into_values().collect();
        let scratch = mesh_of(&objects);
        prop_assert_eq!(state(&incremental), state(&scratch));
        // No workload names a policy that is not there.
        for (name, resource) in scratch.graph.iter(scratch.outputs.addresses) {
            for policy in super::golden::policies_of(resource) {
                let known = scratch.graph.get(scratch.outputs.authorizations, &policy).is_some();
                prop_assert!(known, "{} names {}", name, policy);
            }
        }
    }
}

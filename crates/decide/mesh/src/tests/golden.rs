//! `testdata/NAME.in.yaml` holds objects, `testdata/NAME.golden` the resources that follow from them.
//! `UPDATE_GOLDEN=1` rewrites the latter.

use super::mesh_of;
use crate::{Facts, Mesh, Resource};
use ambit_collect::Collection;
use ambit_proto::security::string_match::MatchType;
use ambit_proto::{security, workload};
use prost::Message;
use serde_json::{Map, Value, json};
use std::net::IpAddr;
use std::path::PathBuf;

#[track_caller]
fn check(name: &str) {
    let path = |suffix: &str| {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata").join(format!("{name}.{suffix}"))
    };
    let input = std::fs::read_to_string(path("in.yaml")).unwrap();
    let objects: Vec<Value> =
        input.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect();
    let actual = serde_json::to_string_pretty(&render(&mesh_of(&objects))).unwrap() + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path("golden"), &actual).unwrap();
    }
    let expected = std::fs::read_to_string(path("golden")).unwrap_or_default();
    assert!(actual == expected, "{name}: got\n{actual}");
}

#[test]
fn workloads() {
    check("workloads");
}

#[test]
fn services() {
    check("services");
}

#[test]
fn authorization_policies() {
    check("authorization-policies");
}

#[test]
fn peer_authentications() {
    check("peer-authentications");
}

fn render(mesh: &Mesh) -> Value {
    let (graph, outputs) = (&mesh.graph, &mesh.outputs);
    let resources = |of: Collection<String, Resource>| {
        graph.iter(of).map(|(k, r)| (k.clone(), resource(r))).collect::<Map<_, _>>()
    };
    let conditions = graph.iter(outputs.conditions).map(|(name, c)| {
        let status = if c.accepted { "True" } else { "False" };
        (name.to_string(), format!("{status} {}: {}", c.reason, c.message).into())
    });
    let notices = graph.iter(outputs.notices).map(|(k, v)| (k.clone(), Value::from(v.as_str())));
    tidy(json!({
        "addresses": resources(outputs.addresses),
        "authorizations": resources(outputs.authorizations),
        "conditions": conditions.collect::<Map<_, _>>(),
        "notices": notices.collect::<Map<_, _>>(),
    }))
}

/// Leaves out what has its default value.
fn tidy(value: Value) -> Value {
    let is_default = |v: &Value| match v {
        Value::Null | Value::Bool(false) => true,
        Value::String(s) => s.is_empty(),
        Value::Object(o) => o.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(k, v)| (k, tidy(v)))
            .filter(|(_, v)| !is_default(v) && *v != json!([]))
            .collect(),
        Value::Array(values) => values.into_iter().map(tidy).collect(),
        other => other,
    }
}

fn resource(resource: &Resource) -> Value {
    if resource.facts == Facts::Policy {
        return policy(&security::Authorization::decode(resource.body.clone()).unwrap());
    }
    match workload::Address::decode(resource.body.clone()).unwrap().r#type.unwrap() {
        workload::address::Type::Workload(w) => workload_json(&w),
        workload::address::Type::Service(s) => service(&s),
    }
}

fn ip(bytes: &[u8]) -> String {
    match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()).to_string(),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()).to_string(),
    }
}

fn ports(ports: &[workload::Port]) -> Value {
    let text = |p: &workload::Port| match p.app_protocol() {
        workload::AppProtocol::Unknown => format!("{}->{}", p.service_port, p.target_port),
        protocol => format!("{}->{} {}", p.service_port, p.target_port, protocol.as_str_name()),
    };
    ports.iter().map(text).collect()
}

fn workload_json(w: &workload::Workload) -> Value {
    let services: Map<_, _> = w.services.iter().map(|(k, v)| (k.clone(), ports(&v.ports))).collect();
    let locality = w.locality.as_ref().map(|l| format!("{}/{}/{}", l.region, l.zone, l.subzone));
    let or_default = |name: &str, default: &str| if name == default { String::new() } else { name.into() };
    json!({
        "uid": w.uid, "name": w.name, "namespace": w.namespace, "network": w.network,
        "addresses": w.addresses.iter().map(|a| ip(a)).collect::<Vec<_>>(),
        "tunnelProtocol": or_default(w.tunnel_protocol().as_str_name(), "NONE"),
        "nativeTunnel": w.native_tunnel, "trustDomain": w.trust_domain,
        "serviceAccount": w.service_account, "node": w.node, "canonicalName": w.canonical_name,
        "canonicalRevision": w.canonical_revision, "workloadName": w.workload_name,
        "workloadType": or_default(w.workload_type().as_str_name(), "DEPLOYMENT"),
        "policies": w.authorization_policies,
        "status": or_default(w.status().as_str_name(), "HEALTHY"), "clusterId": w.cluster_id,
        "services": services, "locality": locality,
        "networkMode": or_default(w.network_mode().as_str_name(), "STANDARD"),
    })
}

fn service(s: &workload::Service) -> Value {
    let balancing = s.load_balancing.as_ref().map(|lb| {
        let scopes: Vec<_> = lb.routing_preference().map(|s| s.as_str_name()).collect();
        format!("{} {scopes:?} {}", lb.mode().as_str_name(), lb.health_policy().as_str_name())
    });
    json!({
        "name": s.name, "namespace": s.namespace, "hostname": s.hostname, "canonical": s.canonical,
        "addresses": s.addresses.iter().map(|a| format!("{}/{}", a.network, ip(&a.address))).collect::<Vec<_>>(),
        "ports": ports(&s.ports), "loadBalancing": balancing,
        "ipFamilies": s.ip_families().as_str_name(),
    })
}

fn policy(p: &security::Authorization) -> Value {
    let clause = |c: &security::Clause| c.matches.iter().map(one_match).collect::<Value>();
    let rule = |r: &security::Rule| r.clauses.iter().map(clause).collect::<Value>();
    // Defaults and empty lists mean something here: they are kept, as text.
    json!({
        "is": format!("{} {} of {}/{}", p.scope().as_str_name(), p.action().as_str_name(), p.namespace, p.name),
        "rules": if p.rules.is_empty() { json!("none") } else { p.rules.iter().map(|r| {
            if r.clauses.is_empty() { json!("matches all") } else { rule(r) }
        }).collect() },
    })
}

fn one_match(m: &security::Match) -> Value {
    let strings = |of: &[security::StringMatch]| -> Value {
        let text = |s: &security::StringMatch| match s.match_type.as_ref().unwrap() {
            MatchType::Exact(v) => format!("exact {v}"),
            MatchType::Prefix(v) => format!("prefix {v}"),
            MatchType::Suffix(v) => format!("suffix {v}"),
            MatchType::Presence(()) => "presence".to_owned(),
        };
        of.iter().map(text).collect()
    };
    let blocks = |of: &[security::Address]| -> Value {
        of.iter().map(|a| format!("{}/{}", ip(&a.address), a.length)).collect()
    };
    let accounts = |of: &[security::ServiceAccountMatch]| -> Value {
        of.iter().map(|a| format!("{}/{}", a.namespace, a.service_account)).collect()
    };
    if *m == security::Match::default() {
        return json!("matches nothing");
    }
    json!({
        "namespaces": strings(&m.namespaces), "notNamespaces": strings(&m.not_namespaces),
        "principals": strings(&m.principals), "notPrincipals": strings(&m.not_principals),
        "sourceIps": blocks(&m.source_ips), "notSourceIps": blocks(&m.not_source_ips),
        "destinationIps": blocks(&m.destination_ips), "notDestinationIps": blocks(&m.not_destination_ips),
        "destinationPorts": m.destination_ports, "notDestinationPorts": m.not_destination_ports,
        "serviceAccounts": accounts(&m.service_accounts), "notServiceAccounts": accounts(&m.not_service_accounts),
    })
}

/// The policies that a workload names.
pub(super) fn policies_of(resource: &Resource) -> Vec<String> {
    match workload::Address::decode(resource.body.clone()).unwrap().r#type.unwrap() {
        workload::address::Type::Workload(w) => w.authorization_policies,
        workload::address::Type::Service(_) => Vec::new(),
    }
}

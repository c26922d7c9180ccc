//! Cluster DNS.

use crate::measure::Suite;
use ambit_api::core::v1::Service;
use ambit_api::discovery::v1::EndpointSlice;
use ambit_node::dns::{Answerer, Settings};
use anyhow::{Context, Result, ensure};
use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use serde_json::json;

/// Services in the zone.
const SERVICES: usize = 1000;

pub(crate) fn run(suite: &mut Suite) -> Result<()> {
    let settings = Settings {
        cluster_domain: "cluster.local".into(),
        listen: vec!["10.96.0.10:53".parse()?],
        networks: vec!["10.244.0.0/16".parse()?, "10.96.0.0/16".parse()?],
        upstreams: vec![],
    };
    let (services, slices) = objects()?;
    suite.bench("dns/zone of 1000 services, built anew", 50, 1, || {
        Answerer::new(&settings, &services, &slices)
    });
    let answerer = Answerer::new(&settings, &services, &slices)?;
    for (name, kind, question) in [
        ("dns/address of a service", RecordType::A, "service-500.shop.svc.cluster.local."),
        ("dns/headless service, 3 endpoints", RecordType::A, "service-501.shop.svc.cluster.local."),
        (
            "dns/named port of a headless service",
            RecordType::SRV,
            "_http._tcp.service-501.shop.svc.cluster.local.",
        ),
        ("dns/name that does not exist", RecordType::A, "service-500.shop.svc.cluster.local.cluster.local."),
    ] {
        let query = query(kind, question)?;
        let answer = answerer.answer(&query).context("the name server was silent")?;
        ensure!(answer.len() > query.len(), "{name}: no answer");
        suite.bench(name, 200, 1000, || answerer.answer(&query));
    }
    Ok(())
}

fn query(kind: RecordType, name: &str) -> Result<Vec<u8>> {
    let mut message = Message::new(1, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name)?, kind));
    Ok(message.to_vec()?)
}

/// Every second service is headless; each has three endpoints.
fn objects() -> Result<(Vec<Service>, Vec<EndpointSlice>)> {
    let (mut services, mut slices) = (Vec::new(), Vec::new());
    for n in 0..SERVICES {
        let (name, high, low) = (format!("service-{n}"), n / 250 + 1, n % 250 + 1);
        let address = if n % 2 == 0 { format!("10.96.{high}.{low}") } else { "None".into() };
        services.push(serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"clusterIP": address, "ports": [{"name": "http", "port": 80}]}}))?);
        let endpoints: Vec<_> =
            (0..3).map(|e| json!({"addresses": [format!("10.244.{}.{low}", high + 4 * e)]})).collect();
        slices.push(serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": format!("{name}-1"), "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints}))?);
    }
    Ok((services, slices))
}

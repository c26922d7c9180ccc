//! Building blocks of the room's tests.

use crate::resource::{Service, Workload};
use crate::state::State;
use ambit_proto::workload as wire;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub(crate) fn bytes(ip: &str) -> Vec<u8> {
    match ip.parse().unwrap() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

pub(crate) fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A healthy HBONE workload of namespace `shop`.
pub(crate) fn wire_workload(name: &str, addresses: &[&str]) -> wire::Workload {
    wire::Workload {
        uid: format!("Kubernetes//Pod/shop/{name}"),
        name: name.into(),
        namespace: "shop".into(),
        addresses: addresses.iter().map(|ip| bytes(ip).into()).collect(),
        tunnel_protocol: wire::TunnelProtocol::Hbone.into(),
        service_account: format!("sa-{name}"),
        node: "node-1".into(),
        ..Default::default()
    }
}

pub(crate) fn workload(name: &str, addresses: &[&str]) -> Workload {
    wire_workload(name, addresses).try_into().unwrap()
}

pub(crate) fn ports(list: &[(u32, u32)]) -> Vec<wire::Port> {
    list.iter()
        .map(|(service_port, target_port)| wire::Port {
            service_port: *service_port,
            target_port: *target_port,
            app_protocol: 0,
        })
        .collect()
}

pub(crate) const WEB: &str = "shop/web.shop.svc.cluster.local";

/// Service `web` of namespace `shop` on port 80.
pub(crate) fn wire_service(vips: &[&str], target: u32) -> wire::Service {
    wire::Service {
        name: "web".into(),
        namespace: "shop".into(),
        hostname: "web.shop.svc.cluster.local".into(),
        addresses: vips
            .iter()
            .map(|ip| wire::NetworkAddress { address: bytes(ip).into(), ..Default::default() })
            .collect(),
        ports: ports(&[(80, target)]),
        ..Default::default()
    }
}

pub(crate) fn service(vips: &[&str], target: u32) -> Service {
    wire_service(vips, target).try_into().unwrap()
}

/// Makes a workload an endpoint of `web`.
pub(crate) fn endpoint(mut workload: Workload, target: u16) -> Workload {
    workload.services.insert(WEB.into(), [(80, target)].into());
    workload
}

pub(crate) fn state(workloads: &[Workload], services: &[Service]) -> State {
    let mut state = State::default();
    workloads.iter().for_each(|one| state.put_workload(one.clone()));
    services.iter().for_each(|one| state.put_service(one.clone()));
    state
}

pub(crate) fn here() -> Arc<str> {
    "".into()
}

pub(crate) fn waypoint_service(key: &str) -> crate::resource::Gateway {
    crate::resource::Gateway {
        destination: crate::resource::GatewayDestination::Service(key.into()),
        hbone_port: 15008,
    }
}

//! The `kube-dns` Service: what users and other clients look at to find cluster DNS.

use super::Error;
use ambit_api::core::v1::{Service, ServicePort, ServiceSpec};
use ambit_api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use ambit_names::label;
use kube::api::{Api, ObjectMeta, PostParams};
use std::net::SocketAddr;

/// Namespace and name that every cluster uses, whatever its name server is.
const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";

/// Manager of the EndpointSlice, so that the EndpointSlice controller leaves it alone.
const MANAGER: &str = "ambit-node";

/// Makes the Service, and the EndpointSlice that says who answers, unless they are there.
pub(super) async fn ensure_service(client: &kube::Client, address: SocketAddr) -> Result<(), Error> {
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let found = match services.create(&PostParams::default(), &service(address)).await {
        Ok(created) => created,
        // An API server that allocates first calls the address of an existing Service invalid, not a conflict.
        Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) => services
            .get_opt(NAME)
            .await
            .map_err(Error::Publish)?
            .ok_or(Error::Publish(kube::Error::Api(status)))?,
        Err(error) => return Err(Error::Publish(error)),
    };
    let found = found.spec.and_then(|s| s.cluster_ip).unwrap_or_default();
    if found != address.ip().to_string() {
        return Err(Error::OtherAddress { found, wanted: address.ip() });
    }
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    match slices.create(&PostParams::default(), &slice(address)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(Error::Publish(error)),
    }
}

fn metadata(labels: &[(&str, &str)]) -> ObjectMeta {
    ObjectMeta {
        name: Some(NAME.to_owned()),
        namespace: Some(NAMESPACE.to_owned()),
        labels: Some(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()),
        ..ObjectMeta::default()
    }
}

fn service(address: SocketAddr) -> Service {
    let port = |name: &str, protocol: &str| ServicePort {
        name: Some(name.to_owned()),
        protocol: Some(protocol.to_owned()),
        port: i32::from(address.port()),
        ..ServicePort::default()
    };
    let spec = ServiceSpec {
        cluster_ip: Some(address.ip().to_string()),
        cluster_ips: Some(vec![address.ip().to_string()]),
        ports: Some(vec![port("dns", "UDP"), port("dns-tcp", "TCP")]),
        ..ServiceSpec::default()
    };
    Service {
        metadata: metadata(&[("k8s-app", NAME), ("kubernetes.io/name", "CoreDNS")]),
        spec: Some(spec),
        status: None,
    }
}

fn slice(address: SocketAddr) -> EndpointSlice {
    let port = |name: &str, protocol: &str| EndpointPort {
        name: Some(name.to_owned()),
        protocol: Some(protocol.to_owned()),
        port: Some(i32::from(address.port())),
        ..EndpointPort::default()
    };
    EndpointSlice {
        address_type: if address.is_ipv4() { "IPv4" } else { "IPv6" }.to_owned(),
        endpoints: vec![Endpoint { addresses: vec![address.ip().to_string()], ..Endpoint::default() }],
        metadata: metadata(&[(label::SERVICE_NAME, NAME), (label::SLICE_MANAGED_BY, MANAGER)]),
        ports: Some(vec![port("dns", "UDP"), port("dns-tcp", "TCP")]),
    }
}

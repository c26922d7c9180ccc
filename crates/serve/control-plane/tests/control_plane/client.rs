//! A client as a node proxy is one: TLS to the published root, a bearer token, delta discovery.

use crate::cluster::{Cluster, ControlPlane, DEADLINE, eventually};
use ambit_proto::ca::istio_certificate_service_client::IstioCertificateServiceClient;
use ambit_proto::ca::{IstioCertificateRequest, IstioCertificateResponse};
use ambit_proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use ambit_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node};
use hyper_util::rt::TokioIo;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

/// The name that the server must prove.
const SERVER_NAME: &str = "istiod.istio-system.svc";

/// The root as it is published.
pub(crate) async fn root(cluster: &Cluster) -> String {
    let config_map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "istio-system", "name": "istio-ca-root-cert"}});
    eventually("the root is published", async || {
        cluster.read(&config_map).await?["data"]["root-cert.pem"].as_str().map(str::to_owned)
    })
    .await
}

async fn channel(control_plane: &ControlPlane, root: &str) -> Channel {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
    let mut config = rustls::ClientConfig::builder_with_provider(ambit_trust::provider::control())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let address = control_plane.address;
    let connect = tower::service_fn(move |_| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from(SERVER_NAME).unwrap();
            Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    let endpoint = Endpoint::from_static("https://control-plane");
    endpoint.connect_with_connector(connect).await.unwrap()
}

/// A request with a bearer token, if there is one.
fn authenticated<T>(message: T, token: Option<&str>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    request.metadata_mut().insert("clusterid", "Kubernetes".parse().unwrap());
    request
}

fn text(value: &str) -> Value {
    Value { kind: Some(Kind::StringValue(value.to_owned())) }
}

/// Asks for a certificate of `identity`.
pub(crate) async fn certificate(
    control_plane: &ControlPlane,
    root: &str,
    token: Option<&str>,
    identity: Option<&str>,
    request: IstioCertificateRequest,
) -> Result<IstioCertificateResponse, Status> {
    let fields = identity.map(|id| ("ImpersonatedIdentity".to_owned(), text(id))).into_iter().collect();
    let request = IstioCertificateRequest { metadata: Some(Struct { fields }), ..request };
    let mut client = IstioCertificateServiceClient::new(channel(control_plane, root).await);
    client.create_certificate(authenticated(request, token)).await.map(tonic::Response::into_inner)
}

/// A discovery stream and what it has told.
pub(crate) struct Discovery {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
    /// Encoded resources and their versions by type and name.
    pub(crate) state: BTreeMap<(String, String), (Vec<u8>, String)>,
}

impl Discovery {
    /// Opens a stream as the proxy of `node`, in the namespace `namespace`.
    pub(crate) async fn open(
        control_plane: &ControlPlane,
        root: &str,
        token: Option<&str>,
        namespace: &str,
    ) -> Result<Self, Status> {
        let mut client = AggregatedDiscoveryServiceClient::new(channel(control_plane, root).await);
        let (requests, outgoing) = mpsc::channel(16);
        // The server answers with headers at once, but some servers wait for the first request.
        let id = format!("ztunnel~192.0.2.1~p.{namespace}~{namespace}.svc.cluster.local");
        let fields = [("NODE_NAME".to_owned(), text("node1"))].into();
        let node = Node { id, cluster: "ztunnel".to_owned(), metadata: Some(Struct { fields }) };
        let hello = DeltaDiscoveryRequest {
            node: Some(node),
            type_url: "type.googleapis.com/some.unknown.Type".to_owned(),
            ..Default::default()
        };
        requests.send(hello).await.unwrap();
        let request = authenticated(ReceiverStream::new(outgoing), token);
        let responses = client.delta_aggregated_resources(request).await?.into_inner();
        let mut stream = Self { requests, responses, state: BTreeMap::new() };
        let answer = stream.next().await?;
        assert_eq!((answer.resources.len(), answer.removed_resources.len()), (0, 0));
        Ok(stream)
    }

    /// Subscribes to everything of a type, knowing some of it already.
    pub(crate) async fn subscribe(&self, type_url: &str, known: HashMap<String, String>) {
        let request = DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            initial_resource_versions: known,
            ..Default::default()
        };
        self.requests.send(request).await.unwrap();
    }

    /// Takes and acknowledges the next response.
    pub(crate) async fn next(&mut self) -> Result<DeltaDiscoveryResponse, Status> {
        let message = tokio::time::timeout(DEADLINE, self.responses.message());
        let response = message.await.expect("a response comes")?.expect("the stream goes on");
        let ack = DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            ..Default::default()
        };
        self.requests.send(ack).await.unwrap();
        for resource in &response.resources {
            let key = (response.type_url.clone(), resource.name.clone());
            let body = resource.resource.clone().unwrap().value;
            self.state.insert(key, (body, resource.version.clone()));
        }
        for name in &response.removed_resources {
            self.state.remove(&(response.type_url.clone(), name.clone()));
        }
        Ok(response)
    }

    /// Takes responses until the state is as wanted.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&Self) -> bool) {
        while !wanted(self) {
            self.next().await.unwrap();
        }
    }

    /// A resource's encoded message.
    pub(crate) fn get(&self, type_url: &str, name: &str) -> Option<&[u8]> {
        self.state.get(&(type_url.to_owned(), name.to_owned())).map(|(body, _)| body.as_slice())
    }

    /// Known versions of a type, as a client tells them when it reconnects.
    pub(crate) fn versions(&self, type_url: &str) -> HashMap<String, String> {
        let of_type = self.state.iter().filter(|((kind, _), _)| kind == type_url);
        of_type.map(|((_, name), (_, version))| (name.clone(), version.clone())).collect()
    }
}

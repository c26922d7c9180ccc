//! A control plane that speaks the real protocols, for tests: discovery and certificates over TLS.

use ambit_names::{mesh, type_url};
use ambit_proto::ca::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use ambit_proto::ca::{IstioCertificateRequest, IstioCertificateResponse};
use ambit_proto::discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use ambit_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Resource};
use ambit_proto::{security, workload};
use ambit_runtime::Clock;
use ambit_trust::authority::{Authority, CertificateRequest};
use prost::Message;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, Server};
use tonic::{Request, Response, Status, Streaming};

pub(crate) const TOKEN: &str = "the-proxy-token";

/// What the proxy said.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) node: Option<Node>,
    pub(crate) nacks: Vec<String>,
    pub(crate) acks: usize,
    pub(crate) streams: usize,
    /// Versions named in the first request of the latest stream.
    pub(crate) known: HashMap<String, String>,
    /// Identities asked for, in order.
    pub(crate) certificates: Vec<String>,
}

type Model = BTreeMap<(String, String), (u64, prost_types::Any)>;

pub(crate) struct Control {
    pub(crate) authority: Authority,
    model: watch::Sender<Model>,
    pub(crate) seen: Arc<Mutex<Seen>>,
    pub(crate) lifetime: Mutex<Duration>,
    drop_streams: watch::Sender<u64>,
    next: Mutex<u64>,
}

impl Control {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            authority: Authority::self_signed("test", Clock.wall()).unwrap(),
            model: watch::channel(Model::new()).0,
            seen: Arc::default(),
            lifetime: Mutex::new(Duration::from_secs(3600)),
            drop_streams: watch::channel(0).0,
            next: Mutex::new(0),
        })
    }

    fn put(&self, url: &str, name: &str, value: Vec<u8>) {
        let version = {
            let mut next = self.next.lock().unwrap();
            *next += 1;
            *next
        };
        let body = prost_types::Any { type_url: url.into(), value };
        self.model.send_modify(|model| {
            model.insert((url.into(), name.into()), (version, body));
        });
    }

    pub(crate) fn put_workload(&self, one: workload::Workload) {
        let name = one.uid.clone();
        let address = workload::Address { r#type: Some(workload::address::Type::Workload(one)) };
        self.put(type_url::ADDRESS, &name, address.encode_to_vec());
    }

    pub(crate) fn put_service(&self, one: workload::Service) {
        let name = format!("{}/{}", one.namespace, one.hostname);
        let address = workload::Address { r#type: Some(workload::address::Type::Service(one)) };
        self.put(type_url::ADDRESS, &name, address.encode_to_vec());
    }

    pub(crate) fn put_policy(&self, one: security::Authorization) {
        let name = format!("{}/{}", one.namespace, one.name);
        self.put(type_url::AUTHORIZATION, &name, one.encode_to_vec());
    }

    pub(crate) fn put_raw(&self, url: &str, name: &str, value: Vec<u8>) {
        self.put(url, name, value);
    }

    pub(crate) fn remove(&self, url: &str, name: &str) {
        self.model.send_modify(|model| {
            model.remove(&(url.to_owned(), name.to_owned()));
        });
    }

    /// Ends all discovery streams.
    pub(crate) fn drop_streams(&self) {
        self.drop_streams.send_modify(|count| *count += 1);
    }

    /// Serves on `listener` until dropped.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        let names = ["istiod.istio-system.svc".to_owned(), "127.0.0.1".to_owned()];
        let made = self.authority.issue_server(&names, Duration::from_secs(3600), Clock.wall()).unwrap();
        let chain = CertificateDer::pem_slice_iter(made.cert_pem.as_bytes()).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(made.key_pem.as_bytes()).unwrap();
        let mut config = rustls::ServerConfig::builder_with_provider(ambit_trust::provider::control())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (connections, incoming) = mpsc::channel(16);
        let accept = async move {
            while let Ok((tcp, _)) = listener.accept().await {
                if let Ok(tls) = acceptor.accept(tcp).await {
                    let _ = connections.send(Ok::<_, std::io::Error>(Tls(tls))).await;
                }
            }
        };
        let serve = Server::builder()
            .add_service(AggregatedDiscoveryServiceServer::from_arc(self.clone()))
            .add_service(IstioCertificateServiceServer::from_arc(self))
            .serve_with_incoming(ReceiverStream::new(incoming));
        tokio::select! {
            () = accept => {}
            served = serve => served.unwrap(),
        }
    }
}

fn authenticated<T>(request: &Request<T>) -> Result<(), Status> {
    let header = |name| request.metadata().get(name).and_then(|v| v.to_str().ok());
    if header("authorization") != Some(&format!("Bearer {TOKEN}")) {
        return Err(Status::unauthenticated("wrong token"));
    }
    if header("clusterid") != Some(mesh::CLUSTER_ID) {
        return Err(Status::unauthenticated("wrong cluster"));
    }
    Ok(())
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Control {
    type DeltaAggregatedResourcesStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        authenticated(&request)?;
        self.seen.lock().unwrap().streams += 1;
        let (sender, receiver) = mpsc::channel(16);
        let (mut requests, mut model) = (request.into_inner(), self.model.subscribe());
        let mut dropped = self.drop_streams.subscribe();
        let mut sent: HashMap<String, HashMap<String, String>> = HashMap::new();
        let seen = self.seen.clone();
        tokio::spawn(async move {
            let mut nonce = 0_u64;
            loop {
                let mut due: Vec<String> = vec![];
                tokio::select! {
                    message = requests.message() => {
                        let Ok(Some(message)) = message else { return };
                        if message.response_nonce.is_empty() {
                            sent.insert(message.type_url.clone(), message.initial_resource_versions.clone());
                            due.push(message.type_url.clone());
                        }
                        note(&mut seen.lock().unwrap(), message);
                    }
                    _ = model.changed() => due.extend(sent.keys().cloned()),
                    _ = dropped.changed() => return,
                }
                // Not marked as seen here: after an acknowledgement that would swallow a change nothing was sent for.
                let now = model.borrow().clone();
                // Addresses go out before policies, as the field's control plane sends them.
                due.sort_by_key(|url| url != type_url::ADDRESS);
                for url in due {
                    let known = sent.get_mut(&url).unwrap();
                    let first = nonce == 0 || known.is_empty();
                    let response = delta(&now, &url, known);
                    if first || !response.resources.is_empty() || !response.removed_resources.is_empty() {
                        nonce += 1;
                        let response = DeltaDiscoveryResponse { nonce: nonce.to_string(), ..response };
                        if sender.send(Ok(response)).await.is_err() {
                            return;
                        }
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

fn delta(now: &Model, url: &str, known: &mut HashMap<String, String>) -> DeltaDiscoveryResponse {
    let of_type: BTreeMap<&String, _> =
        now.iter().filter(|((of, _), _)| of == url).map(|((_, name), entry)| (name, entry)).collect();
    let removed: Vec<String> = known.keys().filter(|name| !of_type.contains_key(name)).cloned().collect();
    known.retain(|name, _| of_type.contains_key(name));
    let mut resources = vec![];
    for (name, (version, body)) in of_type {
        let version = version.to_string();
        if known.get(name) != Some(&version) {
            known.insert(name.clone(), version.clone());
            resources.push(Resource {
                name: name.clone(),
                version,
                resource: Some(body.clone()),
                ..Default::default()
            });
        }
    }
    DeltaDiscoveryResponse {
        type_url: url.into(),
        resources,
        removed_resources: removed,
        ..Default::default()
    }
}

fn note(seen: &mut Seen, message: DeltaDiscoveryRequest) {
    if message.response_nonce.is_empty() {
        seen.node = message.node;
        if message.type_url == type_url::ADDRESS {
            seen.known = message.initial_resource_versions;
        }
    } else if let Some(detail) = message.error_detail {
        seen.nacks.push(detail.message);
    } else {
        seen.acks += 1;
    }
}

#[tonic::async_trait]
impl IstioCertificateService for Control {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        authenticated(&request)?;
        let request = request.into_inner();
        let fields = request.metadata.unwrap_or_default().fields;
        let Some(prost_types::value::Kind::StringValue(identity)) =
            fields.get("ImpersonatedIdentity").and_then(|value| value.kind.clone())
        else {
            return Err(Status::unauthenticated("no identity"));
        };
        self.seen.lock().unwrap().certificates.push(identity.clone());
        let lifetime = *self.lifetime.lock().unwrap();
        let refused = |e: ambit_trust::authority::AuthorityError| Status::invalid_argument(e.to_string());
        let csr = CertificateRequest::parse(&request.csr).map_err(refused)?;
        let leaf = self.authority.sign(&csr, &identity, lifetime, Clock.wall()).map_err(refused)?;
        let cert_chain = vec![leaf, self.authority.root_pem().to_owned()];
        Ok(Response::new(IstioCertificateResponse { cert_chain }))
    }
}

/// A TLS connection that tonic's server takes.
struct Tls(TlsStream<TcpStream>);

impl Connected for Tls {
    type ConnectInfo = Option<SocketAddr>;
    fn connect_info(&self) -> Self::ConnectInfo {
        self.0.get_ref().0.peer_addr().ok()
    }
}

impl AsyncRead for Tls {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Tls {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

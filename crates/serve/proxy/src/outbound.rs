//! Connections that a captured pod opens.

use crate::error::ConnectionError;
use crate::pod::Pod;
use crate::relay::{End, relay};
use crate::telemetry::{Direction, Flow, Report, refused_early};
use crate::tunnel::{HANDSHAKE_DEADLINE, Lease, Tunnel};
use ambit_linux::socket;
use ambit_traffic::{Carrier, PoolKey, Route, Workload, is_proxy_port, plan_outbound};
use ambit_trust::tls;
use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::{Method, Request, StatusCode};
use rand::Rng as _;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;

/// Waiting for the peer's proxy to answer a tunnel request: it connects to the application first.
const REQUEST_DEADLINE: std::time::Duration = std::time::Duration::from_secs(20);

/// Serves one captured connection to its end.
pub(crate) async fn serve(pod: Arc<Pod>, app: TcpStream, from: SocketAddr) {
    let dialled = socket::original_destination(&app).or_else(|| app.local_addr().ok());
    let Some(to) = dialled.map(socket::canonical) else { return };
    let mut client = End::tcp("client", app);
    let (source, route) = match pod.while_alive(plan(&pod, to)).await {
        Ok(planned) => planned,
        Err(error) => {
            client.abort();
            return refused_early(Direction::Outbound, (from, to), &error);
        }
    };
    let flow = describe(&source, &route, (from, to));
    let mut report = Report::open(&pod.shared.metrics, pod.shared.clock, flow);
    let work = connect_and_relay(&pod, &mut client, (&source, &route, from), &mut report);
    let outcome = pod.while_alive(work).await;
    if outcome.is_err() {
        client.abort();
    }
    report.close(&outcome);
}

/// Decides where the connection goes.
async fn plan(pod: &Pod, to: SocketAddr) -> Result<(Arc<Workload>, Route), ConnectionError> {
    if to.ip().is_loopback() && is_proxy_port(to.port()) {
        return Err(ConnectionError::Loop(to));
    }
    let source = pod.workload().await?;
    let shared = &pod.shared;
    let state = shared.store.now();
    let route = plan_outbound(&state, &shared.network, &source, to, &mut shared.entropy.rng())?;
    Ok((source, route))
}

fn describe(source: &Arc<Workload>, route: &Route, (from, to): (SocketAddr, SocketAddr)) -> Flow {
    let (target, tunnel, identity) = match &route.carrier {
        Carrier::Hbone { authority, expected } => (*authority, Some(route.connect), expected.first()),
        Carrier::Tcp => (route.connect, None, None),
    };
    let own = |workload: &Arc<Workload>| workload.identity.clone();
    Flow {
        direction: Direction::Outbound,
        source: from,
        source_workload: Some(source.clone()),
        source_identity: identity.map(|_| source.identity.clone()),
        destination: if tunnel.is_some() { target } else { to },
        tunnel,
        destination_workload: route.workload.clone(),
        destination_service: route.service.clone(),
        destination_identity: identity.cloned().and(route.workload.as_ref().map(own)),
    }
}

async fn connect_and_relay(
    pod: &Arc<Pod>,
    client: &mut End,
    (source, route, from): (&Arc<Workload>, &Route, SocketAddr),
    report: &mut Report,
) -> Result<(), ConnectionError> {
    let Carrier::Hbone { authority, expected } = &route.carrier else {
        let mut server = End::tcp("server", pod.connect(route.connect, None).await?);
        return relay_or_abort(client, &mut server, report).await;
    };
    let key = PoolKey {
        source: source.identity.clone(),
        expected: expected.clone(),
        source_address: from.ip(),
        destination: route.connect,
    };
    let lease = pod.pool.checkout(&key, dial(pod, &key)).await?;
    report.destination_proved(lease.tunnel().peer.clone());
    let request = tunnel_request(*authority, source, route, from, pod.shared.entropy.rng().random());
    let (receive, send) = open_stream(&lease, request, route.connect).await?;
    let mut server = End::stream(receive, send);
    relay_or_abort(client, &mut server, report).await
}

async fn relay_or_abort(client: &mut End, server: &mut End, report: &Report) -> Result<(), ConnectionError> {
    let outcome = relay(client, server, &report.moved).await;
    if outcome.is_err() {
        server.abort();
    }
    Ok(outcome?)
}

/// Opens a new tunnel connection with the certificate of the source.
async fn dial(pod: &Arc<Pod>, key: &PoolKey) -> Result<Tunnel, ConnectionError> {
    let held = pod.certificate(&key.source).await?;
    let config = tls::client_config(&held.certificate, key.expected.clone())
        .map_err(|e| ConnectionError::Tls { with: key.destination, detail: e.to_string() })?;
    let tcp = pod.connect(key.destination, None).await?;
    let driver = (pod.shared.clock, &pod.tasks, &pod.kill);
    Tunnel::establish(tcp, key.destination, config, pod.shared.settings.windows, driver).await
}

fn tunnel_request(
    authority: SocketAddr,
    source: &Workload,
    route: &Route,
    from: SocketAddr,
    (trace, span): (u128, u64),
) -> Request<()> {
    let host =
        route.service.as_ref().map(|service| format!(";host={}", service.hostname)).unwrap_or_default();
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    let mut parts = http::uri::Parts::default();
    parts.authority = authority.to_string().parse().ok();
    *request.uri_mut() = http::Uri::from_parts(parts).unwrap_or_default();
    let headers = [
        ("baggage", baggage(source)),
        ("forwarded", format!("for=\"{from}\"{host}")),
        ("traceparent", format!("00-{trace:032x}-{span:016x}-00")),
    ];
    for (name, value) in headers {
        // A name that is no header value would only lose telemetry.
        if let Ok(value) = value.parse() {
            request.headers_mut().insert(name, value);
        }
    }
    request
}

/// Telemetry of the source for the destination's proxy; empty fields are left out.
fn baggage(source: &Workload) -> String {
    let fields = [
        ("k8s.cluster.name".to_owned(), source.cluster.as_str()),
        ("k8s.namespace.name".to_owned(), &*source.namespace),
        (format!("k8s.{}.name", source.workload_type), source.workload_name.as_str()),
        ("service.name".to_owned(), source.canonical_name.as_str()),
        ("service.version".to_owned(), source.canonical_revision.as_str()),
        ("cloud.region".to_owned(), source.locality.region.as_str()),
        ("cloud.availability_zone".to_owned(), source.locality.zone.as_str()),
    ];
    let given = fields.iter().filter(|(_, value)| !value.is_empty());
    given.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

async fn open_stream(
    lease: &Lease,
    request: Request<()>,
    with: SocketAddr,
) -> Result<(RecvStream, SendStream<Bytes>), ConnectionError> {
    let failed = |e: h2::Error| ConnectionError::Http2 { with, detail: e.to_string() };
    let late = || ConnectionError::Http2 {
        with,
        detail: format!("no answer to the tunnel request within {} s", REQUEST_DEADLINE.as_secs()),
    };
    let work = async {
        let mut ready = tokio::time::timeout(HANDSHAKE_DEADLINE, lease.ready())
            .await
            .map_err(|_| late())?
            .map_err(failed)?;
        let (response, send) = ready.send_request(request, false).map_err(failed)?;
        let response = response.await.map_err(failed)?;
        if response.status() != StatusCode::OK {
            return Err(ConnectionError::Status { with, status: response.status().as_u16() });
        }
        Ok((response.into_body(), send))
    };
    tokio::time::timeout(REQUEST_DEADLINE, work).await.unwrap_or_else(|_| Err(late()))
}

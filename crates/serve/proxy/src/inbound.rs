//! Tunnels that peers open to a captured pod.

use crate::error::ConnectionError;
use crate::pod::Pod;
use crate::relay::{End, relay};
use crate::telemetry::{Direction, Flow, Report, refused_early};
use crate::tunnel::{HANDSHAKE_DEADLINE, SEND_BUFFER_BYTES, unanswered};
use ambit_linux::socket;
use ambit_traffic::{Identity, Peer, Workload, plan_inbound};
use ambit_trust::tls;
use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Connection, SendResponse};
use http::{Request, Response, StatusCode};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::debug;

/// Streams of one tunnel connection. Source: the field's node proxy.
const STREAMS_MAX: u32 = 200;
/// Largest header list of a request, in bytes. Source: as above.
const HEADER_LIST_BYTES_MAX: u32 = 64 * 1024;

/// A peer that has proven who it is.
#[derive(Debug, Clone)]
struct Client {
    address: SocketAddr,
    identity: Option<Identity>,
    /// Where it connected to: the pod.
    local: SocketAddr,
}

/// Serves one tunnel connection to its end.
pub(crate) async fn serve(pod: Arc<Pod>, tcp: TcpStream, from: SocketAddr) {
    let dialled = socket::original_destination(&tcp).or_else(|| tcp.local_addr().ok());
    let Some(local) = dialled.map(socket::canonical) else { return };
    match pod.while_alive(accept(&pod, tcp, (from, local))).await {
        Ok((client, connection)) => serve_streams(&pod, client, connection).await,
        Err(error) => refused_early(Direction::Inbound, (from, local), &error),
    }
}

async fn accept(
    pod: &Pod,
    tcp: TcpStream,
    (from, local): (SocketAddr, SocketAddr),
) -> Result<(Client, Connection<TlsStream<TcpStream>, Bytes>), ConnectionError> {
    let workload = pod.workload().await?;
    let held = pod.certificate(&workload.identity).await?;
    let tls_failed = |detail: String| ConnectionError::Tls { with: from, detail };
    let late = || format!("no answer within {} s", HANDSHAKE_DEADLINE.as_secs());
    let config = held.server_config().map_err(|e| tls_failed(e.to_string()))?;
    let stream = tokio::time::timeout(HANDSHAKE_DEADLINE, TlsAcceptor::from(config).accept(tcp))
        .await
        .map_err(|_| tls_failed(late()))?
        .map_err(|e| tls_failed(e.to_string()))?;
    let identity = tls::peer_identity(stream.get_ref().1.peer_certificates());
    let windows = pod.shared.settings.windows;
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .max_frame_size(windows.frame)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES);
    let http2_failed = |detail: String| ConnectionError::Http2 { with: from, detail };
    let connection = tokio::time::timeout(HANDSHAKE_DEADLINE, builder.handshake(stream))
        .await
        .map_err(|_| http2_failed(late()))?
        .map_err(|e| http2_failed(e.to_string()))?;
    Ok((Client { address: from, identity, local }, connection))
}

async fn serve_streams(
    pod: &Arc<Pod>,
    client: Client,
    mut connection: Connection<TlsStream<TcpStream>, Bytes>,
) {
    let mut dead = pin!(unanswered(connection.ping_pong()));
    let mut draining = false;
    loop {
        // `accept` is cancel safe: it only polls the connection.
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            () = pod.drain.cancelled(), if !draining => {
                draining = true;
                connection.graceful_shutdown();
                continue;
            }
            () = &mut dead => return debug!(peer = %client.address, "tunnel connection gave no sign of life"),
            () = pod.kill.cancelled() => return connection.abrupt_shutdown(h2::Reason::NO_ERROR),
        };
        match accepted {
            Some(Ok((request, respond))) => {
                pod.tasks.spawn(serve_stream(pod.clone(), client.clone(), request, respond));
            }
            Some(Err(error)) => return debug!(peer = %client.address, %error, "tunnel connection broke"),
            None => return,
        }
    }
}

async fn serve_stream(
    pod: Arc<Pod>,
    client: Client,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let authority = request.uri().authority().map_or("", |authority| authority.as_str());
    let planned = match pod.while_alive(pod.workload()).await {
        Ok(workload) => {
            let (state, asked) = (pod.shared.store.now(), (request.method().as_str(), authority));
            plan_inbound(&state, &pod.shared.network, &workload, asked, client.local.ip())
                .map(|to| (workload, to))
                .map_err(ConnectionError::from)
        }
        Err(error) => Err(error),
    };
    match planned {
        Err(error) => {
            refuse(&mut respond, &error);
            refused_early(Direction::Inbound, (client.address, client.local), &error);
        }
        Ok((workload, to)) => {
            let report =
                Report::open(&pod.shared.metrics, pod.shared.clock, describe(&pod, &client, workload, to));
            let work = carry(&pod, &client, to, (request, &mut respond), &report);
            let outcome = pod.while_alive(work).await;
            report.close(&outcome);
        }
    }
}

fn describe(pod: &Pod, client: &Client, workload: Arc<Workload>, to: SocketAddr) -> Flow {
    Flow {
        direction: Direction::Inbound,
        source: client.address,
        source_workload: pod.workload_at(client.address.ip()),
        source_identity: client.identity.clone(),
        destination: to,
        tunnel: Some(client.local),
        destination_identity: Some(workload.identity.clone()),
        destination_workload: Some(workload),
        destination_service: None,
    }
}

fn refuse(respond: &mut SendResponse<Bytes>, error: &ConnectionError) {
    let status = match error {
        ConnectionError::Request(refused) => refused.status(),
        ConnectionError::Denied(_) => 401,
        _ => 503,
    };
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    // The peer may have gone.
    let _ = respond.send_response(response, true);
}

async fn carry(
    pod: &Arc<Pod>,
    client: &Client,
    to: SocketAddr,
    (request, respond): (Request<RecvStream>, &mut SendResponse<Bytes>),
    report: &Report,
) -> Result<(), ConnectionError> {
    let peer = Peer { source: client.address.ip(), identity: client.identity.clone(), destination: to };
    let connected = async {
        let guard = pod.admit(&peer).await?;
        // The application is connected to first, so that 200 means that it was reached.
        let server = pod.connect(to, Some(client.address.ip())).await?;
        Ok((guard, server))
    };
    let (mut guard, server) = match connected.await {
        Ok(connected) => connected,
        Err(error) => {
            refuse(respond, &error);
            return Err(error);
        }
    };
    let failed = |e: h2::Error| ConnectionError::Http2 { with: client.address, detail: e.to_string() };
    let send = respond.send_response(Response::new(()), false).map_err(failed)?;
    let mut client = End::stream(request.into_body(), send);
    let mut server = End::tcp("server", server);
    let outcome = tokio::select! {
        ended = relay(&mut client, &mut server, &report.moved) => ended.map_err(ConnectionError::from),
        denial = guard.denied() => Err(ConnectionError::PolicyChanged(denial)),
    };
    if outcome.is_err() {
        client.abort();
        server.abort();
    }
    outcome
}

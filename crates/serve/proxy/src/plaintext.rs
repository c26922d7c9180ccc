//! Plain connections that arrive at a captured pod.

use crate::error::ConnectionError;
use crate::pod::Pod;
use crate::relay::{End, relay};
use crate::telemetry::{Direction, Flow, Report, refused_early};
use ambit_linux::socket;
use ambit_traffic::{Peer, is_proxy_port};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;

/// Serves one plain connection to its end.
pub(crate) async fn serve(pod: Arc<Pod>, tcp: TcpStream, from: SocketAddr) {
    let dialled = socket::original_destination(&tcp).or_else(|| tcp.local_addr().ok());
    let Some(to) = dialled.map(socket::canonical) else { return };
    let mut client = End::tcp("client", tcp);
    if is_proxy_port(to.port()) {
        client.abort();
        return refused_early(Direction::Inbound, (from, to), &ConnectionError::Loop(to));
    }
    let workload = match pod.while_alive(pod.workload()).await {
        Ok(workload) => workload,
        Err(error) => {
            client.abort();
            return refused_early(Direction::Inbound, (from, to), &error);
        }
    };
    let flow = Flow {
        direction: Direction::Inbound,
        source: from,
        source_workload: pod.workload_at(from.ip()),
        source_identity: None,
        destination: to,
        tunnel: None,
        destination_workload: Some(workload),
        destination_service: None,
        destination_identity: None,
    };
    let report = Report::open(&pod.shared.metrics, pod.shared.clock, flow);
    let outcome = pod.while_alive(carry(&pod, &mut client, (from, to), &report)).await;
    if outcome.is_err() {
        client.abort();
    }
    report.close(&outcome);
}

async fn carry(
    pod: &Arc<Pod>,
    client: &mut End,
    (from, to): (SocketAddr, SocketAddr),
    report: &Report,
) -> Result<(), ConnectionError> {
    let peer = Peer { source: from.ip(), identity: None, destination: to };
    let mut guard = pod.admit(&peer).await?;
    let mut server = End::tcp("server", pod.connect(to, Some(from.ip())).await?);
    let outcome = tokio::select! {
        ended = relay(client, &mut server, &report.moved) => ended.map_err(ConnectionError::from),
        denial = guard.denied() => Err(ConnectionError::PolicyChanged(denial)),
    };
    if outcome.is_err() {
        server.abort();
    }
    outcome
}

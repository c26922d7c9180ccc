//! What is reported of each connection: metrics, and one line in the access log.

use crate::error::ConnectionError;
use crate::metrics::{Metrics, Reporter, TrafficLabels};
use crate::relay::Moved;
use ambit_runtime::Clock;
use ambit_traffic::{Identity, Service, Workload};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tracing::{debug, error, info, warn};

/// Which side of a connection this proxy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Of the destination.
    Inbound,
    /// Of the source.
    Outbound,
}

impl Direction {
    fn reporter(self) -> &'static str {
        match self {
            Self::Inbound => "destination",
            Self::Outbound => "source",
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }
}

/// The facts of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    pub(crate) direction: Direction,
    pub(crate) source: SocketAddr,
    pub(crate) source_workload: Option<Arc<Workload>>,
    /// Proven, or shown by us, with mutual TLS only.
    pub(crate) source_identity: Option<Identity>,
    pub(crate) destination: SocketAddr,
    /// The tunnel's destination.
    pub(crate) tunnel: Option<SocketAddr>,
    pub(crate) destination_workload: Option<Arc<Workload>>,
    pub(crate) destination_service: Option<Arc<Service>>,
    pub(crate) destination_identity: Option<Identity>,
}

/// A connection that is being reported.
#[derive(Debug)]
pub(crate) struct Report {
    flow: Flow,
    metrics: Arc<Metrics>,
    clock: Clock,
    start: Instant,
    pub(crate) moved: Moved,
}

/// The fields of the access log that are the same however a connection ends.
macro_rules! access {
    ($level:ident, $flow:expr, $message:literal, $($more:tt)*) => {{
        let flow: &Flow = $flow;
        let (source, destination) = (flow.source_workload.as_deref(), flow.destination_workload.as_deref());
        $level!(
            target: "access",
            direction = flow.direction.word(),
            src.addr = %flow.source,
            src.workload = source.map(|w| w.name.as_str()),
            src.namespace = source.map(|w| &*w.namespace),
            src.cluster = source.map(|w| w.cluster.as_str()),
            src.identity = flow.source_identity.as_ref().map(tracing::field::display),
            dst.addr = %flow.destination,
            dst.hbone_addr = flow.tunnel.map(tracing::field::display),
            dst.service = flow.destination_service.as_ref().map(|s| &*s.hostname),
            dst.workload = destination.map(|w| w.name.as_str()),
            dst.namespace = destination.map(|w| &*w.namespace),
            dst.cluster = destination.map(|w| w.cluster.as_str()),
            dst.identity = flow.destination_identity.as_ref().map(tracing::field::display),
            $($more)*
            $message
        )
    }};
}

impl Report {
    /// Reports the start of a connection.
    pub(crate) fn open(metrics: &Arc<Metrics>, clock: Clock, flow: Flow) -> Self {
        metrics.opened.get_or_create(&labels(&flow, "-")).inc();
        metrics.sockets_open.get_or_create(&Reporter { reporter: flow.direction.reporter() }).inc();
        access!(debug, &flow, "connection opened",);
        Self { metrics: metrics.clone(), clock, start: clock.now(), moved: Moved::default(), flow }
    }

    /// Notes who the other end has proven to be.
    pub(crate) fn destination_proved(&mut self, identity: Option<Identity>) {
        self.flow.destination_identity = identity;
    }

    /// Reports its end.
    pub(crate) fn close(self, outcome: &Result<(), ConnectionError>) {
        let flag = outcome.as_ref().err().map_or("-", ConnectionError::flag);
        let labels = labels(&self.flow, flag);
        let (up, down) = (self.moved.up.load(Ordering::Relaxed), self.moved.down.load(Ordering::Relaxed));
        self.metrics.received_bytes.get_or_create(&labels).inc_by(up);
        self.metrics.sent_bytes.get_or_create(&labels).inc_by(down);
        self.metrics.closed.get_or_create(&labels).inc();
        if flag != "-" {
            self.metrics.failed.get_or_create(&labels).inc();
        }
        let reporter = Reporter { reporter: self.flow.direction.reporter() };
        self.metrics.sockets_open.get_or_create(&reporter).dec();
        // The log speaks of what the pod at hand sent, whichever side it is.
        let (sent, received) = match self.flow.direction {
            Direction::Outbound => (up, down),
            Direction::Inbound => (down, up),
        };
        let duration = format!("{}ms", self.clock.now().duration_since(self.start).as_millis());
        log(&self.flow, (sent, received), &duration, outcome.as_ref().err());
    }
}

fn log(flow: &Flow, (sent, received): (u64, u64), duration: &str, failure: Option<&ConnectionError>) {
    match failure {
        None => access!(
            info,
            flow,
            "connection complete",
            bytes_sent = sent,
            bytes_recv = received,
            duration = duration,
        ),
        Some(failure) => access!(error, flow, "connection failed",
            bytes_sent = sent, bytes_recv = received, duration = duration, error = %failure,),
    }
}

/// Reports a connection that was refused before anything was known of its destination.
pub(crate) fn refused_early(
    direction: Direction,
    (source, destination): (SocketAddr, SocketAddr),
    failure: &ConnectionError,
) {
    let flow = Flow {
        direction,
        source,
        source_workload: None,
        source_identity: None,
        destination,
        tunnel: None,
        destination_workload: None,
        destination_service: None,
        destination_identity: None,
    };
    access!(warn, &flow, "connection failed", error = %failure,);
}

fn labels(flow: &Flow, flag: &'static str) -> TrafficLabels {
    let known = |text: Option<&str>| text.filter(|t| !t.is_empty()).unwrap_or("unknown").to_owned();
    let principal = |identity: Option<&Identity>| known(identity.map(Identity::to_string).as_deref());
    let (source, destination) = (flow.source_workload.as_deref(), flow.destination_workload.as_deref());
    let service = flow.destination_service.as_deref();
    let name = |workload: Option<&Workload>| known(workload.map(|w| w.workload_name.as_str()));
    let canonical = |workload: Option<&Workload>| known(workload.map(|w| w.canonical_name.as_str()));
    let revision = |workload: Option<&Workload>| known(workload.map(|w| w.canonical_revision.as_str()));
    let namespace = |workload: Option<&Workload>| known(workload.map(|w| &*w.namespace));
    let cluster = |workload: Option<&Workload>| known(workload.map(|w| w.cluster.as_str()));
    let region =
        |workload: Option<&Workload>| workload.map_or_else(String::new, |w| w.locality.region.clone());
    let zone = |workload: Option<&Workload>| workload.map_or_else(String::new, |w| w.locality.zone.clone());
    let secured = flow.source_identity.is_some() && flow.destination_identity.is_some();
    TrafficLabels {
        reporter: flow.direction.reporter(),
        source_workload: name(source),
        source_canonical_service: canonical(source),
        source_canonical_revision: revision(source),
        source_workload_namespace: namespace(source),
        source_principal: principal(flow.source_identity.as_ref()),
        source_app: canonical(source),
        source_version: revision(source),
        source_cluster: cluster(source),
        destination_service: known(service.map(|s| &*s.hostname)),
        destination_service_namespace: known(service.map(|s| &*s.namespace)),
        destination_service_name: known(service.map(|s| s.name.as_str())),
        destination_workload: name(destination),
        destination_canonical_service: canonical(destination),
        destination_canonical_revision: revision(destination),
        destination_workload_namespace: namespace(destination),
        destination_principal: principal(flow.destination_identity.as_ref()),
        destination_app: canonical(destination),
        destination_version: revision(destination),
        destination_cluster: cluster(destination),
        request_protocol: "tcp",
        response_flags: flag,
        connection_security_policy: if secured { "mutual_tls" } else { "unknown" },
        source_region: region(source),
        source_zone: zone(source),
        destination_region: region(destination),
        destination_zone: zone(destination),
    }
}

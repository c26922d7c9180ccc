//! The incremental discovery service.

use crate::authentication::{Authenticator, Caller};
use crate::metrics::{Metrics, OpenStream};
use crate::session::Session;
use crate::snapshot::Snapshot;
use ambit_proto::discovery::aggregated_discovery_service_server::AggregatedDiscoveryService;
use ambit_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node};
use ambit_runtime::Shutdown;
use futures::Stream;
use prost_types::value::Kind;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};
use tracing::{debug, info};

/// Time a new stream has to say who it is.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves snapshots to whoever has authenticated.
pub(crate) struct Discovery {
    snapshots: watch::Receiver<Arc<Snapshot>>,
    authenticator: Authenticator,
    metrics: Metrics,
    shutdown: Shutdown,
}

impl Discovery {
    pub(crate) fn new(
        snapshots: watch::Receiver<Arc<Snapshot>>,
        authenticator: Authenticator,
        metrics: Metrics,
        shutdown: Shutdown,
    ) -> Self {
        Self { snapshots, authenticator, metrics, shutdown }
    }
}

type Responses = Pin<Box<dyn Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Discovery {
    type DeltaAggregatedResourcesStream = Responses;

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let caller = self.authenticator.authenticate(request.metadata()).await?;
        let stream = DiscoveryStream {
            requests: request.into_inner(),
            snapshots: self.snapshots.clone(),
            shutdown: self.shutdown.clone(),
            caller,
            session: None,
            _open: self.metrics.stream(),
            metrics: self.metrics.clone(),
            ready: VecDeque::new(),
        };
        // The stream is driven by its reader: a slow client is asked for no more, and finds only the newest snapshot
        // when it comes back.
        let responses = futures::stream::unfold(Some(stream), async |stream| {
            let mut stream = stream?;
            match stream.next().await {
                Ok(Some(response)) => Some((Ok(response), Some(stream))),
                Ok(None) => None,
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(Box::pin(responses)))
    }
}

struct DiscoveryStream {
    requests: Streaming<DeltaDiscoveryRequest>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    shutdown: Shutdown,
    caller: Caller,
    session: Option<Session>,
    ready: VecDeque<DeltaDiscoveryResponse>,
    metrics: Metrics,
    _open: OpenStream,
}

impl DiscoveryStream {
    /// The next response; none when the client or the server ends the stream.
    async fn next(&mut self) -> Result<Option<DeltaDiscoveryResponse>, Status> {
        loop {
            if let Some(response) = self.ready.pop_front() {
                self.metrics.responded(&response.type_url);
                return Ok(Some(response));
            }
            let Some(session) = &mut self.session else {
                match self.first_request().await? {
                    Some(request) => self.answer(&request)?,
                    None => return Ok(None),
                }
                continue;
            };
            // Every arm is cancel safe: a message or a change that is not taken stays where it is.
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return Ok(None),
                request = self.requests.message() => match request? {
                    Some(request) => self.answer(&request)?,
                    None => return Ok(None),
                },
                changed = self.snapshots.changed() => {
                    changed.map_err(|_| Status::unavailable("the control plane is stopping"))?;
                    let snapshot = self.snapshots.borrow_and_update().clone();
                    self.ready.extend(session.on_snapshot(&snapshot));
                }
            }
        }
    }

    /// Waits for the client to say who it is, and checks that it may.
    async fn first_request(&mut self) -> Result<Option<DeltaDiscoveryRequest>, Status> {
        let request = tokio::select! {
            () = self.shutdown.cancelled() => return Ok(None),
            request = tokio::time::timeout(FIRST_REQUEST_TIMEOUT, self.requests.message()) => request
                .map_err(|_| Status::deadline_exceeded("no request on a new stream"))??,
        };
        let Some(request) = request else { return Ok(None) };
        let node = request.node.clone().unwrap_or_default();
        check_node(&self.caller, &node).map_err(|why| {
            debug!(node = %node.id, caller = ?self.caller, why, "refused a discovery client");
            Status::permission_denied("the client's node does not fit its identity")
        })?;
        info!(client = %node.id, "discovery client connected");
        let node_name = text(&node, "NODE_NAME").unwrap_or_default().to_owned();
        self.session = Some(Session::new(node.id, node_name));
        Ok(Some(request))
    }

    fn answer(&mut self, request: &DeltaDiscoveryRequest) -> Result<(), Status> {
        if request.error_detail.is_some() {
            self.metrics.rejected(&request.type_url);
        }
        let snapshot = self.snapshots.borrow_and_update().clone();
        let Some(session) = &mut self.session else { return Ok(()) };
        // All types first move to this snapshot, so that none is ahead of a type it depends on.
        self.ready.extend(session.on_snapshot(&snapshot));
        self.ready.extend(session.on_request(request, &snapshot)?);
        Ok(())
    }
}

/// A text value of the node's metadata.
fn text<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    match node.metadata.as_ref()?.fields.get(key)?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text),
        _ => None,
    }
}

/// Whether the caller may be this node: same namespace and, if it names one, same service account.
/// Source: Istio's check of discovery identities.
fn check_node(caller: &Caller, node: &Node) -> Result<(), &'static str> {
    let parts: Vec<&str> = node.id.split('~').collect();
    let [_type, _address, _pod, domain] = parts[..] else {
        return Err("its id is not type~address~pod.namespace~domain");
    };
    if domain.split('.').next() != Some(caller.namespace.as_str()) {
        return Err("it is in another namespace");
    }
    match text(node, "SERVICE_ACCOUNT") {
        Some(account) if account != caller.service_account => Err("it has another service account"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost_types::{Struct, Value};

    #[track_caller]
    fn check(id: &str, account: Option<&str>, expected: Result<(), &str>) {
        let caller = Caller { namespace: "mesh".into(), service_account: "proxy".into(), pod: None };
        let value = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
        let fields = account.map(|a| ("SERVICE_ACCOUNT".to_owned(), value(a))).into_iter().collect();
        let node = Node { id: id.into(), cluster: String::new(), metadata: Some(Struct { fields }) };
        assert_eq!(check_node(&caller, &node), expected);
    }

    #[test]
    fn a_node_must_fit_its_callers_identity() {
        let good = "ztunnel~1.1.1.1~p.mesh~mesh.svc.cluster.local";
        check(good, None, Ok(()));
        check(good, Some("proxy"), Ok(()));
        check(good, Some("other"), Err("it has another service account"));
        check("ztunnel~1.1.1.1~p.a~a.svc.cluster.local", None, Err("it is in another namespace"));
        check("ztunnel", None, Err("its id is not type~address~pod.namespace~domain"));
        check("", None, Err("its id is not type~address~pod.namespace~domain"));
    }
}

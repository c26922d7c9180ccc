//! The client of incremental discovery: keeps the proxy's knowledge equal to the control plane's.

use crate::control::{self, CONNECT_DEADLINE, causes};
use crate::error::ControlError;
use crate::metrics::{Metrics, Reason, Url};
use crate::settings::Settings;
use crate::store::Writer;
use ambit_names::type_url;
use ambit_proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use ambit_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node};
use ambit_proto::rpc;
use ambit_runtime::{Backoff, Blocker, Shutdown};
use ambit_traffic::Change;
use prost_types::{Struct, Value, value::Kind};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tracing::{debug, info, warn};

/// What is asked for, all of each.
const TYPES: [&str; 2] = [type_url::ADDRESS, type_url::AUTHORIZATION];
/// Delays between streams. Source: the field's node proxy.
const DELAYS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(15));
/// Largest response, in bytes. Source: as above.
const RESPONSE_BYTES_MAX: usize = 200 << 20;
/// Answers that wait to be sent: one response is handled at a time.
const REQUESTS_MAX: usize = 8;
/// Refused resources named in one answer; the rest are counted.
const FAULTS_SHOWN_MAX: usize = 10;

/// The client.
#[derive(Debug)]
pub(crate) struct Discovery {
    settings: Arc<Settings>,
    writer: Writer,
    metrics: Arc<Metrics>,
    /// Blocks readiness until every type has been acknowledged once.
    blocker: Option<Blocker>,
    acknowledged: BTreeSet<String>,
    versions: BTreeMap<String, HashMap<String, String>>,
}

impl Discovery {
    pub(crate) fn new(
        settings: Arc<Settings>,
        writer: Writer,
        metrics: Arc<Metrics>,
        blocker: Blocker,
    ) -> Self {
        let versions = TYPES.into_iter().map(|url| (url.to_owned(), HashMap::new())).collect();
        Self { settings, writer, metrics, blocker: Some(blocker), acknowledged: BTreeSet::new(), versions }
    }

    /// Follows the control plane until shutdown. What is known stays in force while it cannot be reached.
    pub(crate) async fn run(mut self, shutdown: Shutdown) {
        let mut delays = Backoff::new(DELAYS.0, DELAYS.1);
        loop {
            let ended = tokio::select! {
                ended = self.stream(&mut delays) => ended,
                () = shutdown.cancelled() => return,
            };
            let delay = delays.next_delay();
            let reason = termination(&ended);
            self.metrics.discovery_terminations.get_or_create(&Reason { reason }).inc();
            match ended {
                Ok(()) => debug!(retry_in = ?delay, "discovery stream ended"),
                Err(error) => {
                    warn!(error = %causes(&error), retry_in = ?delay, "no discovery, using what is known");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    /// One stream, to its end.
    async fn stream(&mut self, delays: &mut Backoff) -> Result<(), ControlError> {
        let (requests, outbox) = mpsc::channel(REQUESTS_MAX);
        for url in TYPES {
            // The queue is empty and larger than the number of types.
            let _ = requests.try_send(self.subscription(url));
        }
        let mut request = tonic::Request::new(ReceiverStream::new(outbox));
        control::authenticate(&self.settings, &mut request).await?;
        let channel = control::connect(&self.settings.control_plane).await?;
        let mut client =
            AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
        let opened = tokio::time::timeout(CONNECT_DEADLINE, client.delta_aggregated_resources(request));
        let mut responses = opened.await.map_err(|_| ControlError::Deadline(CONNECT_DEADLINE))??.into_inner();
        info!(address = %self.settings.control_plane.address, "connected to the control plane");
        // Silence is normal here; the transport tests a silent connection by itself.
        while let Some(response) = responses.message().await? {
            delays.reset();
            if requests.send(self.handle(response)).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    fn subscription(&self, url: &str) -> DeltaDiscoveryRequest {
        DeltaDiscoveryRequest {
            node: Some(node(&self.settings)),
            type_url: url.to_owned(),
            initial_resource_versions: self.versions.get(url).cloned().unwrap_or_default(),
            ..Default::default()
        }
    }

    /// Applies a response; gives the answer to it.
    fn handle(&mut self, response: DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
        let DeltaDiscoveryResponse { resources, type_url, nonce, removed_resources, .. } = response;
        let url = Url { url: type_url.clone() };
        let bytes: usize = resources.iter().filter_map(|one| Some(one.resource.as_ref()?.value.len())).sum();
        let mut faults = Vec::new();
        match self.versions.get_mut(&type_url) {
            Some(versions) => {
                self.metrics.discovery_messages.get_or_create(&url).inc();
                self.metrics.discovery_bytes.get_or_create(&url).inc_by(bytes as u64);
                self.writer.update(|state| {
                    for name in removed_resources {
                        versions.remove(&name);
                        // Only a type that was not asked for is refused, and this one was.
                        let _ = state.apply(&Change::Remove { type_url: type_url.clone(), name });
                    }
                    for resource in resources {
                        let (name, body) = (resource.name, resource.resource.unwrap_or_default().value);
                        let put =
                            Change::Put { type_url: type_url.clone(), name: name.clone(), body: body.into() };
                        match state.apply(&put) {
                            Ok(()) => drop(versions.insert(name, resource.version)),
                            Err(fault) => faults.push(format!("{name}: {fault}")),
                        }
                    }
                });
            }
            // Types that nobody asked for are acknowledged and left alone.
            None => debug!(%type_url, "ignored a resource type that was not asked for"),
        }
        if faults.is_empty() && self.versions.contains_key(&type_url) {
            self.acknowledged.insert(type_url.clone());
            if self.acknowledged.len() == TYPES.len() {
                self.blocker = None;
            }
        }
        let error_detail = (!faults.is_empty()).then(|| {
            warn!(%type_url, ?faults, "refused resources, kept what was known of them");
            let more = faults.len().saturating_sub(FAULTS_SHOWN_MAX);
            faults.truncate(FAULTS_SHOWN_MAX);
            let tail = if more > 0 { format!("; and {more} more") } else { String::new() };
            rpc::Status { code: 0, message: format!("{}{tail}", faults.join("; ")) }
        });
        DeltaDiscoveryRequest { type_url, response_nonce: nonce, error_detail, ..Default::default() }
    }
}

/// Word for the end of a stream in metrics.
fn termination(ended: &Result<(), ControlError>) -> &'static str {
    use tonic::Code;
    match ended {
        Ok(()) => "Complete",
        Err(ControlError::Status {
            code: Code::Cancelled | Code::Unknown | Code::DeadlineExceeded | Code::Unavailable,
            ..
        }) => "Reconnect",
        Err(ControlError::Status { .. }) => "Error",
        Err(_) => "ConnectionError",
    }
}

/// How the proxy introduces itself. The word `ztunnel` selects what control planes generate for node proxies.
fn node(settings: &Settings) -> Node {
    let Settings { pod_name, pod_namespace, .. } = settings;
    let ip = settings.instance_ip.map_or_else(|| "1.1.1.1".to_owned(), |ip| ip.to_string());
    let fixed = [
        ("NAME", pod_name.clone()),
        ("NAMESPACE", pod_namespace.clone()),
        ("INSTANCE_IPS", ip.clone()),
        ("NODE_NAME", settings.node_name.clone()),
        ("CLUSTER_ID", settings.cluster_id.clone()),
        ("SERVICE_ACCOUNT", settings.service_account.clone()),
    ];
    let fixed = fixed.into_iter().filter(|(_, value)| !value.is_empty());
    let own = settings.metadata.iter().map(|(key, value)| (key.clone(), value.clone()));
    let text = |value| Value { kind: Some(Kind::StringValue(value)) };
    let fields = own.chain(fixed.map(|(key, value)| (key.to_owned(), value)));
    Node {
        id: format!("ztunnel~{ip}~{pod_name}.{pod_namespace}~{pod_namespace}.svc.cluster.local"),
        cluster: String::new(),
        metadata: Some(Struct { fields: fields.map(|(key, value)| (key, text(value))).collect() }),
    }
}

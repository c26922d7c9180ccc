//! The client of the node agent: it hands over pods, each with its network namespace, and takes them back.

use crate::error::Error;
use crate::listeners;
use crate::pod::{Pod, Shared};
use ambit_linux::netns::NetNs;
use ambit_linux::seqpacket::{Connection, Packet};
use ambit_proto::zds::{
    Ack, AddWorkload, Version, WorkloadRequest, WorkloadResponse, ZdsHello, workload_request::Payload,
    workload_response,
};
use ambit_runtime::{Backoff, Blocker, Readiness, Shutdown};
use ambit_traffic::LocalName;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

/// Largest packet, in bytes. Source: the protocol's both sides.
const PACKET_BYTES_MAX: usize = 1024;
/// Longest error in an answer, in bytes: the whole answer must fit a packet.
const ERROR_BYTES_MAX: usize = 900;
/// Delays between attempts to reach the agent. Source: the field's node proxy.
const DELAYS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(15));
/// Time for the agent to take a packet.
const SEND_DEADLINE: Duration = Duration::from_secs(5);
/// Between attempts to start pods that could not be started. Source: the field's node proxy.
const PENDING_RETRY: Duration = Duration::from_secs(5);
/// What readiness waits for.
const BLOCKER: &str = "hand-over of pods by the node agent";

/// Pods of this node, as the agent says.
#[derive(Debug)]
pub(crate) struct Handover {
    shared: Arc<Shared>,
    readiness: Readiness,
    blocker: Option<Blocker>,
    pods: BTreeMap<String, Arc<Pod>>,
    pending: BTreeMap<String, Waiting>,
    /// Names given since the connection began; none once the snapshot is complete.
    named: Option<BTreeSet<String>>,
    stopping: JoinSet<()>,
}

/// A pod that could not be started yet.
#[derive(Debug)]
struct Waiting {
    name: LocalName,
    namespace: NetNs,
}

/// Why a connection to the agent is given up.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Socket(#[from] ambit_linux::Error),
    #[error("the agent does not take an answer within {} s", SEND_DEADLINE.as_secs())]
    Slow,
    #[error("the agent closed the connection")]
    Closed,
    #[error("the agent sent {0}")]
    Malformed(String),
    #[error("the agent sent {0}, after which the set of pods is unknown")]
    Fatal(&'static str),
}

impl Handover {
    pub(crate) fn new(shared: Arc<Shared>, readiness: Readiness) -> Self {
        Self {
            blocker: Some(readiness.block(BLOCKER)),
            shared,
            readiness,
            pods: BTreeMap::new(),
            pending: BTreeMap::new(),
            named: None,
            stopping: JoinSet::new(),
        }
    }

    /// Serves the agent's pods until shutdown, then ends them within the drain time.
    ///
    /// # Errors
    /// The agent broke the protocol so that a restart is the only safe way on.
    pub(crate) async fn run(mut self, shutdown: Shutdown) -> Result<(), Error> {
        let socket = self.shared.settings.handover_socket.clone();
        let mut delays = Backoff::new(DELAYS.0, DELAYS.1);
        let outcome = loop {
            let served = tokio::select! {
                served = self.serve(&mut delays) => served,
                () = shutdown.cancelled() => break Ok(()),
            };
            if let Err(Broken::Fatal(what)) = served {
                break Err(Error::Handover { socket, what });
            }
            let delay = delays.next_delay();
            let error = served.err().map(|e| crate::control::causes(&e)).unwrap_or_default();
            debug!(socket = %socket.display(), %error, retry_in = ?delay, "no connection to the node agent");
            self.blocker.get_or_insert_with(|| self.readiness.block(BLOCKER));
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = shutdown.cancelled() => break Ok(()),
            }
        };
        let grace = self.shared.settings.drain;
        for (_, pod) in std::mem::take(&mut self.pods) {
            self.stopping.spawn(listeners::stop(pod, grace));
        }
        while self.stopping.join_next().await.is_some() {}
        outcome
    }

    /// One connection, to its end.
    async fn serve(&mut self, delays: &mut Backoff) -> Result<(), Broken> {
        let connection = Connection::connect(&self.shared.settings.handover_socket)?;
        send(&connection, &ZdsHello { version: Version::V1.into() }.encode_to_vec()).await?;
        info!(socket = %self.shared.settings.handover_socket.display(), "connected to the node agent");
        self.named = Some(BTreeSet::new());
        let mut retry = tokio::time::interval(PENDING_RETRY);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let packet = tokio::select! {
                packet = connection.recv(PACKET_BYTES_MAX) => match packet {
                    Ok(packet) => packet.ok_or(Broken::Closed)?,
                    Err(error) => {
                        answer(&connection, &error.to_string()).await?;
                        return Err(error.into());
                    }
                },
                _ = retry.tick(), if !self.pending.is_empty() => {
                    self.start_pending().await;
                    continue;
                }
            };
            let outcome = match parse(packet) {
                Ok((payload, descriptor)) => self.handle(payload, descriptor).await,
                Err(broken) => Err(broken),
            };
            match outcome {
                Ok(error) => answer(&connection, &error).await?,
                Err(Broken::Fatal(what)) => return Err(Broken::Fatal(what)),
                Err(broken) => {
                    answer(&connection, &broken.to_string()).await?;
                    return Err(broken);
                }
            }
            delays.reset();
            self.update_readiness();
            while self.stopping.try_join_next().is_some() {}
        }
    }

    fn update_readiness(&mut self) {
        self.shared.metrics.pods_pending.set(i64::try_from(self.pending.len()).unwrap_or(i64::MAX));
        if self.named.is_none() && self.pending.is_empty() {
            self.blocker = None;
        } else {
            self.blocker.get_or_insert_with(|| self.readiness.block(BLOCKER));
        }
    }

    /// Does what the agent asks; gives the error to answer with, empty for none.
    async fn handle(&mut self, payload: Payload, descriptor: Option<OwnedFd>) -> Result<String, Broken> {
        match payload {
            Payload::Add(add) => {
                let descriptor =
                    descriptor.ok_or_else(|| Broken::Malformed("add without namespace".into()))?;
                self.add(add, descriptor).await
            }
            Payload::Keep(keep) => match &mut self.named {
                Some(named) => {
                    named.insert(keep.uid);
                    Ok(String::new())
                }
                None => Err(Broken::Fatal("keep after the snapshot")),
            },
            Payload::Del(del) => {
                match &mut self.named {
                    // What it names was there before this connection: it goes when the snapshot is complete.
                    Some(named) => drop(named.remove(&del.uid)),
                    None => self.remove(&del.uid),
                }
                Ok(String::new())
            }
            Payload::SnapshotSent(_) => {
                let named = self.named.take().ok_or(Broken::Fatal("a second snapshot"))?;
                let known: BTreeSet<String> = self.pods.keys().chain(self.pending.keys()).cloned().collect();
                for gone in known.difference(&named) {
                    self.remove(gone);
                }
                info!(pods = self.pods.len(), pending = self.pending.len(), "received the pods of this node");
                Ok(String::new())
            }
        }
    }

    async fn add(&mut self, add: AddWorkload, descriptor: OwnedFd) -> Result<String, Broken> {
        let info = add.workload_info.ok_or(Broken::Fatal("a pod without name"))?;
        let namespace = NetNs::from_fd(descriptor).map_err(|e| Broken::Malformed(e.to_string()))?;
        let uid = add.uid;
        if let Some(named) = &mut self.named {
            named.insert(uid.clone());
        }
        if self.pods.get(&uid).is_some_and(|pod| pod.namespace.id() == namespace.id()) {
            return Ok(String::new());
        }
        self.remove(&uid);
        let name =
            LocalName { name: info.name, namespace: info.namespace, service_account: info.service_account };
        let waiting = Waiting { name, namespace };
        Ok(match self.start(&uid, waiting).await {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        })
    }

    /// Starts a pod, or parks it.
    async fn start(&mut self, uid: &str, waiting: Waiting) -> io::Result<()> {
        let spare = waiting.namespace.try_clone()?;
        match listeners::start(&self.shared, uid, waiting.name.clone(), waiting.namespace).await {
            Ok(pod) => {
                self.pods.insert(uid.to_owned(), pod);
                Ok(())
            }
            Err(error) => {
                warn!(pod = %uid, %error, retry_in = ?PENDING_RETRY, "pod not started");
                self.pending.insert(uid.to_owned(), Waiting { name: waiting.name, namespace: spare });
                Err(error)
            }
        }
    }

    async fn start_pending(&mut self) {
        for (uid, waiting) in std::mem::take(&mut self.pending) {
            // A failure has parked it again, and said so.
            let _ = self.start(&uid, waiting).await;
        }
        self.update_readiness();
    }

    /// Ends a pod at once: it is gone, or it is no longer ours.
    fn remove(&mut self, uid: &str) {
        self.pending.remove(uid);
        if let Some(pod) = self.pods.remove(uid) {
            self.stopping.spawn(listeners::stop(pod, Duration::ZERO));
        }
    }
}

/// Reads a packet. Exactly one descriptor comes with an added pod, and none with anything else.
fn parse(packet: Packet) -> Result<(Payload, Option<OwnedFd>), Broken> {
    let request = WorkloadRequest::decode(packet.bytes.as_slice())
        .map_err(|e| Broken::Malformed(format!("a packet that cannot be decoded: {e}")))?;
    let payload = request.payload.ok_or_else(|| Broken::Malformed("an empty request".into()))?;
    let mut descriptors = packet.descriptors;
    let wanted = usize::from(matches!(payload, Payload::Add(_)));
    if descriptors.len() != wanted {
        return Err(Broken::Malformed(format!("{} descriptors instead of {wanted}", descriptors.len())));
    }
    Ok((payload, descriptors.pop()))
}

async fn send(connection: &Connection, bytes: &[u8]) -> Result<(), Broken> {
    let sent = tokio::time::timeout(SEND_DEADLINE, connection.send(bytes, None));
    Ok(sent.await.map_err(|_| Broken::Slow)??)
}

async fn answer(connection: &Connection, error: &str) -> Result<(), Broken> {
    let mut end = error.len().min(ERROR_BYTES_MAX);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    let ack = Ack { error: error[..end].to_owned() };
    let response = WorkloadResponse { payload: Some(workload_response::Payload::Ack(ack)) };
    send(connection, &response.encode_to_vec()).await
}

//! The hand-over of pods to proxies: one owner of the roster, and one task for each connection.
//!
//! Protocol: one message per packet; the proxy says hello, gets the snapshot, and acknowledges each message before the
//! next one is sent.

mod connection;

use crate::Error;
use crate::metrics::Metrics;
use ambit_linux::netns::NetNs;
use ambit_linux::process;
use ambit_linux::seqpacket::{Connection, Listener};
use ambit_node_plan::handover::{AddPlan, ConnectionId, Generation, Request, Roster};
use ambit_runtime::Shutdown;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// Messages waiting for one proxy beside its snapshot. Source: the field's agent.
const QUEUE_MAX: usize = 100;
/// Commands waiting for the owner.
const COMMANDS_MAX: usize = 1024;
/// Proxies connected at once: an old and a new one, and some that have not noticed that they are gone.
const PROXIES_MAX: usize = 8;
/// Pause after each accepted connection, so that a proxy that fails at once cannot keep the agent busy.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for an addition to be acknowledged, the wait in the proxy's queue included.
const ADD_DEADLINE: Duration = Duration::from_secs(6);
/// Time for all proxies to acknowledge a removal.
const REMOVE_DEADLINE: Duration = Duration::from_secs(6);

/// Closed until it is opened, once. Clones share one state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Shutdown);

impl Gate {
    pub(crate) fn open(&self) {
        self.0.cancel();
    }

    async fn opened(&self) {
        self.0.cancelled().await;
    }
}

/// What a proxy is told about a pod, and its namespace.
#[derive(Debug, Clone)]
pub(crate) struct Handed {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) service_account: String,
    pub(crate) netns: Arc<NetNs>,
}

/// What a proxy answered; the text says why not.
type Outcome = Result<(), String>;

/// A message for one connection.
#[derive(Debug)]
struct Message {
    request: Request,
    pod: Option<Handed>,
    done: Option<oneshot::Sender<Outcome>>,
}

/// What a connection's task gets when its proxy has said hello.
struct Assigned {
    id: ConnectionId,
    snapshot: Vec<Message>,
    messages: mpsc::Receiver<Message>,
}

enum Command {
    Add { uid: String, pod: Handed, done: oneshot::Sender<Outcome> },
    Restore { uid: String, pod: Option<Handed> },
    Remove { uid: String, done: oneshot::Sender<Vec<oneshot::Receiver<Outcome>>> },
    Connected { assigned: oneshot::Sender<Assigned> },
    Answered { id: ConnectionId, uid: String, generation: Generation, outcome: Outcome },
    Closed { id: ConnectionId },
}

/// Sends commands to the owner. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct HandOver {
    commands: mpsc::Sender<Command>,
}

/// The owner before it runs.
pub(crate) struct Owner {
    roster: Roster,
    pods: HashMap<String, Handed>,
    queues: HashMap<ConnectionId, mpsc::Sender<Message>>,
    commands: mpsc::Receiver<Command>,
    /// UIDs of pods that a proxy refused without anyone waiting for the answer.
    refused: mpsc::Sender<String>,
    metrics: Metrics,
    /// The user whose processes may connect. A connection gets the namespaces of all pods, so that nobody else may.
    admitted: u32,
}

/// The owner and its handle. UIDs that a proxy refused unasked are sent to `refused`.
pub(crate) fn new(refused: mpsc::Sender<String>, metrics: Metrics) -> (HandOver, Owner) {
    let (sender, commands) = mpsc::channel(COMMANDS_MAX);
    let owner = Owner {
        roster: Roster::default(),
        pods: HashMap::new(),
        queues: HashMap::new(),
        commands,
        refused,
        metrics,
        admitted: process::ROOT,
    };
    (HandOver { commands: sender }, owner)
}

impl HandOver {
    /// Hands a pod to the newest proxy and waits for its acknowledgement. Done at once if it has it already.
    pub(crate) async fn add(&self, uid: &str, pod: Handed) -> Result<(), Error> {
        let key = format!("{}/{}", pod.namespace, pod.name);
        let (done, answer) = oneshot::channel();
        self.send(Command::Add { uid: uid.to_owned(), pod, done }).await?;
        let refused = |problem: String| Error::HandOver { pod: key.clone(), problem };
        match tokio::time::timeout(ADD_DEADLINE, answer).await {
            Ok(Ok(outcome)) => outcome.map_err(refused),
            Ok(Err(_)) => Err(refused("the connection to the proxy was lost".into())),
            Err(_) => Err(refused(format!("no acknowledgement within {} s", ADD_DEADLINE.as_secs()))),
        }
    }

    /// Records a pod that was captured before this agent started; without its namespace if that was not found.
    pub(crate) async fn restore(&self, uid: &str, pod: Option<Handed>) -> Result<(), Error> {
        self.send(Command::Restore { uid: uid.to_owned(), pod }).await
    }

    /// Takes a pod back from all proxies and waits until they acknowledge it, or for the deadline: a proxy that does
    /// not answer loses its connection and learns of the removal from the next snapshot.
    pub(crate) async fn remove(&self, uid: &str) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        self.send(Command::Remove { uid: uid.to_owned(), done }).await?;
        let all = async {
            for acknowledged in answer.await.unwrap_or_default() {
                // Whatever the proxy says, the pod is not the mesh's any more.
                let _ = acknowledged.await;
            }
        };
        if tokio::time::timeout(REMOVE_DEADLINE, all).await.is_err() {
            tracing::warn!(pod_uid = uid, "a proxy did not acknowledge a removal in time");
        }
        Ok(())
    }

    async fn send(&self, command: Command) -> Result<(), Error> {
        self.commands.send(command).await.map_err(|_| Error::Unavailable { state: "stopping" })
    }
}

impl Owner {
    /// Serves commands until `shutdown`, and accepts proxies once `gate` is open: a snapshot that lacks pods would make
    /// a proxy drop them.
    pub(crate) async fn run(
        mut self,
        listener: Listener,
        handle: HandOver,
        gate: Gate,
        shutdown: Shutdown,
    ) -> Result<(), Error> {
        let mut connections = JoinSet::new();
        let (until, admitted) = (shutdown.clone(), self.admitted);
        connections.spawn(async move {
            // Both branches are cancel safe.
            tokio::select! {
                () = gate.opened() => accept(listener, handle, admitted, until).await,
                () = until.cancelled() => {}
            }
        });
        // Both branches are cancel safe.
        loop {
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => self.carry_out(command),
                    None => break,
                },
                () = shutdown.cancelled() => break,
            }
        }
        connections.shutdown().await;
        Ok(())
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Add { uid, pod, done } => self.add(&uid, pod, done),
            Command::Restore { uid, pod: Some(pod) } => self.insert(&uid, pod),
            Command::Restore { uid, pod: None } => self.roster.insert_unknown(&uid),
            Command::Remove { uid, done } => {
                let _ = done.send(self.remove(&uid));
            }
            Command::Connected { assigned } => self.connect(assigned),
            Command::Answered { id, uid, generation, outcome } => {
                self.answered(id, uid, generation, &outcome)
            }
            Command::Closed { id } => self.disconnect(id),
        }
        self.metrics.set_proxies(self.roster.proxies());
    }

    fn insert(&mut self, uid: &str, pod: Handed) {
        let same = self.pods.get(uid).is_some_and(|known| known.netns.id() == pod.netns.id());
        if !same {
            self.roster.insert(uid);
            self.pods.insert(uid.to_owned(), pod);
        }
    }

    fn add(&mut self, uid: &str, pod: Handed, done: oneshot::Sender<Outcome>) {
        self.insert(uid, pod);
        match self.roster.plan_add(uid) {
            AddPlan::Acknowledged => drop(done.send(Ok(()))),
            AddPlan::NoProxy => drop(done.send(Err("no proxy is connected".into()))),
            AddPlan::Send(id, generation) => {
                let request = Request::Add { uid: uid.to_owned(), generation };
                self.send(id, request, Some(done));
            }
        }
    }

    fn remove(&mut self, uid: &str) -> Vec<oneshot::Receiver<Outcome>> {
        self.pods.remove(uid);
        let tell = self.roster.remove(uid);
        tell.into_iter()
            .map(|id| {
                let (done, answer) = oneshot::channel();
                self.send(id, Request::Delete { uid: uid.to_owned() }, Some(done));
                answer
            })
            .collect()
    }

    fn connect(&mut self, assigned: oneshot::Sender<Assigned>) {
        if self.queues.len() >= PROXIES_MAX {
            tracing::warn!(limit = PROXIES_MAX, "refused a proxy, too many are connected");
            return;
        }
        let (id, requests) = self.roster.connect();
        let (queue, messages) = mpsc::channel(QUEUE_MAX);
        let snapshot = requests.into_iter().filter_map(|request| self.message(request, None)).collect();
        self.queues.insert(id, queue);
        if assigned.send(Assigned { id, snapshot, messages }).is_err() {
            self.disconnect(id);
        }
    }

    fn disconnect(&mut self, id: ConnectionId) {
        self.queues.remove(&id);
        if let Some((newest, requests)) = self.roster.disconnect(id) {
            requests.into_iter().for_each(|request| self.send(newest, request, None));
        }
    }

    fn answered(&mut self, id: ConnectionId, uid: String, generation: Generation, outcome: &Outcome) {
        match outcome {
            Ok(()) => drop(self.roster.acknowledge(id, &uid, generation)),
            Err(problem) => {
                tracing::warn!(pod_uid = %uid, %problem, "the proxy refused a pod");
                self.report(uid);
            }
        }
    }

    /// Tells the enroller to look at a pod again. When it is that far behind, it looks at everything anyway.
    fn report(&self, uid: String) {
        let _ = self.refused.try_send(uid);
    }

    /// A message with what its request needs; none if the pod is gone meanwhile.
    fn message(&self, request: Request, done: Option<oneshot::Sender<Outcome>>) -> Option<Message> {
        let pod = match &request {
            Request::Add { uid, .. } => Some(self.pods.get(uid)?.clone()),
            _ => None,
        };
        Some(Message { request, pod, done })
    }

    fn send(&self, id: ConnectionId, request: Request, done: Option<oneshot::Sender<Outcome>>) {
        let Some(message) = self.message(request, done) else { return };
        let Some(queue) = self.queues.get(&id) else { return };
        if let Err(error) = queue.try_send(message) {
            let message = error.into_inner();
            match (message.done, message.request) {
                (Some(done), _) => drop(done.send(Err("the proxy has too many pods to take over".into()))),
                (None, Request::Add { uid, .. }) => self.report(uid),
                _ => {}
            }
        }
    }
}

/// Accepts proxies until `shutdown`, which ends their connections too.
async fn accept(listener: Listener, handle: HandOver, admitted: u32, shutdown: Shutdown) {
    let mut connections: JoinSet<()> = JoinSet::new();
    while !shutdown.is_cancelled() {
        // All branches are cancel safe.
        tokio::select! {
            accepted = listener.accept(), if connections.len() < PROXIES_MAX => {
                match accepted {
                    Ok(proxy) if may_connect(&proxy, admitted) => {
                        drop(connections.spawn(converse(proxy, handle.clone())));
                    }
                    Ok(stranger) => drop(stranger),
                    Err(error) => tracing::warn!(%error, "could not accept a proxy"),
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            Some(_) = connections.join_next() => {}
            () = shutdown.cancelled() => {}
        }
    }
}

/// The socket's mode keeps others out already; this holds where somebody changed the mode or mounted the socket into a pod.
fn may_connect(proxy: &Connection, admitted: u32) -> bool {
    match proxy.peer_uid() {
        Ok(uid) if uid == admitted => true,
        Ok(uid) => {
            tracing::warn!(uid, admitted, "refused a connection to the hand-over by another user");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "refused a connection to the hand-over by an unknown user");
            false
        }
    }
}

async fn converse(proxy: Connection, handle: HandOver) {
    if let Err(problem) = connection::greet(&proxy).await {
        tracing::warn!(%problem, "a proxy did not introduce itself");
        return;
    }
    let (assigned, answer) = oneshot::channel();
    if handle.send(Command::Connected { assigned }).await.is_err() {
        return;
    }
    let Ok(assigned) = answer.await else { return };
    let id = assigned.id;
    tracing::info!(connection = id, pods = assigned.snapshot.len().saturating_sub(1), "a proxy connected");
    let ended = connection::serve(&proxy, assigned, &handle).await;
    tracing::info!(connection = id, reason = %ended, "a proxy disconnected");
    // The owner is gone only when the agent stops.
    let _ = handle.send(Command::Closed { id }).await;
}

#[cfg(test)]
mod tests;

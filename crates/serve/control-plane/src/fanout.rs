//! From objects to what every client is sent, without sockets: for measurements of what is between them.

use crate::session::Session;
use crate::snapshot::Snapshot;
use ambit_collect::{Batch, Graph};
use ambit_mesh::{Inputs, Mesh, MeshSettings};
use ambit_names::type_url;
use ambit_proto::discovery::DeltaDiscoveryRequest;
use prost::Message;
use std::sync::Arc;

/// The collections with clients that have asked for everything, as node proxies do.
pub struct Fanout {
    mesh: Mesh,
    snapshot: Arc<Snapshot>,
    sessions: Vec<Session>,
}

impl Fanout {
    /// Empty collections with this many clients.
    pub fn new(settings: MeshSettings, clients: usize) -> Self {
        let snapshot = Arc::new(Snapshot::default());
        let sessions = (0..clients).map(|number| subscribed(number, &snapshot)).collect();
        Self { mesh: Mesh::new(settings), snapshot, sessions }
    }

    /// The objects to write.
    pub fn inputs(&self) -> Inputs {
        self.mesh.inputs
    }

    /// The collections.
    pub fn graph(&self) -> &Graph {
        &self.mesh.graph
    }

    /// Applies a batch and encodes what each client is sent because of it. Returns the bytes for all of them.
    pub fn apply(&mut self, batch: Batch) -> usize {
        let commit = self.mesh.graph.apply(batch);
        if let Some(next) = self.snapshot.next(&commit, &self.mesh.outputs) {
            self.snapshot = Arc::new(next);
        }
        drop(commit);
        let responses = self.sessions.iter_mut().flat_map(|session| session.on_snapshot(&self.snapshot));
        responses.map(|response| response.encode_to_vec().len()).sum()
    }
}

fn subscribed(number: usize, snapshot: &Snapshot) -> Session {
    let mut session = Session::new(format!("client-{number}"), format!("node-{number}"));
    for type_url in [type_url::ADDRESS, type_url::AUTHORIZATION] {
        let everything = DeltaDiscoveryRequest { type_url: type_url.to_owned(), ..Default::default() };
        session.on_request(&everything, snapshot).expect("asking for everything is never refused");
    }
    session
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambit_mesh::ObjectName;
    use serde_json::json;

    #[test]
    fn every_client_is_sent_a_change_once() {
        let pod = |ip: &str| {
            let pod = json!({"metadata": {"name": "a", "namespace": "demo"}, "status": {"podIP": ip}});
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let bytes = |clients: usize| {
            let mut fanout = Fanout::new(MeshSettings::default(), clients);
            let mut sent = |ip: &str| {
                let mut batch = Batch::new();
                batch.set(fanout.inputs().pods, ObjectName::new("demo", "a"), pod(ip));
                fanout.apply(batch)
            };
            [sent("10.0.0.1"), sent("10.0.0.1"), sent("10.0.0.2")]
        };
        let [first, again, changed] = bytes(1);
        assert!(first > 0 && changed > 0);
        assert_eq!(again, 0);
        assert_eq!(bytes(3), [3 * first, 0, 3 * changed]);
    }
}

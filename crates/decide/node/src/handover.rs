//! Which proxy has to be told what about which pod.
//!
//! The roster is the one record of the captured pods and of the proxies that are connected. It says what to send; the
//! agent sends it and reports back what was acknowledged.

use std::collections::BTreeMap;

/// Identifies a connection of a proxy; later ones are greater.
pub type ConnectionId = u64;
/// Counts the namespaces a pod has been seen with, so that a late acknowledgement of an earlier one counts for nothing.
pub type Generation = u64;

/// One message to a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Take this pod over; its network namespace comes along.
    Add {
        /// The pod's UID.
        uid: String,
        /// Which of its namespaces.
        generation: Generation,
    },
    /// Keep this pod if you have it; its namespace could not be found yet.
    Keep {
        /// The pod's UID.
        uid: String,
    },
    /// Let this pod go.
    Delete {
        /// The pod's UID.
        uid: String,
    },
    /// Everything that exists has been named.
    SnapshotSent,
}

/// What an added pod needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddPlan {
    /// The newest proxy has acknowledged it already.
    Acknowledged,
    /// It has to be sent to this connection.
    Send(ConnectionId, Generation),
    /// No proxy is connected; whoever connects will get it with the snapshot.
    NoProxy,
}

#[derive(Debug, Default)]
struct Proxy {
    /// Pods it has acknowledged, and with which namespace.
    acknowledged: BTreeMap<String, Generation>,
}

/// Captured pods and connected proxies.
#[derive(Debug, Default)]
pub struct Roster {
    /// By UID; none while the pod's namespace is not known.
    pods: BTreeMap<String, Option<Generation>>,
    proxies: BTreeMap<ConnectionId, Proxy>,
    last_connection: ConnectionId,
    last_generation: Generation,
}

impl Roster {
    /// Number of connected proxies.
    pub fn proxies(&self) -> usize {
        self.proxies.len()
    }

    /// A proxy has connected: its id, and the snapshot it has to be sent.
    pub fn connect(&mut self) -> (ConnectionId, Vec<Request>) {
        self.last_connection += 1;
        self.proxies.insert(self.last_connection, Proxy::default());
        let mut snapshot: Vec<Request> = self
            .pods
            .iter()
            .map(|(uid, generation)| match generation {
                Some(generation) => Request::Add { uid: uid.clone(), generation: *generation },
                None => Request::Keep { uid: uid.clone() },
            })
            .collect();
        snapshot.push(Request::SnapshotSent);
        (self.last_connection, snapshot)
    }

    /// A proxy is gone. If it was the newest, the one before it becomes the newest and has to be sent what it lacks.
    pub fn disconnect(&mut self, id: ConnectionId) -> Option<(ConnectionId, Vec<Request>)> {
        let was_newest = self.newest() == Some(id);
        self.proxies.remove(&id)?;
        let newest = self.newest().filter(|_| was_newest)?;
        let acknowledged = &self.proxies.get(&newest)?.acknowledged;
        let missing = self
            .pods
            .iter()
            .filter_map(|(uid, generation)| Some((uid, (*generation)?)))
            .filter(|(uid, generation)| acknowledged.get(*uid) != Some(generation))
            .map(|(uid, generation)| Request::Add { uid: uid.clone(), generation })
            .collect();
        Some((newest, missing))
    }

    fn newest(&self) -> Option<ConnectionId> {
        self.proxies.keys().next_back().copied()
    }

    /// A pod with a namespace that was not known before.
    pub fn insert(&mut self, uid: &str) -> Generation {
        self.last_generation += 1;
        self.pods.insert(uid.to_owned(), Some(self.last_generation));
        self.last_generation
    }

    /// A pod that exists but whose namespace is not known.
    pub fn insert_unknown(&mut self, uid: &str) {
        self.pods.entry(uid.to_owned()).or_insert(None);
    }

    /// What a pod needs to be with the newest proxy. It must have been inserted before.
    pub fn plan_add(&self, uid: &str) -> AddPlan {
        let (Some(id), Some(Some(generation))) = (self.newest(), self.pods.get(uid)) else {
            return AddPlan::NoProxy;
        };
        match self.proxies.get(&id).and_then(|proxy| proxy.acknowledged.get(uid)) {
            Some(acknowledged) if acknowledged == generation => AddPlan::Acknowledged,
            _ => AddPlan::Send(id, *generation),
        }
    }

    /// A pod is not captured any more: whom to tell. Nobody, if it was not on the roster: then no snapshot named it.
    pub fn remove(&mut self, uid: &str) -> Vec<ConnectionId> {
        if self.pods.remove(uid).is_none() {
            return Vec::new();
        }
        for proxy in self.proxies.values_mut() {
            proxy.acknowledged.remove(uid);
        }
        self.proxies.keys().copied().collect()
    }

    /// A proxy has acknowledged a pod. False if the pod has changed since.
    pub fn acknowledge(&mut self, id: ConnectionId, uid: &str, generation: Generation) -> bool {
        let current = self.pods.get(uid) == Some(&Some(generation));
        if let (true, Some(proxy)) = (current, self.proxies.get_mut(&id)) {
            proxy.acknowledged.insert(uid.to_owned(), generation);
        }
        current
    }
}

#[cfg(test)]
mod tests;

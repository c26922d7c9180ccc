//! The host's set of pod addresses that the node's probes may reach as plain text.
//!
//! One thread owns the set: it lives in the host's network namespace and does one change at a time.

use crate::Error;
use ambit_linux::netns::NetNs;
use ambit_linux::nft;
use ambit_rules::host::{
    plan_probe_address_removal, plan_probe_addresses, plan_probe_removal, plan_probe_rules,
};
use ambit_rules::pod::Families;
use std::collections::HashMap;
use std::net::IpAddr;
use tokio::sync::{mpsc, oneshot};

/// Changes waiting for the thread.
const QUEUE_MAX: usize = 1024;

type Reply = oneshot::Sender<Result<(), ambit_linux::Error>>;

enum Change {
    Set { uid: String, addresses: Vec<IpAddr>, reply: Reply },
    Uninstall { reply: Reply },
}

/// Sends changes to the thread, which ends with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct Probes {
    changes: mpsc::Sender<Change>,
}

impl Probes {
    /// Puts the host's rule and empty sets in place, and starts the thread.
    pub(crate) fn install(host: &NetNs, prober: u32, families: Families) -> Result<Self, Error> {
        let failed = || Error::kernel("put the host's probe rule in place");
        host.run(|| nft::apply(&plan_probe_rules(prober, families))).map_err(failed())?.map_err(failed())?;
        let host =
            host.try_clone().map_err(|e| failed()(ambit_linux::Error::system("copy a descriptor", e)))?;
        let (changes, received) = mpsc::channel(QUEUE_MAX);
        std::thread::Builder::new()
            .name("probe-set".into())
            .spawn(move || own(&host, received))
            .map_err(|e| failed()(ambit_linux::Error::system("start a thread", e)))?;
        Ok(Self { changes })
    }

    /// Lets probes reach exactly these addresses of a pod; none removes the pod. Addresses that another pod has
    /// meanwhile are left to it.
    pub(crate) async fn set(&self, uid: &str, addresses: &[IpAddr]) -> Result<(), Error> {
        let (uid, addresses) = (uid.to_owned(), addresses.to_vec());
        self.change(|reply| Change::Set { uid, addresses, reply }).await
    }

    /// Removes the host's rule and sets. Removing a pod afterwards changes nothing.
    pub(crate) async fn uninstall(&self) -> Result<(), Error> {
        self.change(|reply| Change::Uninstall { reply }).await
    }

    async fn change(&self, change: impl FnOnce(Reply) -> Change) -> Result<(), Error> {
        let stopping = Error::Unavailable { state: "stopping" };
        let (reply, answer) = oneshot::channel();
        if self.changes.send(change(reply)).await.is_err() {
            return Err(stopping);
        }
        match answer.await {
            Ok(outcome) => outcome.map_err(Error::kernel("change the host's probe set")),
            Err(_) => Err(stopping),
        }
    }
}

/// The thread: which pod has which address, and the changes to it.
fn own(host: &NetNs, mut changes: mpsc::Receiver<Change>) {
    let mut owners: HashMap<IpAddr, String> = HashMap::new();
    // Entering once: the thread does nothing else.
    let _ = host.run(|| {
        while let Some(change) = changes.blocking_recv() {
            let (outcome, reply) = match change {
                Change::Set { uid, addresses, reply } => (set(&mut owners, &uid, &addresses), reply),
                Change::Uninstall { reply } => {
                    owners.clear();
                    (nft::apply(&plan_probe_removal()), reply)
                }
            };
            // The one who asked may have given up.
            let _ = reply.send(outcome);
        }
    });
}

fn set(
    owners: &mut HashMap<IpAddr, String>,
    uid: &str,
    addresses: &[IpAddr],
) -> Result<(), ambit_linux::Error> {
    let held = |address: &IpAddr| owners.get(address).map(String::as_str);
    let stale: Vec<IpAddr> = owners
        .iter()
        .filter(|(address, owner)| {
            // The pod's own that it lost, and others' that it has now: their comment must name this pod.
            (*owner == uid) != addresses.contains(address)
        })
        .map(|(address, _)| *address)
        .collect();
    let new: Vec<IpAddr> = addresses.iter().filter(|address| held(address) != Some(uid)).copied().collect();
    let mut batch = plan_probe_address_removal(&stale);
    batch.commands.extend(plan_probe_addresses(&new, uid).commands);
    nft::apply(&batch)?;
    stale.iter().for_each(|address| drop(owners.remove(address)));
    owners.extend(new.into_iter().map(|address| (address, uid.to_owned())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(host: &NetNs) -> String {
        let command = || {
            let output = std::process::Command::new("nft").args(["list", "ruleset"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        host.run(command).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn the_set_follows_the_pods_and_a_recycled_address_stays_with_its_new_pod() {
        let host = NetNs::create_private().unwrap();
        let probes = Probes::install(&host, 0, Families::Dual).unwrap();
        probes.set("a", &[ip("10.0.0.5"), ip("fd00::5")]).await.unwrap();
        assert!(listed(&host).contains("elements = { 10.0.0.5 comment \"a\" }"), "{}", listed(&host));
        assert!(listed(&host).contains("fd00::5 comment \"a\""));
        probes.set("a", &[ip("10.0.0.6")]).await.unwrap();
        assert!(listed(&host).contains("elements = { 10.0.0.6 comment \"a\" }"), "{}", listed(&host));
        // Pod b gets the address before pod a is known to be gone.
        probes.set("b", &[ip("10.0.0.6")]).await.unwrap();
        probes.set("a", &[]).await.unwrap();
        assert!(listed(&host).contains("elements = { 10.0.0.6 comment \"b\" }"), "{}", listed(&host));
        probes.set("b", &[]).await.unwrap();
        probes.set("unknown", &[]).await.unwrap();
        assert!(!listed(&host).contains("elements"));
        probes.set("b", &[ip("10.0.0.6")]).await.unwrap();
        probes.uninstall().await.unwrap();
        probes.set("b", &[]).await.unwrap();
        assert_eq!(listed(&host), "");
    }
}

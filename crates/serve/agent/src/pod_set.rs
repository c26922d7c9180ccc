//! Sets of pod addresses in the host's network namespace: those that the node's probes may reach as plain text, and
//! those that are kept off the network until their pods are captured.
//!
//! One thread owns a set: it lives in the host's network namespace, and does all changes that wait for it at once.

use crate::Error;
use ambit_linux::netns::NetNs;
use ambit_linux::nft;
use ambit_rules::Batch;
use ambit_rules::host::{
    plan_probe_address_removal, plan_probe_addresses, plan_probe_removal, plan_probe_rules,
};
use ambit_rules::pod::Families;
use ambit_rules::quarantine::{
    plan_quarantine, plan_quarantine_address_removal, plan_quarantine_addresses, plan_quarantine_removal,
    plan_quarantined,
};
use std::collections::HashMap;
use std::net::IpAddr;
use tokio::sync::{mpsc, oneshot};

/// Changes waiting for the thread.
const QUEUE_MAX: usize = 1024;
/// Changes that are done in one transaction at most.
const TOGETHER_MAX: usize = 128;

type Reply = oneshot::Sender<Result<(), ambit_linux::Error>>;

enum Change {
    Set { uid: String, addresses: Vec<IpAddr>, reply: Reply },
    Uninstall { reply: Reply },
}

/// The packet rules around a set, and their changes.
#[derive(Clone, Copy)]
struct Plans {
    /// What the set is for, in errors and as the thread's name.
    name: &'static str,
    add: fn(&[IpAddr], &str) -> Batch,
    remove: fn(&[IpAddr]) -> Batch,
    uninstall: fn() -> Batch,
}

const PROBES: Plans = Plans {
    name: "probe set",
    add: plan_probe_addresses,
    remove: plan_probe_address_removal,
    uninstall: plan_probe_removal,
};

const QUARANTINE: Plans = Plans {
    name: "quarantine",
    add: plan_quarantine_addresses,
    remove: plan_quarantine_address_removal,
    uninstall: plan_quarantine_removal,
};

/// Sends changes to the thread, which ends with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct PodSet {
    name: &'static str,
    families: Families,
    changes: mpsc::Sender<Change>,
}

impl PodSet {
    /// Lets probes of processes of the user `prober` reach the pods of the set, which is empty at first.
    pub(crate) fn install_probes(host: &NetNs, prober: u32, families: Families) -> Result<Self, Error> {
        Self::install(host, families, PROBES, &plan_probe_rules(prober, families), Owners::default())
    }

    /// Keeps these pods off the network from now on, and no others. There is no moment in which a pod that was kept
    /// off by an earlier agent and still is to be kept off may use the network.
    pub(crate) fn install_quarantine(
        host: &NetNs,
        families: Families,
        pods: impl IntoIterator<Item = (String, Vec<IpAddr>)>,
    ) -> Result<Self, Error> {
        let mut owners = Owners::default();
        for (uid, addresses) in pods {
            let addresses = of_families(&addresses, families);
            owners.assign(&uid, &addresses);
        }
        let listed: Vec<_> = owners.by_address.iter().map(|(address, uid)| (*address, uid.clone())).collect();
        let mut batch = plan_quarantine(families);
        batch.commands.extend(plan_quarantined(families, &listed).commands);
        Self::install(host, families, QUARANTINE, &batch, owners)
    }

    /// Removes what an earlier agent left of the quarantine.
    pub(crate) fn remove_quarantine(host: &NetNs) -> Result<(), Error> {
        let failed = || Error::kernel("remove the host's quarantine");
        host.run(|| nft::apply(&plan_quarantine_removal())).map_err(failed())?.map_err(failed())
    }

    fn install(
        host: &NetNs,
        families: Families,
        plans: Plans,
        batch: &Batch,
        owners: Owners,
    ) -> Result<Self, Error> {
        let name = plans.name;
        let failed = || Error::kernel(format!("put the host's {name} in place"));
        host.run(|| nft::apply(batch)).map_err(failed())?.map_err(failed())?;
        let host =
            host.try_clone().map_err(|e| failed()(ambit_linux::Error::system("copy a descriptor", e)))?;
        let (changes, received) = mpsc::channel(QUEUE_MAX);
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || own(&host, plans, owners, received))
            .map_err(|e| failed()(ambit_linux::Error::system("start a thread", e)))?;
        Ok(Self { name, families, changes })
    }

    /// Makes the set hold exactly these addresses of a pod; none removes the pod. Addresses that another pod has
    /// meanwhile are left to it.
    pub(crate) async fn set(&self, uid: &str, addresses: &[IpAddr]) -> Result<(), Error> {
        let (uid, addresses) = (uid.to_owned(), of_families(addresses, self.families));
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
            Ok(outcome) => outcome.map_err(Error::kernel(format!("change the host's {}", self.name))),
            Err(_) => Err(stopping),
        }
    }
}

/// There are no sets for families that are not captured.
fn of_families(addresses: &[IpAddr], families: Families) -> Vec<IpAddr> {
    addresses.iter().filter(|address| address.is_ipv4() || families == Families::Dual).copied().collect()
}

/// Which pod has which address. A change costs as much as the pod has addresses, however many pods there are.
#[derive(Default, Clone)]
struct Owners {
    by_address: HashMap<IpAddr, String>,
    by_uid: HashMap<String, Vec<IpAddr>>,
}

impl Owners {
    /// Addresses in the set that the pod has lost, or that others had which it has now: their comment must name it.
    fn stale(&self, uid: &str, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let own = self.by_uid.get(uid).into_iter().flatten();
        let lost = own.filter(|address| !addresses.contains(address));
        let taken = addresses.iter().filter(|a| self.by_address.get(a).is_some_and(|owner| owner != uid));
        lost.chain(taken).copied().collect()
    }

    fn assign(&mut self, uid: &str, addresses: &[IpAddr]) {
        for address in self.stale(uid, addresses) {
            let Some(owner) = self.by_address.remove(&address) else { continue };
            let left = self.by_uid.get_mut(&owner).map(|of_owner| {
                of_owner.retain(|a| *a != address);
                of_owner.len()
            });
            if left == Some(0) {
                self.by_uid.remove(&owner);
            }
        }
        self.by_address.extend(addresses.iter().map(|address| (*address, uid.to_owned())));
        match addresses {
            [] => drop(self.by_uid.remove(uid)),
            _ => drop(self.by_uid.insert(uid.to_owned(), addresses.to_vec())),
        }
    }
}

/// A change to the addresses of one pod.
struct Wanted {
    uid: String,
    addresses: Vec<IpAddr>,
    reply: Reply,
}

/// The thread: which pod has which address, and the changes to it. Changes that wait are done together: after every
/// transaction that removes something, the kernel makes the next one wait for its readers.
fn own(host: &NetNs, plans: Plans, mut owners: Owners, mut changes: mpsc::Receiver<Change>) {
    // Entering once: the thread does nothing else.
    let _ = host.run(|| {
        while let Some(first) = changes.blocking_recv() {
            let (mut together, mut uninstall, mut next) = (Vec::new(), None, Some(first));
            while let Some(change) = next.take() {
                match change {
                    Change::Set { uid, addresses, reply } => together.push(Wanted { uid, addresses, reply }),
                    Change::Uninstall { reply } => uninstall = Some(reply),
                }
                if uninstall.is_none() && together.len() < TOGETHER_MAX {
                    next = changes.try_recv().ok();
                }
            }
            set_all(plans, &mut owners, together);
            if let Some(reply) = uninstall {
                owners = Owners::default();
                // The one who asked may have given up.
                let _ = reply.send(nft::apply(&(plans.uninstall)()));
            }
        }
    });
}

/// Does all changes in one transaction; should the kernel refuse it, each in its own, so that only those fail that must.
fn set_all(plans: Plans, owners: &mut Owners, together: Vec<Wanted>) {
    if together.len() > 1 {
        let (mut after, mut batch) = (owners.clone(), Batch::default());
        for Wanted { uid, addresses, .. } in &together {
            batch.commands.extend(planned(plans, &after, uid, addresses).commands);
            after.assign(uid, addresses);
        }
        if batch.commands.is_empty() || nft::apply(&batch).is_ok() {
            *owners = after;
            together.into_iter().for_each(|wanted| drop(wanted.reply.send(Ok(()))));
            return;
        }
    }
    for Wanted { uid, addresses, reply } in together {
        let batch = planned(plans, owners, &uid, &addresses);
        let outcome = if batch.commands.is_empty() { Ok(()) } else { nft::apply(&batch) };
        if outcome.is_ok() {
            owners.assign(&uid, &addresses);
        }
        let _ = reply.send(outcome);
    }
}

/// What makes the set hold exactly these addresses of a pod.
fn planned(plans: Plans, owners: &Owners, uid: &str, addresses: &[IpAddr]) -> Batch {
    let stale = owners.stale(uid, addresses);
    let held = |address: &IpAddr| owners.by_address.get(address).map(String::as_str) == Some(uid);
    let new: Vec<IpAddr> = addresses.iter().filter(|address| !held(address)).copied().collect();
    let mut batch = (plans.remove)(&stale);
    batch.commands.extend((plans.add)(&new, uid).commands);
    batch
}

#[cfg(test)]
mod tests;

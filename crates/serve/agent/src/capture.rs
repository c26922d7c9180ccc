//! Work inside the network namespaces of pods: proof of whose they are, rules, routes, and their removal.

use crate::Error;
use ambit_linux::netns::NetNs;
use ambit_linux::{nft, route};
use ambit_rules::pod::{Capture, Families, plan_capture, plan_release, plan_routes, tables};
use ambit_rules::{Batch, Family};
use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

/// Time for work in one namespace. The kernel answers within milliseconds; this is for a machine in trouble.
const DEADLINE: Duration = Duration::from_secs(20);

/// Runs blocking work off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let deadline = || Error::Deadline { what: what.to_owned(), limit: DEADLINE };
    match tokio::time::timeout(DEADLINE, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) if panic.is_panic() => std::panic::resume_unwind(panic.into_panic()),
        Ok(Err(_)) => Err(Error::Unavailable { state: "stopping" }),
        Err(_) => Err(deadline()),
    }
}

/// Proves that the namespace is the pod's and puts the rules in place. `pod` is for messages.
pub(crate) fn put_in_place(
    pod: &str,
    netns: &NetNs,
    addresses: &[IpAddr],
    capture: &Capture,
) -> Result<(), Error> {
    let inside = || -> Result<bool, ambit_linux::Error> {
        if !holds_one(addresses)? {
            return Ok(false);
        }
        install(capture)?;
        Ok(true)
    };
    let attempt = || Error::kernel(format!("put the packet rules of pod {pod} in place"));
    match netns.run(inside).map_err(attempt())?.map_err(attempt())? {
        true => Ok(()),
        false => Err(Error::NotThePods { pod: pod.to_owned(), addresses: addresses.to_vec() }),
    }
}

/// Removes the rules and routes, and checks that nothing of them is left. `pod` is for messages.
pub(crate) fn remove(pod: &str, netns: &NetNs) -> Result<(), Error> {
    let attempt = || Error::kernel(format!("remove the packet rules of pod {pod}"));
    netns.run(uninstall).map_err(attempt())?.map_err(attempt())
}

fn holds_one(addresses: &[IpAddr]) -> Result<bool, ambit_linux::Error> {
    let held: HashSet<IpAddr> = route::addresses()?.iter().map(IpAddr::to_canonical).collect();
    Ok(addresses.iter().any(|address| held.contains(address)))
}

/// Whether a namespace holds one of the addresses; one that cannot be entered does not.
pub(crate) fn is_of(netns: &NetNs, addresses: &[IpAddr]) -> bool {
    matches!(netns.run(|| holds_one(addresses)), Ok(Ok(true)))
}

/// Routes first: rules that mark packets must find the table the marks point to.
fn install(capture: &Capture) -> Result<(), ambit_linux::Error> {
    for wanted in routes(capture) {
        route::add_marked(&wanted)?;
    }
    let batch = plan_capture(capture);
    nft::apply(&batch)?;
    compare(capture, &batch)
}

fn routes(capture: &Capture) -> impl Iterator<Item = ambit_rules::pod::MarkedRoute> {
    let ipv6 = route::ipv6_on_loopback();
    plan_routes(capture.families).into_iter().filter(move |wanted| wanted.family != Family::Ip6 || ipv6)
}

/// Whether routes and rules are what the plan says.
fn compare(capture: &Capture, batch: &Batch) -> Result<(), ambit_linux::Error> {
    for wanted in routes(capture) {
        if !route::has_marked(&wanted)? {
            return Err(not_in_place("the routing rule and route for marked replies", "both", "not both"));
        }
    }
    nft::verify(batch)
}

/// Checks that the rules and routes of a captured pod are there. `pod` is for messages.
pub(crate) fn verify(pod: &str, netns: &NetNs, capture: &Capture) -> Result<(), Error> {
    let attempt = || Error::kernel(format!("find the packet rules of pod {pod} in place"));
    netns.run(|| compare(capture, &plan_capture(capture))).map_err(attempt())?.map_err(attempt())
}

fn uninstall() -> Result<(), ambit_linux::Error> {
    let ours: Vec<String> = tables().iter().map(ToString::to_string).collect();
    // Asking first: a namespace without anything of ours is not even touched.
    if nft::tables()?.iter().any(|table| ours.contains(table)) {
        nft::apply(&plan_release())?;
    }
    for unwanted in plan_routes(Families::Dual) {
        route::remove_marked(&unwanted)?;
    }
    match nft::tables()?.into_iter().find(|table| ours.contains(table)) {
        Some(left) => Err(not_in_place(&left, "no such table", "it")),
        None => Ok(()),
    }
}

fn not_in_place(object: &str, expected: &str, found: &str) -> ambit_linux::Error {
    ambit_linux::Error::NotInPlace {
        object: object.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}

#[cfg(test)]
mod tests;

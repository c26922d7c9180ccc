//! Service routing: rules as data, their rendering, and the kernel taking them.

use crate::measure::Suite;
use ambit_linux::netns::NetNs;
use ambit_linux::nft;
use ambit_rules::Transport;
use ambit_rules::service::{ServicePort, ServiceRules, Surroundings};
use ambit_runtime::Clock;
use anyhow::{Context, Result};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Services that are routed.
const SERVICES: u16 = 1000;
/// Sequence number of a rendered batch; any will do.
const SEQUENCE: u32 = 1;

pub(crate) fn run(suite: &mut Suite) -> Result<()> {
    let before = ports(3);
    let mut after = before.clone();
    after[500].endpoints.pop();
    let make = |ports: &[ServicePort]| ServiceRules::new(Surroundings::default(), ports.to_vec());
    let (old, new) = (make(&before), make(&after));
    suite.bench("services/rules of 1000 services", 50, 1, || make(&before));
    suite.bench("services/1000 services to netlink bytes", 50, 1, || old.replace().encode(SEQUENCE));
    suite.bench("services/one endpoint of 3000 to netlink bytes", 50, 1, || {
        new.update(&old).map(|batch| batch.encode(SEQUENCE))
    });
    let names = ["services/1000 services into the kernel", "services/one endpoint of 3000 into the kernel"];
    if !names.iter().any(|name| suite.wants(name)) {
        return Ok(());
    }
    match NetNs::create_private() {
        Ok(namespace) => {
            let [whole, one] = namespace.run(|| in_kernel(&old, &new))??;
            suite.record(names[0], whole);
            suite.record(names[1], one);
        }
        Err(error) => names.iter().for_each(|name| suite.skip(name, format!("{error}: run as root"))),
    }
    Ok(())
}

/// Replaces the table with `old`, then changes it to `new`, again and again.
fn in_kernel(old: &ServiceRules, new: &ServiceRules) -> Result<[Vec<Duration>; 2]> {
    let update = new.update(old).context("the rules are equal")?;
    let mut samples = [Vec::new(), Vec::new()];
    for _ in 0..30 {
        for (batch, into) in [&old.replace(), &update].into_iter().zip(&mut samples) {
            let start = Clock.now();
            nft::apply(batch)?;
            into.push(Clock.now().duration_since(start));
        }
    }
    Ok(samples)
}

fn ports(endpoints: u8) -> Vec<ServicePort> {
    let endpoint = |n: u16, e: u8| {
        let [high, low] = n.to_be_bytes();
        SocketAddr::from(([10, 244 + e, high, low], 8080))
    };
    let port = |n: u16| {
        let [high, low] = n.to_be_bytes();
        ServicePort {
            address: IpAddr::V4(Ipv4Addr::new(10, 96, high, low)),
            transport: Transport::Tcp,
            port: 80,
            endpoints: (0..endpoints).map(|e| endpoint(n, e)).collect(),
            name: format!("shop/service-{n}:http"),
        }
    };
    (0..SERVICES).map(port).collect()
}

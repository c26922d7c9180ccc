//! Policies: refused connections, and open ones that a change closes.

use crate::traffic::{ask, echo};
use crate::world::{PATIENCE, Pod, World, deny, exact, on_node, policy, strict, until};
use ambit_proto::security::{Action, Match};
use ambit_runtime::Clock;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The longest an open connection may outlive the change that forbids it. A deadline of the product, not of the test.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);

/// An open connection that has proven to work.
async fn held(from: &Pod, to: &Pod) -> TcpStream {
    let mut stream = from.connect(to.at(8080)).await.unwrap();
    while stream.read_u8().await.unwrap() != b'\n' {}
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    stream
}

async fn closed(stream: &mut TcpStream) {
    let end = tokio::time::timeout(PATIENCE, stream.read_u8()).await.expect("the connection must be closed");
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

fn of_client(pod: &Pod) -> Match {
    Match { principals: vec![exact(pod.identity().strip_prefix("spiffe://").unwrap())], ..Default::default() }
}

#[test]
fn a_deny_policy_refuses_new_connections_and_closes_open_ones() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let other = Pod::captured("c", "other", 13);
        let world = World::start(|_| {}).await;
        world.serve(&[&a, &b, &other]).await;
        tokio::spawn(echo(b.listen(8080).await));
        let (mut refused, mut kept) = (held(&a, &b).await, held(&other, &b).await);
        world.control.put_policy(deny("no-client", of_client(&a)));
        world.policies(&["shop/no-client"]).await;
        let known = Clock.now();
        closed(&mut refused).await;
        assert!(Clock.now() - known < CLOSED_WITHIN);
        assert!(ask(&a, b.at(8080)).await.is_err());
        kept.write_all(b"y").await.unwrap();
        assert_eq!(kept.read_u8().await.unwrap(), b'y');
        world.remove_policy("shop/no-client");
        world.policies(&[]).await;
        assert!(ask(&a, b.at(8080)).await.is_ok());
        // An ALLOW for somebody else refuses as well.
        let mut refused = held(&a, &b).await;
        world.control.put_policy(policy("only-other", Action::Allow, of_client(&other)));
        closed(&mut refused).await;
        assert!(ask(&a, b.at(8080)).await.is_err());
        assert!(ask(&other, b.at(8080)).await.is_ok());
        world.stop().await;
    });
}

#[test]
fn strict_mutual_tls_refuses_plain_text_and_closes_it() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let plain = Pod::new("c", "outside", 13);
        let world = World::start(|_| {}).await;
        world.serve(&[&a, &b]).await;
        tokio::spawn(echo(b.listen(8080).await));
        let mut open = held(&plain, &b).await;
        world.control.put_policy(strict());
        closed(&mut open).await;
        assert!(ask(&plain, b.at(8080)).await.is_err());
        assert!(ask(&a, b.at(8080)).await.is_ok());
        world.stop().await;
    });
}

#[test]
fn a_policy_that_selects_the_workload_later_closes_its_connections() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let world = World::start(|_| {}).await;
        world.serve(&[&a, &b]).await;
        tokio::spawn(echo(b.listen(8080).await));
        let mut selected = deny("selected", of_client(&a));
        selected.scope = ambit_proto::security::Scope::WorkloadSelector.into();
        world.control.put_policy(selected);
        world.policies(&["shop/selected"]).await;
        let mut open = held(&a, &b).await;
        let mut workload = b.workload();
        workload.authorization_policies = vec!["shop/selected".into()];
        world.control.put_workload(workload);
        closed(&mut open).await;
        assert!(ask(&a, b.at(8080)).await.is_err());
        world.stop().await;
    });
}

#[test]
fn inv_02_a_policy_that_has_not_arrived_refuses() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let world = World::start(|_| {}).await;
        world.serve(&[&a, &b]).await;
        tokio::spawn(echo(b.listen(8080).await));
        let mut open = held(&a, &b).await;
        let mut workload = b.workload();
        workload.authorization_policies = vec!["shop/late".into()];
        world.control.put_workload(workload.clone());
        closed(&mut open).await;
        assert!(ask(&a, b.at(8080)).await.is_err());
        // A connection that is being held is let through by the policy's arrival.
        let (asked, ()) = tokio::join!(ask(&a, b.at(8080)), async {
            let mut late = policy("late", Action::Allow, of_client(&a));
            late.scope = ambit_proto::security::Scope::WorkloadSelector.into();
            world.control.put_policy(late);
        });
        assert!(asked.is_ok());
        world.stop().await;
    });
}

#[test]
fn inv_03_a_refused_resource_leaves_the_last_good_one_in_force() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let world = World::start(|_| {}).await;
        world.serve(&[&a, &b]).await;
        tokio::spawn(echo(b.listen(8080).await));
        assert!(ask(&a, b.at(8080)).await.is_ok());
        let mut broken = b.workload();
        broken.tunnel_protocol = 77;
        world.control.put_workload(broken);
        world.control.put_raw(ambit_names::type_url::AUTHORIZATION, "shop/garbage", vec![0xff; 7]);
        let nacks = || async {
            let nacks = world.control.seen.lock().unwrap().nacks.clone();
            (nacks.len() >= 2).then_some(nacks)
        };
        let nacks = until("both are refused", nacks).await;
        assert!(nacks.iter().any(|text| text.contains("tunnel_protocol")), "{nacks:?}");
        assert!(nacks.iter().any(|text| text.contains("shop/garbage")), "{nacks:?}");
        // The workload is still known, and the policy that cannot be read refuses.
        assert!(ask(&a, b.at(8080)).await.is_err());
        world.remove_policy("shop/garbage");
        until("the namespace is free again", || async { ask(&a, b.at(8080)).await.ok() }).await;
        world.stop().await;
    });
}

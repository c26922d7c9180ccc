//! The hand-over of pods, with a well-behaved agent and with others.

use crate::traffic::{ask, echo};
use crate::world::{PATIENCE, Pod, World, on_node, until};
use ambit_linux::netns::NetNs;
use ambit_proxy::Error;
use rand::{Rng as _, SeedableRng as _};
use std::net::SocketAddr;

fn listens(pod: &Pod) -> bool {
    let to = SocketAddr::from(([127, 0, 0, 1], 15008));
    pod.ns.run(|| std::net::TcpStream::connect(to).is_ok()).unwrap()
}

#[test]
fn a_deleted_pod_is_no_longer_served() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let world = World::start(|_| {}).await;
        world.serve(&[&a, &b]).await;
        assert!(listens(&b));
        // The same pod again is nothing new.
        assert_eq!(world.agent.add(&b).await.as_deref(), Some(""));
        assert_eq!(world.agent.delete(&b).await.as_deref(), Some(""));
        until("the listeners are gone", || async { (!listens(&b)).then_some(()) }).await;
        assert!(listens(&a));
        world.stop().await;
        assert!(!listens(&a));
    });
}

#[test]
fn after_a_reconnect_only_named_pods_are_served_on() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let gone = Pod::captured("c", "gone", 13);
        let mut world = World::start(|_| {}).await;
        world.serve(&[&a, &b, &gone]).await;
        tokio::spawn(echo(b.listen(8080).await));
        world.agent.hang_up();
        until("not ready without an agent", || async {
            (!world.readiness.waiting_for().is_empty()).then_some(())
        })
        .await;
        // Existing pods are served all the while.
        assert!(ask(&a, b.at(8080)).await.is_ok());
        world.agent.accept().await;
        assert_eq!(world.agent.keep(&a).await.as_deref(), Some(""));
        assert_eq!(world.agent.add(&b).await.as_deref(), Some(""));
        assert!(listens(&gone), "nothing goes before the snapshot is complete");
        assert_eq!(world.agent.snapshot_sent().await.as_deref(), Some(""));
        until("the unnamed pod is released", || async { (!listens(&gone)).then_some(()) }).await;
        world.ready().await;
        assert!(ask(&a, b.at(8080)).await.is_ok());
        world.stop().await;
    });
}

#[test]
fn a_pod_that_cannot_be_started_is_refused_and_tried_again() {
    on_node(|| async {
        let a = Pod::captured("a", "client", 11);
        // Somebody else's listener, without port sharing.
        let squatter = a.listen(15006).await;
        let world = World::start(|_| {}).await;
        world.control.put_workload(a.workload());
        let error = world.agent.add(&a).await.unwrap();
        assert!(error.contains("in use"), "{error}");
        assert_eq!(world.agent.snapshot_sent().await.as_deref(), Some(""));
        let (status, body) = world.get(15021, "/healthz/ready").await;
        assert_eq!((status, body.contains("hand-over")), (500, true), "{body}");
        assert_eq!(world.get(15021, "/elsewhere").await.0, 404);
        drop(squatter);
        world.ready().await;
        assert!(listens(&a));
        world.stop().await;
    });
}

#[test]
fn inv_08_no_packet_of_the_agent_ends_the_proxy_but_a_nameless_pod() {
    on_node(|| async {
        let ns = NetNs::current().unwrap();
        let mut world = World::start(|_| {}).await;
        let mut rng = rand::rngs::StdRng::seed_from_u64(8);
        for round in 0..200 {
            let mut bytes = vec![0; rng.random_range(1..1500)];
            rng.fill(bytes.as_mut_slice());
            // Some begin like a request, so that the decoder gets further; none is a whole `add` by accident.
            if round % 2 == 0 {
                bytes[0] = [0x12, 0x2a][round / 2 % 2];
            }
            let with = (round % 3 == 0).then_some(&ns);
            if world.agent.send_raw(&bytes, with).await.is_none_or(|error| !error.is_empty()) {
                world.agent.hang_up();
                world.agent.accept().await;
                // Something good in between: the proxy comes back ever later to an agent that sends nothing else.
                assert_eq!(world.agent.send_raw(&[0x2a, 0x00], None).await.as_deref(), Some(""));
            }
        }
        // A request without the descriptor it needs, and one with a descriptor too many.
        assert_ne!(world.agent.send_raw(&[0x0a, 0x02, 0x0a, 0x00], None).await.as_deref(), Some(""));
        world.agent.accept().await;
        assert_ne!(world.agent.send_raw(&[0x1a, 0x00], Some(&ns)).await.as_deref(), Some(""));
        world.agent.accept().await;
        // A pod without a name cannot be skipped: the proxy ends, and says why.
        assert_eq!(world.agent.send_raw(&[0x0a, 0x02, 0x0a, 0x00], Some(&ns)).await, None);
        let ended = tokio::time::timeout(PATIENCE, world.proxy.take().unwrap()).await.unwrap().unwrap();
        assert!(matches!(ended, Err(Error::Handover { .. })), "{ended:?}");
    });
}

#[test]
fn discovery_is_resumed_with_what_is_known() {
    on_node(|| async {
        let (a, b) = (Pod::captured("a", "client", 11), Pod::captured("b", "server", 12));
        let world = World::start(|_| {}).await;
        world.serve(&[&a, &b]).await;
        tokio::spawn(echo(b.listen(8080).await));
        assert!(ask(&a, b.at(8080)).await.is_ok());
        world.control.drop_streams();
        until("the stream is opened again", || async {
            let seen = world.control.seen.lock().unwrap();
            (seen.streams >= 2 && seen.known.len() == 2).then_some(())
        })
        .await;
        assert!(ask(&a, b.at(8080)).await.is_ok());
        // What went while nobody was listening is gone.
        world.control.remove(ambit_names::type_url::ADDRESS, &b.uid());
        until("the workload is forgotten", || async {
            (!world.get(15000, "/config_dump").await.1.contains(&format!("\"uid\":\"{}\"", b.uid())))
                .then_some(())
        })
        .await;
        world.stop().await;
    });
}

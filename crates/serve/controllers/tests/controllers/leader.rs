//! Leader election on the real server.

use crate::cluster::{Cluster, eventually};
use ambit_api::coordination::v1::Lease;
use ambit_kube::{LeaderElection, LeaderSettings};
use ambit_runtime::Shutdown;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::task::JoinHandle;

fn settings(identity: &str) -> LeaderSettings {
    LeaderSettings {
        lease: Duration::from_secs(1),
        renew: Duration::from_millis(500),
        retry: Duration::from_millis(20),
        ..LeaderSettings::new("default", "test", identity)
    }
}

/// Who leads now, and the most that ever led at once.
#[derive(Clone, Default)]
struct Leaders {
    now: Arc<Mutex<Vec<String>>>,
    most: Arc<AtomicUsize>,
}

struct Candidate {
    stop: Shutdown,
    task: JoinHandle<()>,
}

impl Leaders {
    fn stand(&self, client: &Client, identity: &str) -> Candidate {
        let election = LeaderElection::new(client.clone(), settings(identity)).expect("times that fit");
        let (leaders, stop, name) = (self.clone(), Shutdown::new(), identity.to_owned());
        let shutdown = stop.clone();
        let task = tokio::spawn(async move {
            let work = |lost: Shutdown| {
                let (leaders, name) = (leaders.clone(), name.clone());
                async move {
                    let leading = {
                        let mut now = leaders.now();
                        now.push(name.clone());
                        now.len()
                    };
                    leaders.most.fetch_max(leading, Ordering::SeqCst);
                    lost.cancelled().await;
                    leaders.now().retain(|one| *one != name);
                }
            };
            election.run(work, &shutdown).await;
        });
        Candidate { stop, task }
    }

    fn now(&self) -> MutexGuard<'_, Vec<String>> {
        self.now.lock().expect("no candidate panics")
    }

    async fn one(&self) -> String {
        eventually("there is a leader", async || self.now().first().cloned()).await
    }
}

async fn lease(cluster: &Cluster) -> Lease {
    eventually("there is a lease", async || {
        cluster.api::<Lease>("default").get_opt("test").await.expect("an answer")
    })
    .await
}

#[tokio::test]
async fn one_of_many_leads_and_another_takes_over_when_it_stops() {
    let cluster = Cluster::bare().await;
    let leaders = Leaders::default();
    let mut candidates: Vec<(String, Candidate)> = ["a", "b", "c"]
        .into_iter()
        .map(|name| (name.to_owned(), leaders.stand(&cluster.client, name)))
        .collect();
    for left in (0..3).rev() {
        let leader = leaders.one().await;
        let at = candidates.iter().position(|(name, _)| *name == leader).expect("a candidate");
        let (_, candidate) = candidates.remove(at);
        candidate.stop.cancel();
        candidate.task.await.expect("it ends");
        assert_eq!(candidates.len(), left);
    }
    assert_eq!(leaders.most.load(Ordering::SeqCst), 1);
    let spec = lease(&cluster).await.spec.expect("a spec");
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some(""), Some(2)));
    cluster.stop().await;
}

#[tokio::test]
async fn a_leader_that_is_killed_is_followed_once_its_lease_has_run_out() {
    let cluster = Cluster::bare().await;
    let leaders = Leaders::default();
    let first = leaders.stand(&cluster.client, "first");
    assert_eq!(leaders.one().await, "first");
    first.task.abort();
    leaders.now().clear();
    let second = leaders.stand(&cluster.client, "second");
    assert_eq!(leaders.one().await, "second");
    assert_eq!(lease(&cluster).await.spec.expect("a spec").holder_identity.as_deref(), Some("second"));
    second.stop.cancel();
    second.task.await.expect("it ends");
    cluster.stop().await;
}

#[tokio::test]
async fn a_leader_whose_lease_is_taken_stops_and_clocks_do_not_matter() {
    let cluster = Cluster::bare().await;
    let leaders = Leaders::default();
    let candidate = leaders.stand(&cluster.client, "ours");
    assert_eq!(leaders.one().await, "ours");
    // A foreign component with a clock far in the past takes the lease.
    let api: Api<Lease> = cluster.api("default");
    let taken = json!({"spec": {"holderIdentity": "foreign", "leaseDurationSeconds": 1,
        "renewTime": "2001-01-01T00:00:00.000000Z"}});
    api.patch("test", &PatchParams::default(), &Patch::Merge(taken)).await.expect("it is taken");
    eventually("ours has stopped", async || leaders.now().is_empty().then_some(())).await;
    // Nobody renews it, so ours leads again.
    assert_eq!(leaders.one().await, "ours");
    candidate.stop.cancel();
    candidate.task.await.expect("it ends");
    cluster.stop().await;
}

#[tokio::test]
async fn a_leader_without_a_server_stops_in_time() {
    let cluster = Cluster::bare().await;
    // A transport that can be cut.
    let cut = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (inner, is_cut) = (cluster.client.clone(), cut.clone());
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, is_cut) = (inner.clone(), is_cut.clone());
        async move {
            if is_cut.load(Ordering::SeqCst) {
                return Err(Box::<dyn std::error::Error + Send + Sync>::from("no route to the server"));
            }
            client.send(request).await.map_err(Into::into)
        }
    });
    let leaders = Leaders::default();
    let candidate = leaders.stand(&Client::new(service, "default"), "ours");
    assert_eq!(leaders.one().await, "ours");
    cut.store(true, Ordering::SeqCst);
    eventually("it has stopped", async || leaders.now().is_empty().then_some(())).await;
    cut.store(false, Ordering::SeqCst);
    assert_eq!(leaders.one().await, "ours");
    candidate.stop.cancel();
    candidate.task.await.expect("it ends");
    cluster.stop().await;
}

#[tokio::test]
async fn times_that_do_not_fit_are_refused() {
    let cluster = Cluster::bare().await;
    let with = |lease, renew, retry| {
        let times = [lease, renew, retry].map(Duration::from_millis);
        let settings = LeaderSettings { lease: times[0], renew: times[1], retry: times[2], ..settings("x") };
        LeaderElection::new(cluster.client.clone(), settings).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(with(2000, 1000, 100), Ok(()));
    for (lease, renew, retry) in [(1000, 1000, 100), (2000, 1000, 900), (1500, 1000, 100), (2000, 1000, 0)] {
        assert!(with(lease, renew, retry).unwrap_err().contains("lease > renew"), "{lease} {renew} {retry}");
    }
    cluster.stop().await;
}

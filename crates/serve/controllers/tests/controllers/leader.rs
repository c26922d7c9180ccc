//! Leader election on the real server.

use crate::cluster::{Cluster, eventually};
use ambit_api::coordination::v1::Lease;
use ambit_controllers::Settings;
use ambit_kube::{LeaderElection, LeaderSettings, Term};
use ambit_runtime::{Readiness, Shutdown};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Times with which a lease runs out soon.
fn short(identity: &str) -> LeaderSettings {
    LeaderSettings {
        lease: Duration::from_secs(1),
        renew: Duration::from_millis(500),
        retry: Duration::from_millis(20),
        ..LeaderSettings::new("default", "test", identity)
    }
}

/// Times with which no lease runs out, however slow the machine is.
fn long(identity: &str) -> LeaderSettings {
    LeaderSettings {
        lease: Duration::from_secs(600),
        renew: Duration::from_secs(300),
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

/// Leads until dropped, as work does that ends or is dropped.
struct Leading {
    leaders: Leaders,
    name: String,
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.leaders.now().retain(|one| *one != self.name);
    }
}

struct Candidate {
    stop: Shutdown,
    task: JoinHandle<()>,
}

impl Leaders {
    /// A candidate whose work ends when it is told to.
    fn stand(&self, client: &Client, settings: LeaderSettings) -> Candidate {
        self.stand_with(client, settings, |term| async move { term.stop().cancelled().await })
    }

    fn stand_with<F>(
        &self,
        client: &Client,
        settings: LeaderSettings,
        work: impl Fn(Term) -> F + Send + Sync + 'static,
    ) -> Candidate
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let name = settings.identity.clone();
        let election = LeaderElection::new(client.clone(), settings).expect("times that fit");
        let (leaders, stop) = (self.clone(), Shutdown::new());
        let shutdown = stop.clone();
        let task = tokio::spawn(async move {
            let lead = |term: Term| {
                let leading = leaders.begin(&name);
                let work = work(term);
                async move {
                    work.await;
                    drop(leading);
                }
            };
            election.run(lead, &shutdown).await;
        });
        Candidate { stop, task }
    }

    fn begin(&self, name: &str) -> Leading {
        let mut now = self.now();
        now.push(name.to_owned());
        self.most.fetch_max(now.len(), Ordering::SeqCst);
        Leading { leaders: self.clone(), name: name.to_owned() }
    }

    fn now(&self) -> MutexGuard<'_, Vec<String>> {
        self.now.lock().expect("no candidate panics")
    }

    async fn one(&self) -> String {
        eventually("there is a leader", async || self.now().first().cloned()).await
    }
}

/// A client whose transport can be cut.
fn cuttable(client: &Client) -> (Client, Arc<AtomicBool>) {
    let cut = Arc::new(AtomicBool::new(false));
    let (inner, is_cut) = (client.clone(), cut.clone());
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, is_cut) = (inner.clone(), is_cut.clone());
        async move {
            if is_cut.load(Ordering::SeqCst) {
                return Err(Box::<dyn std::error::Error + Send + Sync>::from("no route to the server"));
            }
            client.send(request).await.map_err(Into::into)
        }
    });
    (Client::new(service, "default"), cut)
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
        .map(|name| (name.to_owned(), leaders.stand(&cluster.client, long(name))))
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
    let first = leaders.stand(&cluster.client, short("first"));
    assert_eq!(leaders.one().await, "first");
    first.task.abort();
    assert!(first.task.await.expect_err("it was killed").is_cancelled());
    assert!(leaders.now().is_empty());
    let second = leaders.stand(&cluster.client, long("second"));
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
    let candidate = leaders.stand(&cluster.client, long("ours"));
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
    let (client, cut) = cuttable(&cluster.client);
    let leaders = Leaders::default();
    let candidate = leaders.stand(&client, short("ours"));
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
async fn the_lease_is_kept_while_the_work_winds_down() {
    let cluster = Cluster::bare().await;
    let leaders = Leaders::default();
    let finish = Shutdown::new();
    let until = finish.clone();
    let slow = move |_: Term| until.clone().cancelled_owned();
    let first = leaders.stand_with(&cluster.client, long("first"), slow);
    assert_eq!(leaders.one().await, "first");
    let second = leaders.stand(&cluster.client, long("second"));
    first.stop.cancel();
    // It renews several times more, and the other one waits.
    let renewed = async || lease(&cluster).await.spec.and_then(|spec| spec.renew_time);
    for _ in 0..5 {
        let before = renewed().await;
        eventually("it is renewed", async || (renewed().await != before).then_some(())).await;
        assert_eq!(*leaders.now(), ["first"]);
    }
    finish.cancel();
    first.task.await.expect("it ends");
    assert_eq!(leaders.one().await, "second");
    assert_eq!(leaders.most.load(Ordering::SeqCst), 1);
    second.stop.cancel();
    second.task.await.expect("it ends");
    cluster.stop().await;
}

#[tokio::test]
async fn work_that_does_not_end_is_dropped_and_writes_nothing_meanwhile() {
    let cluster = Cluster::bare().await;
    let (client, cut) = cuttable(&cluster.client);
    let leaders = Leaders::default();
    let (refused, is_refused) = tokio::sync::watch::channel(false);
    let server = cluster.client.clone();
    let deaf = move |term: Term| {
        let (refused, client) = (refused.clone(), term.client(server.clone()));
        async move {
            term.stop().cancelled().await;
            // Its own way to the server is not cut.
            let api: Api<Lease> = Api::namespaced(client, "default");
            let error = api.delete("unrelated", &kube::api::DeleteParams::default()).await;
            refused
                .send_replace(error.is_err_and(|error| error.to_string().contains("is not held any more")));
            std::future::pending::<()>().await;
        }
    };
    let first = leaders.stand_with(&client, short("first"), deaf);
    assert_eq!(leaders.one().await, "first");
    cut.store(true, Ordering::SeqCst);
    eventually("its write is refused", async || is_refused.borrow().then_some(())).await;
    eventually("its work is dropped", async || leaders.now().is_empty().then_some(())).await;
    let second = leaders.stand(&cluster.client, long("second"));
    assert_eq!(leaders.one().await, "second");
    for candidate in [first, second] {
        candidate.stop.cancel();
        candidate.task.await.expect("it ends");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn of_two_replicas_of_the_controllers_one_works_and_the_other_follows() {
    let cluster = Cluster::bare().await;
    let replica = |name: &str| {
        let readiness = Readiness::default();
        let settings = Settings { leader: Some(long(name)), ..Settings::default() };
        let stop = Shutdown::new();
        let mut run = Box::pin(ambit_controllers::run(
            settings,
            cluster.client.clone(),
            readiness.clone(),
            stop.clone(),
        ));
        async move {
            // It blocks readiness when it is first polled.
            assert!(futures::poll!(&mut run).is_pending());
            let task = tokio::spawn(run);
            eventually("it is ready", async || readiness.waiting_for().is_empty().then_some(())).await;
            (stop, task)
        }
    };
    let holder =
        async || lease(&cluster).await.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    let (first_stop, first) = replica("first").await;
    assert_eq!(holder().await, "first");
    let (second_stop, second) = replica("second").await;
    assert_eq!(holder().await, "first", "the second is ready and waits");
    first_stop.cancel();
    first.await.expect("no panic").expect("it ends");
    // Somebody works: a namespace gets its account.
    cluster.create_namespace("later").await;
    cluster.await_count::<ambit_api::core::v1::ServiceAccount>("later", 1).await;
    assert_eq!(holder().await, "second");
    second_stop.cancel();
    second.await.expect("no panic").expect("it ends");
    cluster.stop().await;
}

#[tokio::test]
async fn times_that_do_not_fit_are_refused() {
    let cluster = Cluster::bare().await;
    let with = |lease, renew, retry| {
        let times = [lease, renew, retry].map(Duration::from_millis);
        let settings = LeaderSettings { lease: times[0], renew: times[1], retry: times[2], ..long("x") };
        LeaderElection::new(cluster.client.clone(), settings).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(with(2000, 1000, 100), Ok(()));
    for (lease, renew, retry) in [(1000, 1000, 100), (2000, 1000, 900), (1500, 1000, 100), (2000, 1000, 0)] {
        assert!(with(lease, renew, retry).unwrap_err().contains("lease > renew"), "{lease} {renew} {retry}");
    }
    cluster.stop().await;
}

//! A complete controller, to be read and copied: `cargo run -p ambit-controllers --example controller [KUBECONFIG]`.
//!
//! Every namespace with the label `example.ambit.dev/team` gets a ConfigMap `team` that names it; without the label it
//! has none. Without a kubeconfig the example brings its own API server in memory. It acts as the user too, says what
//! happens, and ends by itself. `docs/writing-a-controller.md` says why each part is as it is.

#![expect(clippy::print_stdout, reason = "an example shows what happens")]

use ambit_api::core::v1::{ConfigMap, Namespace};
use ambit_api::meta::ObjectMeta;
use ambit_apiserver::{ApiServer, Storage};
use ambit_kube::{
    EventRecorder, EventType, Informer, Informers, LeaderElection, LeaderSettings, Next, Query, Queue,
    QueueMetrics, QueueSettings, Term, is_already_exists, is_not_found,
};
use ambit_runtime::{Readiness, Shutdown, TaskGroup};
use ambit_trust::pki::ClusterPki;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Resource, ResourceExt};
use prometheus_client::registry::Registry;
use serde_json::json;
use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

/// Name of this controller in events, leases and field ownership.
const NAME: &str = "team-controller";
const LABEL: &str = "example.ambit.dev/team";
const CONFIG_MAP: &str = "team";
/// The namespace that the example's user makes and removes.
const DEMO_NAMESPACE: &str = "example-controller";
/// Longest wait for any step of the demonstration.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is to be written. Deciding and writing are apart, so that every decision can be tested without a cluster.
#[derive(Debug, PartialEq)]
enum Effect {
    Create(Box<ConfigMap>),
    /// Somebody else changed it.
    Restore(BTreeMap<String, String>),
    Delete,
}

/// The decision: pure, from what the informers show to what is to be done.
fn reconcile(namespace: Option<&Namespace>, map: Option<&ConfigMap>) -> Option<Effect> {
    let namespace = namespace.filter(|namespace| namespace.metadata.deletion_timestamp.is_none())?;
    let Some(team) = namespace.labels().get(LABEL) else { return map.map(|_| Effect::Delete) };
    let wanted = BTreeMap::from([("team".to_owned(), team.clone())]);
    match map {
        None => Some(Effect::Create(Box::new(ConfigMap {
            metadata: ObjectMeta { name: Some(CONFIG_MAP.to_owned()), ..ObjectMeta::default() },
            data: Some(wanted),
            ..ConfigMap::default()
        }))),
        Some(map) if map.data.as_ref() == Some(&wanted) => None,
        Some(_) => Some(Effect::Restore(wanted)),
    }
}

/// Made without any I/O; works in `run`.
struct TeamController {
    client: Client,
    namespaces: Informer<Namespace>,
    maps: Informer<ConfigMap>,
    queue: Queue<String>,
    events: EventRecorder,
}

impl TeamController {
    fn new(informers: &Informers, metrics: &QueueMetrics) -> Self {
        let namespaces = informers.informer::<Namespace>(Query::all());
        let maps =
            informers.informer::<ConfigMap>(Query::all().fields(format!("metadata.name={CONFIG_MAP}")));
        // Nothing is handled before both views are whole: a missing half would look like deletions.
        let settings =
            QueueSettings::new("teams").after([namespaces.synced(), maps.synced()]).metrics(metrics);
        let queue: Queue<String> = Queue::with(settings);
        // Handlers only say whose turn it is. What to do is decided from the views, when its turn comes.
        let adds = queue.clone();
        namespaces.on_change(move |change| adds.add(change.latest().name_any()));
        let adds = queue.clone();
        maps.on_change(move |change| adds.add(change.latest().namespace().unwrap_or_default()));
        let client = informers.client().clone();
        let events = EventRecorder::new(client.clone(), NAME, None);
        Self { client, namespaces, maps, queue, events }
    }

    /// Works until `stop`.
    async fn run(&self, stop: &Shutdown) {
        let caught_up = async {
            self.queue.caught_up().await;
            println!("controller: all that existed at the start has been handled");
        };
        tokio::join!(self.queue.run(|name| self.sync(name), stop), async {
            tokio::select! {
                () = caught_up => {}
                () = stop.cancelled() => {}
            }
        });
    }

    async fn sync(&self, name: String) -> Result<Next, kube::Error> {
        let namespace = self.namespaces.get(None, &name);
        let map = self.maps.get(Some(&name), CONFIG_MAP);
        let Some(effect) = reconcile(namespace.as_deref(), map.as_deref()) else { return Ok(Next::Done) };
        println!("controller: {name}: {}", describe(&effect));
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &name);
        let (done, reason) = match &effect {
            Effect::Create(map) => (api.create(&PostParams::default(), map).await.map(drop), "TeamPublished"),
            Effect::Restore(data) => {
                let params = PatchParams { field_manager: Some(NAME.to_owned()), ..PatchParams::default() };
                let patch = Patch::Merge(json!({ "data": data }));
                (api.patch(CONFIG_MAP, &params, &patch).await.map(drop), "TeamRestored")
            }
            Effect::Delete => {
                (api.delete(CONFIG_MAP, &DeleteParams::default()).await.map(drop), "TeamWithdrawn")
            }
        };
        match done {
            Ok(()) => {
                if let Some(namespace) = namespace {
                    let about = namespace.object_ref(&());
                    self.events.record(&about, EventType::Normal, reason, describe(&effect));
                }
            }
            // The view lagged behind: its next change brings the key back.
            Err(error) if is_already_exists(&error) || is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(Next::Done)
    }
}

fn describe(effect: &Effect) -> String {
    match effect {
        Effect::Create(map) => {
            format!("create {CONFIG_MAP} with {:?}", map.data.iter().flatten().collect::<Vec<_>>())
        }
        Effect::Restore(data) => format!("restore {CONFIG_MAP} to {data:?}"),
        Effect::Delete => format!("delete {CONFIG_MAP}"),
    }
}

/// The role: puts the parts together, stands for election, works, and leaves nothing running.
async fn run(client: Client, metrics: &QueueMetrics, stop: &Shutdown) -> Result<(), Box<dyn Error>> {
    let election = LeaderElection::new(
        client.clone(),
        LeaderSettings::new("default", NAME, format!("example_{}", std::process::id())),
    )?;
    let work = |term: Term| lead(client.clone(), metrics, term);
    election.run(work, stop).await;
    Ok(())
}

/// One term as the leader. The views are built anew for each: what was seen in an earlier term may be long untrue.
async fn lead(client: Client, metrics: &QueueMetrics, term: Term) {
    println!("controller: became the leader");
    let stop = term.stop().clone();
    // Nothing is written with this client once the lease is lost.
    let informers = Informers::new(term.client(client));
    let controller = TeamController::new(&informers, metrics);
    let mut tasks = TaskGroup::<std::io::Error>::new(stop.clone());
    let (events, until) = (controller.events.clone(), stop.clone());
    tasks.spawn("events", async move {
        events.run(&until).await;
        Ok(())
    });
    if informers.run_and_wait(&stop).await.is_ok() {
        controller.run(&stop).await;
    }
    if let Err(error) = tasks.join().await {
        println!("controller: a task failed: {error}");
    }
    if let Err(error) = informers.join().await {
        println!("controller: {error}");
    }
}

/// What a user does, step by step.
async fn demonstrate(client: Client) -> Result<(), Box<dyn Error>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let maps: Api<ConfigMap> = Api::namespaced(client, DEMO_NAMESPACE);
    let label = async |team: Option<&str>| {
        let patch = json!({"metadata": {"labels": {LABEL: team}}});
        namespaces.patch(DEMO_NAMESPACE, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    };
    println!("user: makes the namespace {DEMO_NAMESPACE} of team red");
    let meta = json!({"metadata": {"name": DEMO_NAMESPACE, "labels": {LABEL: "red"}}});
    namespaces.create(&PostParams::default(), &serde_json::from_value(meta)?).await?;
    see(&maps, Some("red")).await?;
    println!("user: gives it to team blue");
    label(Some("blue")).await?;
    see(&maps, Some("blue")).await?;
    println!("user: edits the ConfigMap");
    let edit = Patch::Merge(json!({"data": {"team": "mine"}}));
    maps.patch(CONFIG_MAP, &PatchParams::default(), &edit).await?;
    see(&maps, Some("blue")).await?;
    println!("user: takes the label away");
    label(None).await?;
    see(&maps, None).await?;
    println!("user: removes the namespace");
    namespaces.delete(DEMO_NAMESPACE, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits until the ConfigMap is as expected.
async fn see(maps: &Api<ConfigMap>, expected: Option<&str>) -> Result<(), Box<dyn Error>> {
    let seen = async {
        loop {
            let map = maps.get_opt(CONFIG_MAP).await?;
            let team = map.as_ref().and_then(|map| map.data.as_ref()?.get("team"));
            if team.map(String::as_str) == expected {
                return Ok::<_, kube::Error>(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, seen).await.map_err(|_| format!("did not see {expected:?} in time"))??;
    println!("user: sees {}", expected.unwrap_or("nothing any more"));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let stop = Shutdown::new();
    let server_stop = Shutdown::new();
    let (client, server) = match std::env::args().nth(1) {
        Some(file) => {
            let config = Kubeconfig::read_from(&file)?;
            let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
            (Client::try_from(config)?, None)
        }
        None => {
            let server = ApiServer::open(ambit_apiserver::Settings {
                storage: Storage::Memory,
                listen: None,
                advertise: None,
                pki: ClusterPki::in_memory(&["127.0.0.1".to_owned()])?,
                service_cidr: "10.96.0.0/16".parse()?,
                cluster_domain: "cluster.local".to_owned(),
            })
            .await?;
            let client = server.client("ambit:example", &["system:masters"]);
            let until = server_stop.clone();
            (client, Some(tokio::spawn(server.run(Readiness::default(), until))))
        }
    };
    let metrics = QueueMetrics::default();
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let (ended, shown) = tokio::join!(run(client.clone(), &metrics, &stop), async {
        let shown = demonstrate(client).await;
        stop.cancel();
        shown
    });
    ended?;
    println!("controller: gave the lease up and ended");
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    for line in text.lines().filter(|line| line.starts_with("workqueue") && !line.contains("_bucket")) {
        println!("metrics: {line}");
    }
    server_stop.cancel();
    if let Some(server) = server {
        server.await??;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(label: Option<&str>, map: Option<&str>, expected: &str) {
        let labels: BTreeMap<_, _> = label.map(|team| (LABEL, team)).into_iter().collect();
        let namespace = json!({"metadata": {"name": "n", "labels": labels}});
        let namespace: Namespace = serde_json::from_value(namespace).unwrap();
        let map: Option<ConfigMap> =
            map.map(|team| serde_json::from_value(json!({"data": {"team": team}})).unwrap());
        let effect = reconcile(Some(&namespace), map.as_ref());
        assert_eq!(effect.as_ref().map(describe).unwrap_or_default(), expected);
    }

    #[test]
    fn the_decision_needs_no_cluster() {
        check(None, None, "");
        check(None, Some("red"), "delete team");
        check(Some("red"), None, "create team with [(\"team\", \"red\")]");
        check(Some("red"), Some("red"), "");
        check(Some("red"), Some("blue"), "restore team to {\"team\": \"red\"}");
        assert_eq!(reconcile(None, None), None);
    }
}

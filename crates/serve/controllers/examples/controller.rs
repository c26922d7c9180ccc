//! A complete controller, to be read and copied: `cargo run -p ambit-controllers --example controller [KUBECONFIG]`.
//!
//! Every `Team` that is published gets a ConfigMap of its name with its members, and says in its status what became of it.
//! Without a kubeconfig the example brings its own API server in memory. It acts as the user too, says what happens, and
//! ends by itself. `docs/writing-a-controller.md` says why each part is as it is.

#![expect(clippy::print_stdout, reason = "an example shows what happens")]

use ambit_api::apiextensions::CustomResourceDefinition;
use ambit_api::core::v1::{ConfigMap, Namespace};
use ambit_api::meta::{Condition, ObjectMeta};
use ambit_apiserver::{ApiServer, Storage};
use ambit_kube::{
    Applier, EventRecorder, EventType, FieldManager, Finding, Informer, Informers, LeaderElection,
    LeaderSettings, Next, ObjectKey, ObjectSet, OnConflict, Query, Queue, QueueMetrics, QueueSettings, Term,
    WriteError, WriteMetrics, conditions,
};
use ambit_runtime::{Clock, Readiness, Shutdown, TaskGroup};
use ambit_trust::pki::ClusterPki;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, CustomResource, Resource, ResourceExt};
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

/// Name of this controller in events, leases and field ownership.
const NAME: &str = "team-controller";
/// Label of the ConfigMaps of a team, with its name.
const LABEL: &str = "example.ambit.dev/team";
/// How soon to look again for a name that somebody else has: no view shows when it is free.
const TAKEN_DELAY: Duration = Duration::from_secs(30);
/// The namespace that the example's user makes and removes, and the team in it.
const DEMO_NAMESPACE: &str = "example-controller";
const DEMO_TEAM: &str = "red";
/// Longest wait for any step of the demonstration.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a user wants of a team.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(group = "example.ambit.dev", version = "v1", kind = "Team", namespaced)]
#[kube(status = "TeamStatus", schema = "disabled", crates(k8s_openapi = "ambit_api::k8s_openapi"))]
struct TeamSpec {
    members: Vec<String>,
    #[serde(default)]
    published: bool,
}

/// What the controller says of a team.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct TeamStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
}

/// The definition of the kind. Conditions are a list by type: everybody applies only their own.
fn definition() -> serde_json::Value {
    let text = json!({"type": "string"});
    let condition = json!({"type": "object", "required": ["type", "status"], "properties": {
        "type": text, "status": text, "reason": text, "message": text, "observedGeneration": {"type": "integer"},
        "lastTransitionTime": {"type": "string", "format": "date-time"}}});
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["members"], "properties": {
            "members": {"type": "array", "items": text}, "published": {"type": "boolean"}}},
        "status": {"type": "object", "properties": {"conditions": {"type": "array", "items": condition,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}}}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "teams.example.ambit.dev"},
        "spec": {"group": "example.ambit.dev", "scope": "Namespaced", "names": {"plural": "teams", "kind": "Team"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]}})
}

/// The decision: pure, from what a team is to what is wanted for it. Deciding and writing are apart, so that every decision
/// can be tested without a cluster.
fn wanted(team: &Team) -> Vec<ConfigMap> {
    let map = || ConfigMap {
        metadata: ObjectMeta { name: team.metadata.name.clone(), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("members".to_owned(), team.spec.members.join(" "))])),
        ..ConfigMap::default()
    };
    team.spec.published.then(map).into_iter().collect()
}

/// Made without any I/O; works in `run`.
struct TeamController {
    teams: Informer<Team>,
    maps: Informer<ConfigMap>,
    queue: Queue<ObjectKey>,
    map_writer: Applier<ConfigMap>,
    team_writer: Applier<Team>,
    events: EventRecorder,
}

impl TeamController {
    fn new(informers: &Informers, queues: &QueueMetrics, writes: &WriteMetrics) -> Self {
        let teams = informers.informer::<Team>(Query::all());
        let maps = informers.informer::<ConfigMap>(Query::all().labels(LABEL));
        // Nothing is handled before both views are whole: a missing half would look like deletions.
        let settings = QueueSettings::new("teams").after([teams.synced(), maps.synced()]).metrics(queues);
        let queue: Queue<ObjectKey> = Queue::with(settings);
        // Handlers only say whose turn it is. What to do is decided from the views, when its turn comes.
        let adds = queue.clone();
        teams.on_change(move |change| adds.add(ObjectKey::of(change.latest().as_ref())));
        let adds = queue.clone();
        maps.on_change(move |change| {
            let map = change.latest();
            let team = map.labels().get(LABEL).cloned().unwrap_or_default();
            adds.add(ObjectKey::namespaced(map.namespace().unwrap_or_default(), team));
        });
        let client = informers.client().clone();
        let manager = FieldManager::new(client.clone(), NAME).metrics(writes);
        let events = EventRecorder::new(client, NAME, None);
        Self { teams, maps, queue, map_writer: manager.applier(), team_writer: manager.applier(), events }
    }

    /// Works until `stop`.
    async fn run(&self, stop: &Shutdown) {
        let caught_up = async {
            self.queue.caught_up().await;
            println!("controller: all that existed at the start has been handled");
        };
        tokio::join!(self.queue.run(|key| self.sync(key), stop), async {
            tokio::select! {
                () = caught_up => {}
                () = stop.cancelled() => {}
            }
        });
    }

    async fn sync(&self, key: ObjectKey) -> Result<Next, WriteError> {
        let team = self.teams.by_key(&key).filter(|team| team.metadata.deletion_timestamp.is_none());
        // What belongs to a team that is gone goes with it, by its owner references.
        let (Some(team), Some(namespace)) = (team, &key.namespace) else { return Ok(Next::Done) };
        let set = ObjectSet::labelled(LABEL, &key.name).in_namespace(namespace);
        let set = team.controller_owner_ref(&()).into_iter().fold(set, ObjectSet::owned_by);
        // The members are the controller's alone; whatever else people put into the ConfigMap stays.
        let kept = self.map_writer.keep(&set, wanted(&team), &self.maps, OnConflict::Force).await;
        let (holds, reason, message, next) = match &kept {
            Ok(_) if team.spec.published => {
                (true, "Published", "its members are published".to_owned(), Next::Done)
            }
            Ok(_) => (false, "NotWanted", "it is not to be published".to_owned(), Next::Done),
            Err(WriteError::Taken { .. }) => (
                false,
                "NameTaken",
                "a ConfigMap of its name is another's".to_owned(),
                Next::After(TAKEN_DELAY),
            ),
            // Tried again by the queue, with a growing delay.
            Err(_) => return kept.map(|_| Next::Done),
        };
        if kept.is_ok_and(|kept| kept.changed + kept.deleted > 0) {
            println!("controller: {key}: {message}");
            self.events.record(&team.object_ref(&()), EventType::Normal, reason, &*message);
        }
        let held = team.status.as_ref().map(|status| &*status.conditions);
        let finding = Finding { type_: "Published", holds: Some(holds), reason, message };
        let conditions = conditions(held, [finding], team.metadata.generation, Clock.timestamp());
        let status = TeamStatus { conditions };
        self.team_writer.apply_status(&team, &status, OnConflict::Refuse).await?;
        Ok(next)
    }
}

/// Metrics of the role.
#[derive(Default)]
struct Metrics {
    queues: QueueMetrics,
    writes: WriteMetrics,
}

/// The role: puts the parts together, stands for election, works, and leaves nothing running.
async fn run(client: Client, metrics: &Metrics, stop: &Shutdown) -> Result<(), Box<dyn Error>> {
    let election = LeaderElection::new(
        client.clone(),
        LeaderSettings::new("default", NAME, format!("example_{}", std::process::id())),
    )?;
    let work = |term: Term| lead(client.clone(), metrics, term);
    election.run(work, stop).await;
    Ok(())
}

/// One term as the leader. The views are built anew for each: what was seen in an earlier term may be long untrue.
async fn lead(client: Client, metrics: &Metrics, term: Term) {
    println!("controller: became the leader");
    let stop = term.stop().clone();
    // Nothing is written with this client once the lease is lost.
    let informers = Informers::new(term.client(client));
    let controller = TeamController::new(&informers, &metrics.queues, &metrics.writes);
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
    let teams: Api<Team> = Api::namespaced(client.clone(), DEMO_NAMESPACE);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), DEMO_NAMESPACE);
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    let change = async |spec: serde_json::Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        teams.patch(DEMO_TEAM, &PatchParams::default(), &patch).await.map(drop)
    };
    println!("user: defines teams, and makes the team {DEMO_TEAM} in the namespace {DEMO_NAMESPACE}");
    definitions.create(&PostParams::default(), &serde_json::from_value(definition())?).await?;
    let namespace = serde_json::from_value(json!({"metadata": {"name": DEMO_NAMESPACE}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    let team = Team::new(DEMO_TEAM, TeamSpec { members: vec!["ann".into(), "bob".into()], published: true });
    // A new kind takes a moment to be served.
    wait("the team to be made", async || teams.create(&PostParams::default(), &team).await.is_ok()).await?;
    see(&teams, &maps, Some("ann bob")).await?;
    println!("user: takes cyd into the team");
    change(json!({"members": ["ann", "bob", "cyd"]})).await?;
    see(&teams, &maps, Some("ann bob cyd")).await?;
    println!("user: edits the members in the ConfigMap, and adds a note to it");
    let edit = Patch::Merge(json!({"data": {"members": "me", "note": "mine"}}));
    maps.patch(DEMO_TEAM, &PatchParams::default(), &edit).await?;
    see(&teams, &maps, Some("ann bob cyd")).await?;
    let note = maps.get(DEMO_TEAM).await?.data.and_then(|mut data| data.remove("note"));
    println!("user: sees the note: {}", note.ok_or("the note is lost")?);
    println!("user: does not want it published any more");
    change(json!({"published": false})).await?;
    see(&teams, &maps, None).await?;
    println!("user: removes it all");
    teams.delete(DEMO_TEAM, &DeleteParams::default()).await?;
    definitions.delete("teams.example.ambit.dev", &DeleteParams::default()).await?;
    namespaces.delete(DEMO_NAMESPACE, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits until the ConfigMap is as expected, and the team's status says so of its newest state.
async fn see(teams: &Api<Team>, maps: &Api<ConfigMap>, expected: Option<&str>) -> Result<(), Box<dyn Error>> {
    let is_told = |team: Team| {
        let told = team.status.iter().flat_map(|status| &status.conditions).any(|condition| {
            let holds = if expected.is_some() { "True" } else { "False" };
            condition.status == holds && condition.observed_generation == team.metadata.generation
        });
        told.then_some(())
    };
    wait("what the user sees", async || {
        let map = maps.get_opt(DEMO_TEAM).await.ok().flatten();
        let members = map.as_ref().and_then(|map| map.data.as_ref()?.get("members")).map(String::as_str);
        members == expected && teams.get(DEMO_TEAM).await.ok().and_then(is_told).is_some()
    })
    .await?;
    println!("user: sees {}", expected.unwrap_or("nothing any more"));
    Ok(())
}

async fn wait(what: &str, look: impl AsyncFn() -> bool) -> Result<(), String> {
    let seen = async {
        while !look().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, seen).await.map_err(|_| format!("waited in vain for {what}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let stop = Shutdown::new();
    let server_stop = Shutdown::new();
    let (client, server) = match std::env::args().nth(1) {
        Some(file) => {
            let config = Kubeconfig::read_from(&file)?;
            let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
            (ambit_kube::connect(config, ambit_kube::Liveness::default())?, None)
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
    let metrics = Metrics::default();
    let mut registry = Registry::default();
    metrics.queues.register(&mut registry);
    metrics.writes.register(&mut registry);
    let (ended, shown) = tokio::join!(run(client.clone(), &metrics, &stop), async {
        let shown = demonstrate(client).await;
        stop.cancel();
        shown
    });
    ended?;
    println!("controller: gave the lease up and ended");
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket")) {
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

    #[test]
    fn the_decision_needs_no_cluster() {
        let members = |published| {
            let team = Team::new("t", TeamSpec { members: vec!["a".into(), "b".into()], published });
            let maps = wanted(&team).into_iter();
            maps.map(|map| (map.name_any(), map.data.unwrap_or_default())).collect::<Vec<_>>()
        };
        assert_eq!(members(false), []);
        assert_eq!(
            members(true),
            [("t".to_owned(), BTreeMap::from([("members".to_owned(), "a b".to_owned())]))]
        );
    }
}

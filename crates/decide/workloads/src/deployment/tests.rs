use super::*;
use ambit_api::meta::Time;
use serde_json::{Value, json};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn deployment(image: &str, replicas: i32) -> Deployment {
    let deployment = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "dep", "generation": 2,
            "annotations": {"team": "x", "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "Recreate"},
            "template": {"metadata": {"labels": {"app": "web"}},
                         "spec": {"containers": [{"name": "c", "image": image}]}}},
    });
    serde_json::from_value(deployment).expect("a deployment")
}

/// The set that the controller would have created for this image, of that size, with all pods available.
fn set_of(image: &str, revision: i64, replicas: i32) -> Arc<ReplicaSet> {
    let mut set = new_replica_set(&deployment(image, replicas), revision);
    set.metadata.uid = Some(format!("rs-{image}"));
    set.metadata.creation_timestamp = Some(Time(at(revision)));
    set.metadata.generation = Some(1);
    let status = json!({"replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
        "observedGeneration": 1});
    set.status = Some(serde_json::from_value(status).expect("a status"));
    Arc::new(set)
}

fn pod_of(set: &ReplicaSet, more: Value) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": {"name": "p", "uid": "p", "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet",
            "name": set.metadata.name, "uid": set.metadata.uid, "controller": true}]},
        "status": {"phase": "Running"}});
    for (key, value) in more.as_object().expect("an object") {
        pod["metadata"][key] = value.clone();
    }
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

/// What a plan does, as text.
#[track_caller]
fn check(deployment: &Deployment, sets: &[Arc<ReplicaSet>], pods: &[Arc<Pod>], expected: &[&str]) {
    let plan = plan(deployment, sets, pods, at(100));
    let mut seen = Vec::new();
    let uid = |set: &ReplicaSet| set.metadata.uid.clone().unwrap_or_default();
    seen.extend(plan.adopt.iter().map(|set| format!("adopt {}", uid(set))));
    seen.extend(plan.release.iter().map(|set| format!("release {}", uid(set))));
    seen.extend(plan.scale.iter().map(|scale| format!("{} {}->{}", uid(&scale.set), scale.from, scale.to)));
    seen.extend(plan.create.iter().map(|set| format!("create of {}", size(set))));
    seen.extend(plan.annotate.iter().map(|set| format!("annotate {}", uid(set))));
    seen.extend(plan.revision.iter().map(|revision| format!("revision {revision}")));
    seen.extend(plan.delete.iter().map(|set| format!("delete {}", uid(set))));
    assert_eq!(seen, expected);
}

#[test]
fn a_new_deployment_gets_a_set() {
    check(&deployment("v1", 3), &[], &[], &["create of 3", "revision 1"]);
    let set = new_replica_set(&deployment("v1", 3), 1);
    let hash = &set.metadata.labels.as_ref().unwrap()["pod-template-hash"];
    assert_eq!(set.metadata.name.as_deref(), Some(format!("web-{hash}").as_str()));
    assert_eq!(
        &set.spec.as_ref().unwrap().selector.match_labels.as_ref().unwrap()["pod-template-hash"],
        hash
    );
    let annotations = set.metadata.annotations.unwrap();
    assert_eq!(
        annotations.keys().collect::<Vec<_>>(),
        [
            "deployment.kubernetes.io/desired-replicas",
            "deployment.kubernetes.io/max-replicas",
            "deployment.kubernetes.io/revision",
            "team",
        ]
    );
}

#[test]
fn the_hash_is_stable_and_follows_template_and_collisions() {
    let template = |image| deployment(image, 1).spec.unwrap().template;
    assert_eq!(template_hash(&template("v1"), 0), template_hash(&template("v1"), 0));
    assert_ne!(template_hash(&template("v1"), 0), template_hash(&template("v2"), 0));
    assert_ne!(template_hash(&template("v1"), 0), template_hash(&template("v1"), 1));
    assert!(template_hash(&template("v1"), 0).bytes().all(|letter| letter.is_ascii_alphanumeric()));
}

#[test]
fn a_size_goes_to_the_set_and_what_fits_is_left_alone() {
    let mut settled = deployment("v1", 3);
    settled.metadata.annotations.as_mut().unwrap().insert(REVISION.to_owned(), "1".to_owned());
    check(&settled, &[set_of("v1", 1, 3)], &[], &[]);
    check(&settled, &[set_of("v1", 1, 5)], &[], &["rs-v1 5->3"]);
}

#[test]
fn a_new_template_waits_until_the_old_pods_have_ended() {
    let (new, old) = (deployment("v2", 2), set_of("v1", 1, 2));
    let running = pod_of(&old, json!({}));
    check(&new, std::slice::from_ref(&old), std::slice::from_ref(&running), &["rs-v1 2->0"]);
    let emptied = set_of("v1", 1, 0);
    let leaving = pod_of(&old, json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
    check(&new, std::slice::from_ref(&emptied), &[leaving], &[]);
    check(&new, std::slice::from_ref(&emptied), &[], &["create of 2", "revision 2"]);
    let waiting = set_of("v2", 2, 0);
    check(&new, &[old, waiting.clone()], &[running], &["rs-v1 2->0", "annotate rs-v2", "revision 2"]);
    check(&new, &[emptied, waiting], &[], &["rs-v2 0->2", "revision 2"]);
}

#[test]
fn going_back_reuses_the_old_set_under_a_new_revision() {
    let back = deployment("v1", 1);
    check(&back, &[set_of("v1", 1, 0), set_of("v2", 2, 0)], &[], &["rs-v1 0->1", "revision 3"]);
}

#[test]
fn a_rolling_update_that_is_done_by_recreation_says_so() {
    let mut rolling = deployment("v2", 2);
    rolling.spec.as_mut().unwrap().strategy = None;
    assert!(plan(&rolling, &[set_of("v1", 1, 2)], &[], at(0)).recreates_instead);
    assert!(!plan(&deployment("v2", 2), &[set_of("v1", 1, 2)], &[], at(0)).recreates_instead);
    assert!(!plan(&rolling, &[], &[], at(0)).recreates_instead);
}

#[test]
fn history_beyond_the_limit_goes_oldest_first() {
    let mut limited = deployment("v9", 1);
    limited.spec.as_mut().unwrap().revision_history_limit = Some(1);
    limited.metadata.annotations.as_mut().unwrap().insert(REVISION.to_owned(), "4".to_owned());
    let sets = [set_of("v3", 3, 0), set_of("v1", 1, 0), set_of("v9", 4, 1), set_of("v2", 2, 0)];
    check(&limited, &sets, &[], &["delete rs-v1", "delete rs-v2"]);
}

#[test]
fn paused_deployments_scale_but_do_not_roll_out() {
    let mut paused = deployment("v2", 5);
    paused.spec.as_mut().unwrap().paused = Some(true);
    check(&paused, &[set_of("v1", 1, 2)], &[], &["rs-v1 2->5"]);
    let status = plan(&paused, &[set_of("v1", 1, 2)], &[], at(0)).status;
    assert_eq!(condition(&status, "Progressing"), "Unknown DeploymentPaused");
}

#[test]
fn orphans_are_adopted_before_anything_else() {
    let mut orphan = set_of("v1", 1, 3).as_ref().clone();
    orphan.metadata.owner_references = None;
    check(&deployment("v1", 3), &[Arc::new(orphan)], &[], &["adopt rs-v1"]);
}

#[test]
fn a_deployment_that_is_being_deleted_only_reports() {
    let mut leaving = deployment("v1", 3);
    leaving.metadata.deletion_timestamp = Some(Time(at(0)));
    check(&leaving, &[], &[], &[]);
}

fn condition(status: &DeploymentStatus, kind: &str) -> String {
    let condition = status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
    condition.map(|c| format!("{} {}", c.status, c.reason.as_deref().unwrap_or_default())).unwrap_or_default()
}

#[test]
fn status_tells_counts_availability_and_progress() {
    let complete = plan(&deployment("v1", 2), &[set_of("v1", 1, 2)], &[], at(100)).status;
    let counts =
        |s: &DeploymentStatus| (s.replicas, s.updated_replicas, s.available_replicas, s.unavailable_replicas);
    assert_eq!(counts(&complete), (Some(2), Some(2), Some(2), None));
    assert_eq!(complete.observed_generation, Some(2));
    assert_eq!(condition(&complete, "Available"), "True MinimumReplicasAvailable");
    assert_eq!(condition(&complete, "Progressing"), "True NewReplicaSetAvailable");
    let starting = plan(&deployment("v1", 2), &[], &[], at(100)).status;
    assert_eq!(counts(&starting), (None, None, None, Some(2)));
    assert_eq!(condition(&starting, "Available"), "False MinimumReplicasUnavailable");
    assert_eq!(condition(&starting, "Progressing"), "True NewReplicaSetCreated");
}

#[test]
fn a_rollout_without_progress_passes_its_deadline() {
    let mut stuck = deployment("v1", 2);
    let mut set = set_of("v1", 1, 2).as_ref().clone();
    set.status.as_mut().unwrap().available_replicas = None;
    let sets = [Arc::new(set)];
    let first = plan(&stuck, &sets, &[], at(100));
    assert_eq!(first.look_again, Some(Duration::from_secs(600)));
    assert_eq!(condition(&first.status, "Progressing"), "True ReplicaSetUpdated");
    stuck.status = Some(first.status);
    let waiting = plan(&stuck, &sets, &[], at(400));
    assert_eq!(waiting.look_again, Some(Duration::from_secs(300)));
    assert_eq!(Some(&waiting.status), stuck.status.as_ref(), "nothing new to write");
    let failed = plan(&stuck, &sets, &[], at(701));
    assert_eq!(condition(&failed.status, "Progressing"), "False ProgressDeadlineExceeded");
}

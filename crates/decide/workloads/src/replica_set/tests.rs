use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::VecDeque;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().expect("a time")
}

fn set(replicas: i32) -> ReplicaSet {
    let set = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "set", "generation": 3},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                 "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}},
    });
    serde_json::from_value(set).expect("a ReplicaSet")
}

fn pod(uid: &str, more: Value) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": {"name": uid, "uid": uid, "labels": {"app": "web"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "set",
                                 "controller": true}]},
        "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"},
    });
    merge(&mut pod, more);
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn ready(since: &str) -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}]}})
}

/// `expected`: adopted, released, number to create, deleted.
#[track_caller]
fn check(replicas: i32, pods: &[Arc<Pod>], expected: (&[&str], &[&str], usize, &[&str])) {
    let plan = plan(&set(replicas), pods, &Expectations::default(), now());
    let names =
        |pods: &[Arc<Pod>]| pods.iter().map(|pod| pod.metadata.uid.clone().unwrap()).collect::<Vec<_>>();
    let seen = (names(&plan.adopt), names(&plan.release), plan.create, names(&plan.delete));
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(seen, (owned(expected.0), owned(expected.1), expected.2, owned(expected.3)));
}

#[test]
fn creates_what_is_missing_and_ignores_what_has_ended() {
    check(3, &[], (&[], &[], 3, &[]));
    check(2, &[pod("a", json!({})), pod("b", json!({"status": {"phase": "Failed"}}))], (&[], &[], 1, &[]));
    let leaving = pod("a", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    check(1, &[leaving], (&[], &[], 1, &[]));
    check(900, &[], (&[], &[], 500, &[]));
    check(-1, &[], (&[], &[], 0, &[]));
}

#[test]
fn adopts_orphans_and_releases_what_no_longer_fits() {
    let orphan = pod("o", json!({"metadata": {"ownerReferences": null}}));
    check(2, std::slice::from_ref(&orphan), (&["o"], &[], 1, &[]));
    let relabelled = pod("r", json!({"metadata": {"labels": {"app": "debug"}}}));
    check(1, &[relabelled], (&[], &["r"], 1, &[]));
    let foreign = pod(
        "f",
        json!({"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "X", "name": "x", "uid": "other", "controller": true}]}}),
    );
    check(1, &[foreign], (&[], &[], 1, &[]));
}

#[test]
fn deletes_the_most_dispensable_first() {
    let pods = [
        pod("old-ready", ready("2026-01-01T00:00:00Z")),
        pod("new-ready", ready("2026-01-01T00:30:00Z")),
        pod("not-ready", json!({})),
        pod("pending", json!({"status": {"phase": "Pending"}})),
        pod("unassigned", json!({"spec": {"nodeName": null}, "status": {"phase": "Pending"}})),
    ];
    check(0, &pods, (&[], &[], 0, &["unassigned", "pending", "not-ready", "new-ready", "old-ready"]));
    let cheap = json!({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-5"}}});
    let mut cheap_ready = ready("2026-01-01T00:00:00Z");
    merge(&mut cheap_ready, cheap);
    let pods = [pod("a", ready("2026-01-01T00:30:00Z")), pod("b", cheap_ready)];
    check(1, &pods, (&[], &[], 0, &["b"]));
}

#[test]
fn a_set_that_is_being_deleted_does_nothing_but_count() {
    let mut set = set(3);
    set.metadata.deletion_timestamp = Some(Time(now()));
    let plan = plan(&set, &[pod("a", json!({}))], &Expectations::default(), now());
    assert_eq!((plan.create, plan.delete.len(), plan.status.replicas), (0, 0, 1));
}

#[test]
fn status_counts_ready_and_available_and_tells_when_to_look_again() {
    let mut set = set(3);
    set.spec.as_mut().unwrap().min_ready_seconds = Some(60);
    let pods = [
        pod("a", ready("2026-01-01T00:00:00Z")),
        pod("b", ready("2026-01-01T00:59:50Z")),
        pod("c", json!({"metadata": {"labels": {"app": "web"}}})),
    ];
    let plan = plan(&set, &pods, &Expectations::default(), now());
    let status = &plan.status;
    assert_eq!((status.replicas, status.ready_replicas, status.available_replicas), (3, Some(2), Some(1)));
    assert_eq!((status.fully_labeled_replicas, status.observed_generation), (Some(3), Some(3)));
    assert_eq!(plan.look_again, Some(Duration::from_secs(50)));
}

#[test]
fn a_failure_shows_as_a_condition_and_goes_with_its_cause() {
    let status = plan(&set(1), &[], &Expectations::default(), now()).status;
    let failed = with_failure(status, Some(("FailedCreate", "quota".to_owned())), now());
    let condition = &failed.conditions.as_ref().unwrap()[0];
    assert_eq!(
        (condition.type_.as_str(), condition.reason.as_deref()),
        ("ReplicaFailure", Some("FailedCreate"))
    );
    assert_eq!(with_failure(failed, None, now()).conditions, None);
}

#[test]
fn a_new_pod_carries_the_template_and_its_owner() {
    let pod = new_pod(&set(1));
    assert_eq!(pod.metadata.generate_name.as_deref(), Some("web-"));
    let owner = &pod.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.uid.as_str(), owner.controller),
        ("ReplicaSet", "set", Some(true))
    );
    assert_eq!(pod.metadata.labels.unwrap()["app"], "web");
}

/// One step of a history: what the world does between two looks of the controller.
#[derive(Debug, Clone)]
enum Step {
    /// The controller looks at its view and acts; so many events are delivered before each answer arrives.
    Sync { events_before_answer: usize },
    /// Events reach the view.
    Deliver(usize),
    /// A pod is deleted by somebody else.
    Kill(usize),
    /// The user wants another number.
    Scale(i32),
    /// The view is listed anew: all events that wait are skipped and the view equals the store.
    Relist,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_usize).prop_map(|events_before_answer| Step::Sync { events_before_answer }),
        3 => (1..5_usize).prop_map(Step::Deliver),
        1 => (0..8_usize).prop_map(Step::Kill),
        1 => (0..6_i32).prop_map(Step::Scale),
        1 => Just(Step::Relist),
    ]
}

/// A store, the controller's lagging view of it, and the controller's memory.
struct World {
    set: ReplicaSet,
    store: BTreeMap<String, Arc<Pod>>,
    view: BTreeMap<String, Arc<Pod>>,
    /// Pods that appeared (some) or went (none), in the order of the store.
    events: VecDeque<(String, Option<Arc<Pod>>)>,
    expectations: Expectations,
    next: usize,
}

impl World {
    fn deliver(&mut self, count: usize) {
        for _ in 0..count {
            let Some((uid, pod)) = self.events.pop_front() else { return };
            match pod {
                Some(pod) => {
                    self.expectations.saw(&uid);
                    self.view.insert(uid, pod);
                }
                None => {
                    self.expectations.saw_deletion(&uid);
                    self.view.remove(&uid);
                }
            }
        }
    }

    fn relist(&mut self) {
        self.events.clear();
        for uid in self.view.keys().filter(|uid| !self.store.contains_key(*uid)) {
            self.expectations.saw_deletion(uid);
        }
        for uid in self.store.keys() {
            self.expectations.saw(uid);
        }
        self.view = self.store.clone();
    }

    fn sync(&mut self, events_before_answer: usize) {
        let view: Vec<Arc<Pod>> = self.view.values().cloned().collect();
        let plan = plan(&self.set, &view, &self.expectations, now());
        assert!(plan.create == 0 || plan.delete.is_empty(), "never both");
        for _ in 0..plan.create {
            self.expectations.creating();
            let uid = format!("pod-{:04}", self.next);
            self.next += 1;
            let created = pod(&uid, json!({}));
            self.store.insert(uid.clone(), created.clone());
            self.events.push_back((uid.clone(), Some(created)));
            self.deliver(events_before_answer);
            self.expectations.created(&uid, 0);
        }
        for doomed in plan.delete {
            let uid = doomed.metadata.uid.clone().unwrap();
            self.expectations.deleting(&uid, 0);
            self.kill(&uid);
        }
    }

    fn kill(&mut self, uid: &str) {
        if self.store.remove(uid).is_some() {
            self.events.push_back((uid.to_owned(), None));
        }
    }
}

proptest! {
    /// Whatever the order of events, answers and looks: never more pods than were ever wanted since the last one
    /// was, and in the end exactly those wanted.
    #[test]
    fn never_creates_too_many(steps in proptest::collection::vec(step(), 1..60)) {
        let mut world = World {
            set: set(3), store: BTreeMap::new(), view: BTreeMap::new(), events: VecDeque::new(),
            expectations: Expectations::default(), next: 0,
        };
        for step in steps {
            let before = world.store.len();
            let wanted = usize::try_from(world.set.spec.as_ref().unwrap().replicas.unwrap()).unwrap();
            match step {
                Step::Sync { events_before_answer } => world.sync(events_before_answer),
                Step::Deliver(count) => world.deliver(count),
                Step::Kill(nth) => {
                    if let Some(uid) = world.store.keys().nth(nth).cloned() {
                        world.kill(&uid);
                    }
                }
                Step::Scale(replicas) => world.set.spec.as_mut().unwrap().replicas = Some(replicas),
                Step::Relist => world.relist(),
            }
            let limit = before.max(wanted);
            prop_assert!(world.store.len() <= limit, "{} pods, {limit} allowed", world.store.len());
        }
        // Quiet times: a pod that was created and killed between two lists is only found by looking, as the
        // controller does once it has waited for long enough.
        world.relist();
        world.expectations.clear();
        for _ in 0..3 {
            world.sync(0);
            world.deliver(usize::MAX);
        }
        let wanted = usize::try_from(world.set.spec.as_ref().unwrap().replicas.unwrap()).unwrap();
        prop_assert_eq!(world.store.len(), wanted);
        prop_assert!(world.expectations.is_empty());
    }
}

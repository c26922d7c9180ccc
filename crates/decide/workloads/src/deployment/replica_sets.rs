//! The ReplicaSets of a Deployment: which one has its template, what a new one looks like, which are history.

use super::REVISION;
use crate::ownership::controller_reference;
use ambit_api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use ambit_api::core::v1::PodTemplateSpec;
use ambit_api::meta::ObjectMeta;
use ambit_names::label::POD_TEMPLATE_HASH;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAX: &str = "deployment.kubernetes.io/max-replicas";
/// Not copied to ReplicaSets: kubectl's copy of the whole Deployment, and what is set per set.
const OWN_ANNOTATIONS: [&str; 5] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    DESIRED,
    MAX,
    "deprecated.deployment.rollback.to",
];
/// Letters that make no words and no look-alikes. Source: upstream apimachinery SafeEncodeString.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Letters of a template's hash: 27^10 values, and short enough for pod names.
const HASH_LETTERS: usize = 10;

/// The set with the Deployment's template (the oldest one), and all others, oldest first.
pub(super) fn split(
    deployment: &Deployment,
    mut sets: Vec<Arc<ReplicaSet>>,
) -> (Option<Arc<ReplicaSet>>, Vec<Arc<ReplicaSet>>) {
    sets.sort_by_key(|set| {
        let created = set.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (revision(set), created, set.metadata.name.clone())
    });
    let wanted = deployment.spec.as_ref().map(|spec| comparable(&spec.template));
    let created = |set: &Arc<ReplicaSet>| set.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let new = sets
        .iter()
        .filter(|set| set.spec.as_ref().and_then(|spec| spec.template.as_ref()).map(comparable) == wanted)
        .min_by_key(|set| created(set))
        .cloned();
    let is_new = |set: &Arc<ReplicaSet>| new.as_ref().is_some_and(|new| new.metadata.uid == set.metadata.uid);
    sets.retain(|set| !is_new(set));
    (new, sets)
}

/// The template as JSON without the label that we add ourselves.
fn comparable(template: &PodTemplateSpec) -> Value {
    let mut value = serde_json::to_value(template).unwrap_or_default();
    if let Some(labels) = value.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(POD_TEMPLATE_HASH);
    }
    value
}

/// A hash of the template and the number of collisions so far, in letters that are safe in names. It is stable: the
/// same template always has the same one. (Upstream hashes Go's printed form, which nothing depends on.)
pub fn template_hash(template: &PodTemplateSpec, collisions: i32) -> String {
    let mut hasher = Sha256::new();
    // The order is fixed: fields come in the order of their types, labels and the like sorted by key.
    hasher.update(comparable(template).to_string());
    hasher.update(collisions.to_be_bytes());
    let digest = hasher.finalize();
    digest
        .iter()
        .take(HASH_LETTERS)
        .map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]))
        .collect()
}

/// The ReplicaSet of the Deployment's template, at its full size.
pub fn new_replica_set(deployment: &Deployment, revision: i64) -> ReplicaSet {
    let spec = deployment.spec.clone().unwrap_or_default();
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
    let mut template = spec.template;
    let hash = template_hash(&template, collisions);
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(POD_TEMPLATE_HASH.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector;
    selector.match_labels.get_or_insert_default().insert(POD_TEMPLATE_HASH.to_owned(), hash.clone());
    let mut annotations = deployment.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| !OWN_ANNOTATIONS.contains(&key.as_str()));
    let replicas = spec.replicas.unwrap_or(1);
    let mut set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{hash}")),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference("apps/v1", "Deployment", &deployment.metadata)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    };
    annotate(&mut set, revision, replicas);
    set
}

/// The number of the rollout that the set stands for; 0 when it has none.
pub(super) fn revision(set: &ReplicaSet) -> i64 {
    let annotations = set.metadata.annotations.as_ref();
    annotations.and_then(|annotations| annotations.get(REVISION)?.parse().ok()).unwrap_or(0)
}

/// The number after those of all old sets.
pub(super) fn next_revision(old: &[Arc<ReplicaSet>]) -> i64 {
    old.iter().map(|set| revision(set)).max().unwrap_or(0).saturating_add(1)
}

/// The annotation to write on the Deployment, unless it is there.
pub(super) fn changed_revision(meta: &ObjectMeta, revision: i64) -> Option<String> {
    let text = revision.to_string();
    let known = meta.annotations.as_ref().and_then(|annotations| annotations.get(REVISION));
    (known != Some(&text)).then_some(text)
}

/// Sets the annotations that kubectl reads from the running set; says whether any changed.
pub(super) fn annotate(set: &mut ReplicaSet, revision: i64, replicas: i32) -> bool {
    let annotations: &mut BTreeMap<String, String> = set.metadata.annotations.get_or_insert_default();
    let mut changed = false;
    for (key, value) in
        [(REVISION, revision.to_string()), (DESIRED, replicas.to_string()), (MAX, replicas.to_string())]
    {
        changed |= annotations.insert(key.to_owned(), value.clone()) != Some(value);
    }
    changed
}

/// Old sets without pods that are too many to keep, oldest first.
pub(super) fn beyond_history(old: &[Arc<ReplicaSet>], limit: i32) -> Vec<Arc<ReplicaSet>> {
    let idle = |set: &&Arc<ReplicaSet>| {
        let status = set.status.as_ref();
        super::size(set) == 0
            && set.metadata.deletion_timestamp.is_none()
            && status.is_none_or(|status| status.replicas == 0)
            && status.and_then(|status| status.observed_generation) >= set.metadata.generation
    };
    let idle: Vec<Arc<ReplicaSet>> = old.iter().filter(idle).cloned().collect();
    let limit = usize::try_from(limit).unwrap_or(0);
    let excess = idle.len().saturating_sub(limit);
    idle.into_iter().take(excess).collect()
}

//! Owner references: who controls an object, and who may take it.

use crate::selector;
use ambit_api::meta::{LabelSelector, ObjectMeta, OwnerReference};

/// The reference to the object's controller, if it has one.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether the owner of that uid controls the object.
pub fn is_controlled_by(meta: &ObjectMeta, owner_uid: Option<&str>) -> bool {
    controller_of(meta).is_some_and(|owner| Some(owner.uid.as_str()) == owner_uid)
}

/// A controlling reference to `owner` that also holds up its foreground deletion.
pub fn controller_reference(api_version: &str, kind: &str, owner: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: owner.name.clone().unwrap_or_default(),
        uid: owner.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// What a controller does with an object of the kind it controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It is ours.
    Owned,
    /// It is nobody's and fits: take it.
    Adopt,
    /// It is ours but no longer fits: let go.
    Release,
    /// It is none of ours.
    Foreign,
}

/// Decides about one object of the owner's namespace. Source: upstream pkg/controller/controller_ref_manager.go.
pub fn claim(owner: &ObjectMeta, wanted: &LabelSelector, object: &ObjectMeta) -> Claim {
    let fits = !selector::is_empty(wanted) && selector::matches(wanted, object.labels.as_ref());
    let owner_stays = owner.deletion_timestamp.is_none();
    match controller_of(object) {
        Some(controller) if Some(&controller.uid) != owner.uid.as_ref() => Claim::Foreign,
        Some(_) if fits => Claim::Owned,
        Some(_) if owner_stays => Claim::Release,
        Some(_) => Claim::Owned,
        None if fits && owner_stays && object.deletion_timestamp.is_none() => Claim::Adopt,
        None => Claim::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(owner: serde_json::Value, object: serde_json::Value, expected: Claim) {
        let owner: ObjectMeta = serde_json::from_value(owner).expect("metadata");
        let object: ObjectMeta = serde_json::from_value(object).expect("metadata");
        let wanted = serde_json::from_value(json!({"matchLabels": {"app": "a"}})).expect("a selector");
        assert_eq!(claim(&owner, &wanted, &object), expected);
    }

    #[test]
    fn objects_are_taken_kept_and_let_go() {
        let owner = || json!({"uid": "u1"});
        let leaving = || json!({"uid": "u1", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let by = |uid: &str| json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": uid, "controller": true}]);
        check(owner(), json!({"labels": {"app": "a"}, "ownerReferences": by("u1")}), Claim::Owned);
        check(owner(), json!({"labels": {"app": "b"}, "ownerReferences": by("u1")}), Claim::Release);
        check(owner(), json!({"labels": {"app": "a"}, "ownerReferences": by("u2")}), Claim::Foreign);
        check(owner(), json!({"labels": {"app": "a"}}), Claim::Adopt);
        check(owner(), json!({"labels": {"app": "b"}}), Claim::Foreign);
        check(
            owner(),
            json!({"labels": {"app": "a"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}),
            Claim::Foreign,
        );
        check(leaving(), json!({"labels": {"app": "a"}}), Claim::Foreign);
        check(leaving(), json!({"labels": {"app": "b"}, "ownerReferences": by("u1")}), Claim::Owned);
    }
}

//! What is judged without a schema is what the merge engine would do with one.

use super::owned::{configuration, is_in_force, owned_fields};
use ambit_apply::{FieldSet, ListType, Managers, OnConflict, ValueType, Writer};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;

/// The types of a small object: labels, a list by keys of which one has a default, a set, a list that is one value.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Object,
    Metadata,
    Labels,
    Finalizers,
    Spec,
    Ports,
    Port,
    Arguments,
    Scalar,
}

static KEYS: LazyLock<Vec<String>> = LazyLock::new(|| vec!["port".to_owned(), "protocol".to_owned()]);

impl ValueType for Kind {
    fn list(&self) -> ListType<'_> {
        match self {
            Self::Ports => ListType::Map(&KEYS),
            Self::Finalizers => ListType::Set,
            _ => ListType::Atomic,
        }
    }

    fn is_atomic_object(&self) -> bool {
        false
    }

    fn declares(&self, field: &str) -> bool {
        *self != Self::Labels && self.field(field).is_some()
    }

    fn field(&self, field: &str) -> Option<Self> {
        Some(match (self, field) {
            (Self::Object, "metadata") => Self::Metadata,
            (Self::Object, "spec") => Self::Spec,
            (Self::Object, "apiVersion" | "kind") | (Self::Metadata, "name") => Self::Scalar,
            (Self::Metadata, "labels") => Self::Labels,
            (Self::Metadata, "finalizers") => Self::Finalizers,
            (Self::Spec, "ports") => Self::Ports,
            (Self::Spec, "arguments") => Self::Arguments,
            (Self::Port, "port" | "protocol" | "name") | (Self::Labels, _) => Self::Scalar,
            _ => return None,
        })
    }

    fn item(&self) -> Option<Self> {
        match self {
            Self::Ports => Some(Self::Port),
            Self::Finalizers | Self::Arguments => Some(Self::Scalar),
            _ => None,
        }
    }

    fn key_default(&self, key: &str) -> Option<Value> {
        (*self == Self::Port && key == "protocol").then(|| "TCP".into())
    }
}

/// The object after an apply in that name, and whether it changed.
fn apply(live: Option<&Value>, config: &Value, manager: &str) -> (Value, bool) {
    let writer = Writer {
        value_type: Kind::Object,
        manager,
        api_version: "v1",
        subresource: "",
        reset: &FieldSet::default(),
        is_served: &|_| true,
        now: "2026-01-01T00:00:00Z",
    };
    let managers = live.map_or_else(Managers::default, |live| Managers::of(live).unwrap());
    let applied = writer.apply(live, config, managers, OnConflict::Force).unwrap();
    let mut object = applied.object;
    applied.managers.write_into(&mut object);
    // What the server fills in.
    for port in object.pointer_mut("/spec/ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if port.get("protocol").is_none() {
            port["protocol"] = "TCP".into();
        }
    }
    (object, applied.changed)
}

fn configs() -> impl Strategy<Value = Value> {
    let labels = prop::collection::btree_map("[ab]", "[xy]", 0..3);
    let finalizers = prop::collection::btree_set("[ab]", 0..3);
    let port = (prop::option::of(Just("TCP")), prop::option::of("[xy]"));
    let ports = prop::collection::btree_map(1..3, port, 0..3);
    let arguments = prop::collection::vec("[xy]", 0..3);
    (labels, finalizers, ports, arguments).prop_map(|(labels, finalizers, ports, arguments)| {
        let port = |(port, (protocol, name)): (i32, (Option<&str>, Option<String>))| {
            let mut item = json!({"port": port});
            item.as_object_mut().unwrap().extend(protocol.map(|it| ("protocol".to_owned(), it.into())));
            item.as_object_mut().unwrap().extend(name.map(|it| ("name".to_owned(), it.into())));
            item
        };
        let mut object = json!({"metadata": {"name": "a"}, "spec": {}});
        let mut put = |section: &str, field: &str, value: Value| {
            // What is empty cannot be judged: see `is_in_force`.
            let is_empty = value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(serde_json::Map::is_empty);
            if !is_empty {
                object[section][field] = value;
            }
        };
        put("metadata", "labels", json!(labels));
        put("metadata", "finalizers", json!(finalizers));
        put("spec", "ports", ports.into_iter().map(port).collect());
        put("spec", "arguments", json!(arguments));
        if object["spec"] == json!({}) {
            object.as_object_mut().unwrap().remove("spec");
        }
        configuration(object, "v1", "Thing")
    })
}

proptest! {
    /// After any history of two managers, a configuration counts as in force exactly if applying it changes nothing.
    #[test]
    fn what_counts_as_in_force_is_what_an_apply_would_not_change(
        history in prop::collection::vec((configs(), any::<bool>()), 1..6),
        next in configs(),
    ) {
        let mut live = None;
        for (config, is_ours) in &history {
            live = Some(apply(live.as_ref(), config, if *is_ours { "m" } else { "other" }).0);
        }
        let live = live.unwrap_or_default();
        let owned = owned_fields(&live, "m", None).unwrap_or_else(|| json!({}));
        for config in history.iter().map(|(config, _)| config).chain([&next]) {
            let (_, changed) = apply(Some(&live), config, "m");
            prop_assert_eq!(is_in_force(&owned, config, &live), !changed, "{} {} {}", owned, config, live);
        }
    }

    /// Right after an apply, what was applied is in force.
    #[test]
    fn what_was_applied_is_in_force(config in configs(), before in configs()) {
        let (live, _) = apply(None, &before, "other");
        let (live, _) = apply(Some(&live), &config, "m");
        let owned = owned_fields(&live, "m", None).unwrap_or_else(|| json!({}));
        prop_assert!(is_in_force(&owned, &config, &live), "{} {} {}", owned, config, live);
    }
}

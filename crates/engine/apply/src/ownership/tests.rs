//! Tests of ownership on a small type of its own, which has every form of list and object.

mod applies;
mod compares;
mod fields;
mod laws;
mod owners;

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{Applied, FieldSet, ListType, Managers, OnConflict, ValueType, Writer};
use crate::ownership::ApplyError;

/// A type, as its shape.
#[derive(Clone, Copy)]
pub(super) struct Kind(&'static Shape);

enum Shape {
    Scalar,
    /// A struct: its fields, and which of them are always there.
    Struct(Vec<(&'static str, Shape)>, &'static [&'static str]),
    Map(Box<Shape>),
    AtomicStruct,
    List(Box<Shape>),
    Set(Box<Shape>),
    Keyed(Vec<String>, Box<Shape>),
    /// Anything: objects by entry, lists as a whole.
    Any,
}

fn at(shape: &'static Shape) -> Option<Kind> {
    Some(Kind(shape))
}

impl ValueType for Kind {
    fn list(&self) -> ListType<'_> {
        match self.0 {
            Shape::Set(_) => ListType::Set,
            Shape::Keyed(keys, ..) => ListType::Map(keys),
            _ => ListType::Atomic,
        }
    }

    fn is_atomic_object(&self) -> bool {
        matches!(self.0, Shape::AtomicStruct)
    }

    fn declares(&self, field: &str) -> bool {
        matches!(self.0, Shape::Struct(fields, _) if fields.iter().any(|(name, _)| *name == field))
    }

    fn field(&self, field: &str) -> Option<Kind> {
        match self.0 {
            Shape::Struct(fields, _) => {
                fields.iter().find(|(name, _)| *name == field).and_then(|(_, shape)| at(shape))
            }
            Shape::Map(value) => at(value),
            Shape::Any | Shape::AtomicStruct => at(&Shape::Any),
            _ => None,
        }
    }

    fn item(&self) -> Option<Kind> {
        match self.0 {
            Shape::List(item) | Shape::Set(item) | Shape::Keyed(_, item) => at(item),
            Shape::Any => Some(*self),
            _ => None,
        }
    }

    fn key_default(&self, key: &str) -> Option<Value> {
        let Shape::Struct(..) = self.0 else { return None };
        (key == "protocol").then(|| json!("TCP"))
    }

    fn is_always_present(&self, field: &str) -> bool {
        matches!(self.0, Shape::Struct(_, always) if always.contains(&field))
    }
}

fn keyed(keys: &[&str], item: Shape) -> Shape {
    Shape::Keyed(keys.iter().map(|key| (*key).to_owned()).collect(), Box::new(item))
}

/// An object much like a pod.
static THING: LazyLock<Shape> = LazyLock::new(|| {
    let map = || Shape::Map(Box::new(Shape::Scalar));
    let port = Shape::Struct(
        vec![("port", Shape::Scalar), ("protocol", Shape::Scalar), ("name", Shape::Scalar)],
        &[],
    );
    let container = Shape::Struct(
        vec![
            ("name", Shape::Scalar),
            ("image", Shape::Scalar),
            ("args", Shape::List(Box::new(Shape::Scalar))),
            ("ports", keyed(&["port", "protocol"], port)),
        ],
        &[],
    );
    let metadata = Shape::Struct(
        vec![
            ("name", Shape::Scalar),
            ("uid", Shape::Scalar),
            ("labels", map()),
            ("annotations", map()),
            ("finalizers", Shape::Set(Box::new(Shape::Scalar))),
            ("managedFields", Shape::List(Box::new(Shape::Any))),
        ],
        &[],
    );
    let spec = Shape::Struct(
        vec![
            ("replicas", Shape::Scalar),
            ("selector", Shape::AtomicStruct),
            ("template", Shape::Struct(vec![("mode", Shape::Scalar)], &[])),
            ("containers", keyed(&["name"], container)),
            ("free", Shape::Any),
            ("nested", Shape::Map(Box::new(map()))),
        ],
        &["containers"],
    );
    let status = Shape::Struct(vec![("phase", Shape::Scalar)], &[]);
    Shape::Struct(
        vec![
            ("apiVersion", Shape::Scalar),
            ("kind", Shape::Scalar),
            ("metadata", metadata),
            ("spec", spec),
            ("status", status),
        ],
        &["metadata", "spec", "status"],
    )
});

pub(super) fn thing() -> Kind {
    Kind(&THING)
}

static NOTHING_RESET: LazyLock<FieldSet> = LazyLock::new(FieldSet::default);

/// One who writes things at version `v1`, at a time.
pub(super) fn writer<'a>(manager: &'a str, now: &'a str) -> Writer<'a, Kind> {
    Writer {
        value_type: thing(),
        manager,
        api_version: "v1",
        subresource: "",
        reset: &NOTHING_RESET,
        is_served: &|version| version.starts_with('v'),
        now,
    }
}

/// An object and its owners over a series of writes, each a second after the last.
#[derive(Clone, Default)]
pub(super) struct Story {
    pub(super) object: Option<Value>,
    pub(super) managers: Managers,
    writes: usize,
}

impl Story {
    fn now(&mut self) -> String {
        self.writes += 1;
        format!("2026-01-01T00:00:{:02}Z", self.writes)
    }

    #[track_caller]
    pub(super) fn apply(mut self, manager: &str, config: &Value) -> Story {
        let applied = self.try_apply(manager, config, OnConflict::Refuse).unwrap();
        self.take(applied)
    }

    #[track_caller]
    pub(super) fn force(mut self, manager: &str, config: &Value) -> Story {
        let applied = self.try_apply(manager, config, OnConflict::Force).unwrap();
        self.take(applied)
    }

    pub(super) fn try_apply(
        &mut self,
        manager: &str,
        config: &Value,
        on_conflict: OnConflict,
    ) -> Result<Applied, ApplyError> {
        let now = self.now();
        writer(manager, &now).apply(self.object.as_ref(), config, self.managers.clone(), on_conflict)
    }

    fn take(mut self, applied: Applied) -> Story {
        self.object = Some(applied.object);
        self.managers = applied.managers;
        self
    }

    pub(super) fn update(mut self, manager: &str, new: Value) -> Story {
        let now = self.now();
        self.managers = writer(manager, &now).update(self.object.as_ref(), &new, self.managers);
        self.object = Some(new);
        self
    }

    /// The object, without the part of it that no one owns.
    pub(super) fn spec(&self) -> Value {
        self.object.as_ref().and_then(|object| object.get("spec")).cloned().unwrap_or_default()
    }

    /// The owners, one a line: `manager Operation: fields`.
    pub(super) fn owners(&self) -> Vec<String> {
        let line = |owned: &super::Owned| {
            format!("{} {:?}: {}", owned.owner.manager, owned.owner.operation, owned.fields.spelt().join(" "))
        };
        self.managers.entries().iter().map(line).collect()
    }
}

/// A thing with that spec.
pub(super) fn with_spec(spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": spec})
}

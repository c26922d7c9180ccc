//! Who owns which field of an object: recorded at every write, and asked by server-side apply.

use crate::cluster::Cluster;
use crate::request::Part;
use crate::status::{Answer, Failure};
use ambit_apply::{ApplyError, FieldSet, ListType, Managers, OnConflict, ValueType, Writer};
use ambit_schema::{ListKind, MapKind, ResourceType, Schema, Shape};
use serde_json::{Value, json};

/// Who writes, as the fields they come to own record it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Author {
    pub(crate) manager: String,
    /// Empty for the object itself.
    pub(crate) subresource: &'static str,
}

impl Author {
    /// The server itself.
    pub(crate) fn server() -> Self {
        Self { manager: "ambit-apiserver".to_owned(), subresource: "" }
    }
}

/// What a write does to the record of owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// It leaves it as it is.
    Keep,
    /// What has changed belongs to the author.
    By(Author),
    /// The new state has its record already.
    Made,
}

/// An apply that worked out: the new state, with its record of owners.
pub(crate) struct Laid {
    pub(crate) object: Value,
    /// Whether anything is other than before.
    pub(crate) changed: bool,
}

impl Record {
    /// What the record of a change starts from: as the client sent it, where it may. Asked before the new state is
    /// defaulted, which takes out the empty list that resets the record.
    pub(crate) fn start(&self, new: &Value, old: &Value) -> Managers {
        match self {
            Self::By(author) => Managers::for_update(old, new, author.subresource),
            Self::Keep => Managers::of(old).unwrap_or_default(),
            Self::Made => Managers::of(new).unwrap_or_default(),
        }
    }

    /// Brings the record in the new state up to date. `old` is `None` for a new object.
    pub(crate) fn settle(
        &self,
        cluster: &Cluster,
        kind: &ResourceType,
        (new, old): (&mut Value, Option<&Value>),
        start: Managers,
    ) {
        let managers = match self {
            Self::Keep | Self::Made => start,
            Self::By(author) => {
                let after = with_writer(cluster, kind, author, &FieldSet::default(), |writer| {
                    writer.update(old, new, start)
                });
                let live = old.map(Managers::of).and_then(Result::ok);
                // A record that differs in times only is none of a change.
                live.filter(|live| after.is_same_but_for_times(live)).unwrap_or(after)
            }
        };
        managers.write_into(new);
    }
}

/// Applies a configuration to an object; `live` is `None` when there is none.
pub(crate) fn apply(
    cluster: &Cluster,
    kind: &ResourceType,
    (author, part): (&Author, Part),
    (live, config): (Option<&Value>, &Value),
    on_conflict: OnConflict,
) -> Answer<Laid> {
    let managers = live.map(Managers::of).transpose();
    let managers = managers.map_err(|error| Failure::internal(error.to_string()))?.unwrap_or_default();
    let applied = with_writer(cluster, kind, author, &reset_by(kind, part), |writer| {
        writer.apply(live, config, managers, on_conflict)
    });
    match applied {
        Ok(applied) => {
            let mut object = applied.object;
            applied.managers.write_into(&mut object);
            Ok(Laid { object, changed: applied.changed })
        }
        Err(ApplyError::Conflict(conflicts)) => {
            let cause = |conflict: &ambit_apply::Conflict| json!({"reason": "FieldManagerConflict", "message": conflict.message(), "field": conflict.field()});
            let causes: Vec<Value> = conflicts.0.iter().map(cause).collect();
            Err(Failure::apply_conflict(conflicts.to_string(), causes))
        }
        Err(error @ ApplyError::Config(_)) => {
            let name = config["metadata"]["name"].as_str().unwrap_or_default();
            Err(Failure::bad_request(format!(
                "failed to create typed patch object ({name}; {}, Kind={}): {error}",
                kind.api_version(),
                kind.kind
            )))
        }
    }
}

fn with_writer<R>(
    cluster: &Cluster,
    kind: &ResourceType,
    author: &Author,
    reset: &FieldSet,
    work: impl FnOnce(&Writer<'_, Type<'_>>) -> R,
) -> R {
    let catalog = cluster.catalog();
    let is_served = |api_version: &str| {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        catalog.kind(group, version, &kind.kind).is_some()
    };
    work(&Writer {
        value_type: Type(kind.schema()),
        manager: &author.manager,
        api_version: &kind.api_version(),
        subresource: author.subresource,
        reset,
        is_served: &is_served,
        now: &cluster.now_text(),
    })
}

/// The fields that a write to a part of an object resets, so that nobody owns them by it. Source: GetResetFields of
/// the kinds' strategies.
fn reset_by(kind: &ResourceType, part: Part) -> FieldSet {
    match part {
        Part::Main if kind.subresource("status").is_some() => FieldSet::of_field(&["status"]),
        Part::Status => {
            let specification = FieldSet::of_field(&["spec"]);
            match (kind.is_custom(), kind.group.is_empty()) {
                (true, _) => specification.union(&FieldSet::of_field(&["metadata"])),
                // Pods, nodes and namespaces take labels and annotations with their status here.
                (false, true) => specification,
                (false, false) => specification.union(&FieldSet::of_field(&["metadata", "labels"])),
            }
        }
        Part::Main | Part::Finalize | Part::Whole => FieldSet::default(),
    }
}

/// The type table as ownership sees it.
#[derive(Clone, Copy)]
struct Type<'a>(&'a Schema);

/// What is known of a value whose type takes anything.
static ANYTHING: std::sync::LazyLock<Schema> = std::sync::LazyLock::new(|| Schema::of(Shape::Any));

impl Type<'_> {
    fn takes_anything(self) -> bool {
        let schema = self.0.resolve();
        matches!(schema.shape, Shape::Any | Shape::AnyObject) || schema.preserve_unknown
    }
}

impl ValueType for Type<'_> {
    fn list(&self) -> ListType<'_> {
        match &self.0.list {
            ListKind::Atomic => ListType::Atomic,
            ListKind::Set => ListType::Set,
            ListKind::Map(keys) => ListType::Map(keys),
        }
    }

    fn is_atomic_object(&self) -> bool {
        self.0.map == MapKind::Atomic || self.0.resolve().map == MapKind::Atomic
    }

    fn declares(&self, field: &str) -> bool {
        match &self.0.resolve().shape {
            Shape::Object(_) => self.0.field(field).is_some(),
            _ => false,
        }
    }

    fn field(&self, field: &str) -> Option<Self> {
        self.0.field(field).or_else(|| self.takes_anything().then_some(&*ANYTHING)).map(Type)
    }

    fn item(&self) -> Option<Self> {
        self.0.item().or_else(|| self.takes_anything().then_some(&*ANYTHING)).map(Type)
    }

    fn key_default(&self, key: &str) -> Option<Value> {
        self.0.field(key)?.default.clone()
    }
}

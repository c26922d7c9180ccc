//! One write of an object, and what it does to who owns which fields. Source: `Updater` in structured-merge-diff
//! `merge/update.go` and the chain of managers around it in apimachinery `managedfields/internal`.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::compare::{Comparison, compare};
use super::conflict::{Conflict, Conflicts};
use super::managers::{Managers, Operation, Owned, Owner};
use super::reconcile::reconcile;
use super::set::FieldSet;
use super::value_type::ValueType;

/// One write of an object: who writes what type of object, and when. The objects given to it are those of the version
/// that is written, defaulted; what stands in their `metadata.managedFields` is not looked at.
pub struct Writer<'a, T> {
    /// The type of the object.
    pub value_type: T,
    /// The name that the client gave itself; empty for `unknown`.
    pub manager: &'a str,
    /// The version of the object, `group/version`.
    pub api_version: &'a str,
    /// The subresource that is written to; empty for the object itself.
    pub subresource: &'a str,
    /// Fields that a write to this endpoint resets: no one comes to own them by it.
    pub reset: &'a FieldSet,
    /// Whether objects of this kind can be had in a version, `group/version`: entries of others are dropped.
    pub is_served: &'a dyn Fn(&str) -> bool,
    /// The time, RFC 3339 in UTC with whole seconds.
    pub now: &'a str,
}

/// Fields that no one owns. Source: `stripMetaManager`.
static NOT_OWNED: LazyLock<FieldSet> = LazyLock::new(|| {
    let metadata = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    let inner = metadata.iter().map(|name| FieldSet::of_field(&["metadata", name]));
    let outer = ["apiVersion", "kind", "metadata"].iter().map(|name| FieldSet::of_field(&[name]));
    outer.chain(inner).fold(FieldSet::default(), |set, field| set.union(&field))
});

/// The list of owners itself, which is not compared.
static MANAGED_FIELDS: LazyLock<FieldSet> =
    LazyLock::new(|| FieldSet::of_field(&["metadata", "managedFields"]));

/// The manager that owns what an object had before anyone owned anything.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Stands for an object that is not there yet.
static NOTHING: LazyLock<Value> = LazyLock::new(|| json!({}));

impl<T: ValueType> Writer<'_, T> {
    /// The owners after an update: what changed belongs to who changed it, what went belongs to no one. `live` is
    /// `None` for an object that is created. An object that no one owns anything of stays so until it is applied to.
    #[must_use]
    pub fn update(&self, live: Option<&Value>, new: &Value, managers: Managers) -> Managers {
        if live.is_some() && managers.is_empty() {
            return managers;
        }
        let mut managers =
            self.updated(live.unwrap_or(&NOTHING), new, managers, self.owner(Operation::Update));
        managers.cap();
        managers.sort();
        managers
    }

    /// The owners after an update by that owner.
    pub(super) fn updated(&self, live: &Value, new: &Value, managers: Managers, owner: Owner) -> Managers {
        let mut managers = self.reconciled(managers);
        let changes = self.changes(live, new);
        if changes.is_empty() {
            return managers;
        }
        let own = changes.set().difference(&NOT_OWNED);
        self.settle(&changes, &mut managers, None);
        if own.is_empty() {
            return managers;
        }
        let before = managers.remove(&owner).map(|owned| owned.fields).unwrap_or_default();
        managers.push(Owned { owner, fields: before.union(&own), time: Some(self.now.to_owned()) });
        managers
    }

    /// The owners after an update by who owned what the object had before anyone owned anything.
    pub(super) fn before_first_apply(&self, live: &Value) -> Managers {
        let owner = Owner { manager: BEFORE_FIRST_APPLY.to_owned(), ..self.owner(Operation::Update) };
        self.updated(&NOTHING, live, Managers::default(), owner)
    }

    pub(super) fn owner(&self, operation: Operation) -> Owner {
        let manager = if self.manager.is_empty() { "unknown" } else { self.manager };
        Owner {
            manager: manager.to_owned(),
            operation,
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
        }
    }

    pub(super) fn changes(&self, live: &Value, new: &Value) -> Comparison {
        compare(live, new, &self.value_type).without(&MANAGED_FIELDS).without(self.reset)
    }

    /// Fits what is stored to the schema of today.
    pub(super) fn reconciled(&self, mut managers: Managers) -> Managers {
        managers.retain_fields(|_, fields| Some(reconcile(fields, &self.value_type)));
        managers
    }

    /// What others own of what changes, by owner. The applier, if there is one, is none of the others.
    pub(super) fn conflicts(
        &self,
        changes: &Comparison,
        managers: &Managers,
        applier: &Owner,
    ) -> Option<Conflicts> {
        let set = changes.set();
        let mut others: Vec<_> = managers
            .entries()
            .iter()
            .filter(|owned| !owned.owner.is(applier) && self.knows(&owned.owner))
            .collect();
        others.sort_by(|one, two| one.owner.cmp(&two.owner));
        let mut conflicts = Vec::new();
        for Owned { owner, fields, .. } in others {
            let paths = fields.intersection(&set).paths();
            conflicts.extend(paths.into_iter().map(|path| Conflict { owner: owner.clone(), path }));
        }
        (!conflicts.is_empty()).then_some(Conflicts(conflicts))
    }

    /// Takes what changed and what went from all but the applier; entries of versions that are no longer served go.
    pub(super) fn settle(&self, changes: &Comparison, managers: &mut Managers, applier: Option<&Owner>) {
        let lost = changes.set().union(&changes.removed);
        managers.retain_fields(|owner, fields| {
            if applier.is_some_and(|applier| owner.is(applier)) {
                return Some(fields);
            }
            self.knows(owner).then(|| fields.difference(&lost))
        });
    }

    pub(super) fn knows(&self, owner: &Owner) -> bool {
        owner.api_version == self.api_version || (self.is_served)(&owner.api_version)
    }

    /// What an applied set leaves its owner.
    pub(super) fn stripped(fields: &FieldSet) -> FieldSet {
        fields.difference(&NOT_OWNED)
    }
}

//! Server-side apply of a configuration. Source: `Apply` in structured-merge-diff `merge/update.go`.

use serde_json::{Value, json};

use super::element::equal;
use super::error::ApplyError;
use super::last_applied;
use super::managers::{Managers, Operation, Owned};
use super::merge::merge;
use super::prune::prune;
use super::set::FieldSet;
use super::validate::validate;
use super::value_type::{Typed, ValueType};
use super::writer::Writer;

/// What to do about fields that others own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// Refuse the apply.
    Refuse,
    /// Take the fields from their owners.
    Force,
}

/// What an apply made.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The object, without `metadata.managedFields`.
    pub object: Value,
    /// The owners of its fields.
    pub managers: Managers,
    /// Whether object or owners are other than before; where they are not, the times of the owners are as before too.
    pub changed: bool,
}

impl<T: ValueType> Writer<'_, T> {
    /// Applies a configuration. `live` is `None` for an object that is not there yet.
    ///
    /// # Errors
    /// When the configuration has fields that the type does not declare or items that cannot be told apart, and when
    /// others own fields that it changes.
    pub fn apply(
        &self,
        live: Option<&Value>,
        config: &Value,
        managers: Managers,
        on_conflict: OnConflict,
    ) -> Result<Applied, ApplyError> {
        let faults = validate(config, &self.value_type);
        if !faults.is_empty() {
            return Err(ApplyError::Config(faults));
        }
        let live = live.map_or_else(|| json!({}), without_managers);
        let before = if managers.is_empty() { self.before_first_apply(&live) } else { managers.clone() };
        let outcome = self.lay_over(&live, config, before.clone(), on_conflict);
        let mut applied = match outcome {
            Err(ApplyError::Conflict(conflicts)) if last_applied::is_heir(self.manager) => {
                match last_applied::contested(&live, conflicts, self.api_version, &self.value_type) {
                    Some(conflicts) => Err(ApplyError::Conflict(conflicts)),
                    None => self.lay_over(&live, config, before, OnConflict::Force),
                }
            }
            outcome => outcome,
        }?;
        if last_applied::is_heir(self.manager) {
            last_applied::renew(&mut applied.object, config);
        }
        applied.changed =
            !equal(&live, &applied.object) || !applied.managers.is_same_but_for_times(&managers);
        if !applied.changed {
            applied.managers = managers;
        }
        Ok(applied)
    }

    fn lay_over(
        &self,
        live: &Value,
        config: &Value,
        managers: Managers,
        on_conflict: OnConflict,
    ) -> Result<Applied, ApplyError> {
        let mut managers = self.reconciled(managers);
        let owner = self.owner(Operation::Apply);
        let last = managers.remove(&owner);
        let fields = FieldSet::of(config, &self.value_type).without(self.reset);
        let own = Owned { owner: owner.clone(), fields, time: None };
        let merged = merge(live, config, &Typed::of(&self.value_type));
        let object = match &last {
            Some(last) if self.knows(&last.owner) => {
                let owned = self.owned_by_all(&managers).union(&own.fields);
                prune(merged, &last.fields, &owned, &self.value_type)
            }
            _ => merged,
        };
        let changes = self.changes(live, &object);
        if let Some(conflicts) = self.conflicts(&changes, &managers, &owner)
            && on_conflict == OnConflict::Refuse
        {
            return Err(ApplyError::Conflict(conflicts));
        }
        self.settle(&changes, &mut managers, Some(&owner));
        let fields = Self::stripped(&own.fields);
        // An entry that says what it said before of an object that is as it was keeps its time.
        let same = last.filter(|last| last.fields == fields && last.owner == owner && equal(live, &object));
        let time = same.map_or_else(|| Some(self.now.to_owned()), |last| last.time);
        if !fields.is_empty() {
            managers.push(Owned { fields, time, ..own });
        }
        managers.sort();
        Ok(Applied { object, managers, changed: true })
    }

    fn owned_by_all(&self, managers: &Managers) -> FieldSet {
        let known = managers.entries().iter().filter(|owned| self.knows(&owned.owner));
        known.fold(FieldSet::default(), |all, owned| all.union(&owned.fields))
    }
}

fn without_managers(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

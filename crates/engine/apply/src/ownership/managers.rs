//! `metadata.managedFields`: who owns which fields of an object. Source: apimachinery
//! `managedfields/internal/managedfields.go`, `fieldmanager.go` and `capmanagers.go`.

use serde_json::{Map, Value, json};

use super::error::ManagersError;
use super::set::FieldSet;

/// How a manager writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// By server-side apply.
    Apply,
    /// By any other verb.
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// Who owns fields. The order is that in which conflicts are listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The name that the client gave itself.
    pub manager: String,
    /// How it wrote.
    pub operation: Operation,
    /// The version of the object that it wrote, `group/version`.
    pub api_version: String,
    /// The subresource it wrote to; empty for the object itself.
    pub subresource: String,
}

impl Owner {
    /// Whether both share one entry. One that applies has one entry whatever the version.
    pub(super) fn is(&self, other: &Owner) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }
}

/// An entry of `metadata.managedFields`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Who owns the fields.
    pub owner: Owner,
    /// The fields.
    pub fields: FieldSet,
    /// When the entry was written, RFC 3339 in UTC.
    pub time: Option<String>,
}

/// All entries of `metadata.managedFields`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managers(Vec<Owned>);

/// Update entries kept; when there are more, the oldest of each version are folded into one.
const UPDATERS_MAX: usize = 10;

/// The manager of folded entries.
const ANCIENT: &str = "ancient-changes";

impl Managers {
    /// Reads the list in `metadata.managedFields`.
    ///
    /// # Errors
    /// When it is no list of entries of the one known form.
    pub fn parse(list: &Value) -> Result<Managers, ManagersError> {
        let entries = match list {
            Value::Null => &[][..],
            Value::Array(entries) => entries,
            _ => return Err(ManagersError::NoList),
        };
        let mut managers = Managers::default();
        for (index, entry) in entries.iter().enumerate() {
            let owned = parse_entry(entry, index)?;
            managers.remove(&owned.owner);
            managers.0.push(owned);
        }
        Ok(managers)
    }

    /// Reads the entries of an object; none when they are absent.
    ///
    /// # Errors
    /// When they are malformed.
    pub fn of(object: &Value) -> Result<Managers, ManagersError> {
        object.pointer("/metadata/managedFields").map_or_else(|| Ok(Managers::default()), Managers::parse)
    }

    /// The entries that an update starts from: those that the client sent, or the live ones when it sent none, sent
    /// them malformed or wrote to a subresource. An empty list, or one of an empty entry, resets them.
    #[must_use]
    pub fn for_update(live: &Value, new: &Value, subresource: &str) -> Managers {
        if subresource.is_empty() {
            if new.pointer("/metadata/managedFields").is_some_and(is_reset) {
                return Managers::default();
            }
            let sent = Managers::of(new).ok().filter(|managers| !managers.is_empty());
            if let Some(managers) = sent {
                return managers;
            }
        }
        Managers::of(live).unwrap_or_default()
    }

    /// The list for `metadata.managedFields`, in the order in which upstream writes it; `None` when there is nothing
    /// to write.
    #[must_use]
    pub fn render(&self) -> Option<Value> {
        if self.is_empty() {
            return None;
        }
        Some(self.0.iter().map(render_entry).collect())
    }

    /// Writes the entries into the object's `metadata.managedFields`, or removes that field when there are none.
    pub fn write_into(&self, object: &mut Value) {
        let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
        match self.render() {
            Some(list) => metadata.insert("managedFields".to_owned(), list),
            None => metadata.remove("managedFields"),
        };
    }

    /// The entries, sorted as upstream sorts them.
    #[must_use]
    pub fn entries(&self) -> &[Owned] {
        &self.0
    }

    /// Whether no one owns anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether both say the same but for times.
    #[must_use]
    pub fn is_same_but_for_times(&self, other: &Managers) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().all(|owned| other.find(&owned.owner).is_some_and(|found| is_same(owned, found)))
    }

    pub(super) fn find(&self, owner: &Owner) -> Option<&Owned> {
        self.0.iter().find(|owned| owned.owner.is(owner))
    }

    pub(super) fn remove(&mut self, owner: &Owner) -> Option<Owned> {
        let index = self.0.iter().position(|owned| owned.owner.is(owner))?;
        Some(self.0.remove(index))
    }

    pub(super) fn push(&mut self, owned: Owned) {
        self.0.push(owned);
    }

    /// Changes the fields of each entry, and drops the entries that own nothing any more.
    pub(super) fn retain_fields(&mut self, mut change: impl FnMut(&Owner, FieldSet) -> Option<FieldSet>) {
        let entries = std::mem::take(&mut self.0).into_iter();
        self.0 = entries
            .filter_map(|Owned { owner, fields, time }| {
                let fields = change(&owner, fields).filter(|fields| !fields.is_empty())?;
                Some(Owned { owner, fields, time })
            })
            .collect();
    }

    /// Sorts the entries as upstream does: those that apply first, then by time and owner.
    pub(super) fn sort(&mut self) {
        self.0.sort_by(|one, two| {
            let key = |owned: &Owned| (owned.owner.operation, owned.time.clone());
            let names = |owned: &Owned| {
                let Owner { manager, api_version, subresource, .. } = owned.owner.clone();
                (manager, api_version, subresource)
            };
            key(one).cmp(&key(two)).then_with(|| names(one).cmp(&names(two)))
        });
    }

    /// Folds the oldest update entries of each version into one until there are not too many.
    pub(super) fn cap(&mut self) {
        let mut updaters: Vec<_> =
            self.0.iter().filter(|owned| owned.owner.operation == Operation::Update).cloned().collect();
        let Some(mut excess) = updaters.len().checked_sub(UPDATERS_MAX).filter(|excess| *excess > 0) else {
            return;
        };
        updaters.sort_by(|one, two| (&one.time, &one.owner).cmp(&(&two.time, &two.owner)));
        let mut firsts: Vec<Owner> = Vec::new();
        for updater in updaters {
            if excess == 0 {
                return;
            }
            let version = updater.owner.api_version.clone();
            let Some(first) = firsts.iter().find(|first| first.api_version == version).cloned() else {
                firsts.push(updater.owner);
                continue;
            };
            self.fold(&first, updater);
            excess -= 1;
        }
    }

    /// Folds an entry into the folded one of its version, which the first entry of the version becomes.
    fn fold(&mut self, first: &Owner, updater: Owned) {
        let bucket = Owner {
            manager: ANCIENT.to_owned(),
            operation: Operation::Update,
            api_version: updater.owner.api_version.clone(),
            subresource: String::new(),
        };
        self.remove(&updater.owner);
        let before = match self.remove(&bucket) {
            Some(bucket) => bucket.fields,
            None => self.remove(first).map(|owned| owned.fields).unwrap_or_default(),
        };
        self.0.push(Owned { owner: bucket, fields: before.union(&updater.fields), time: updater.time });
    }
}

fn is_same(one: &Owned, two: &Owned) -> bool {
    one.owner == two.owner && one.fields == two.fields
}

/// Whether the list asks to forget all owners: it is empty, or has one entry with nothing in it.
fn is_reset(list: &Value) -> bool {
    match list.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([Value::Object(entry)]) => entry.values().all(is_unset),
        _ => false,
    }
}

fn is_unset(value: &Value) -> bool {
    value.is_null() || value.as_str() == Some("")
}

fn parse_entry(entry: &Value, index: usize) -> Result<Owned, ManagersError> {
    let fault = |what: &str| ManagersError::Entry { index, what: what.to_owned() };
    let text = |name: &str| match entry.get(name) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(fault(&format!("its {name} must be a string"))),
    };
    let operation = match text("operation")?.as_str() {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err(fault("operation must be `Apply` or `Update`")),
    };
    let api_version = text("apiVersion")?;
    if api_version.is_empty() {
        return Err(fault("apiVersion must not be empty"));
    }
    match text("fieldsType")?.as_str() {
        "FieldsV1" => {}
        "" => return Err(fault("fieldsType is missing")),
        other => return Err(fault(&format!("invalid fieldsType {other:?}"))),
    }
    let fields = match entry.get("fieldsV1") {
        None | Some(Value::Null) => FieldSet::default(),
        Some(fields) => FieldSet::from_fields_v1(fields)?,
    };
    let owner =
        Owner { manager: text("manager")?, operation, api_version, subresource: text("subresource")? };
    Ok(Owned { owner, fields, time: Some(text("time")?).filter(|time| !time.is_empty()) })
}

fn render_entry(owned: &Owned) -> Value {
    let Owner { manager, operation, api_version, subresource } = &owned.owner;
    let mut entry = Map::new();
    if !manager.is_empty() {
        entry.insert("manager".to_owned(), json!(manager));
    }
    entry.insert("operation".to_owned(), json!(operation.name()));
    entry.insert("apiVersion".to_owned(), json!(api_version));
    if let Some(time) = &owned.time {
        entry.insert("time".to_owned(), json!(time));
    }
    entry.insert("fieldsType".to_owned(), json!("FieldsV1"));
    entry.insert("fieldsV1".to_owned(), owned.fields.to_fields_v1());
    if !subresource.is_empty() {
        entry.insert("subresource".to_owned(), json!(subresource));
    }
    Value::Object(entry)
}

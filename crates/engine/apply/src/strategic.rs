//! Strategic merge patches: merge patches that know how lists of the type merge.
//! Source: apimachinery `pkg/util/strategicpatch/patch.go`.

use serde_json::{Map, Value};

use crate::directives::{
    DELETE_FROM_PRIMITIVE_LIST, PATCH, RETAIN_KEYS, SET_ELEMENT_ORDER, arrange, identity, position,
    without_directives,
};
use crate::error::PatchError;

/// What a strategic merge needs to know of a type.
pub trait MergeStrategy {
    /// How the field of that name merges; `None` when the type has no such field: lists are then replaced and objects
    /// merged field by field.
    fn field(&self, name: &str) -> Option<FieldStrategy<'_>>;
}

/// How a field merges.
pub struct FieldStrategy<'a> {
    /// How its list merges.
    pub list: ListMerge<'a>,
    /// Whether its object is replaced as a whole.
    pub replace: bool,
    /// The type of its object, of its map's values, or of its list's items.
    pub inner: Box<dyn MergeStrategy + 'a>,
}

/// How a list merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListMerge<'a> {
    /// The list is replaced.
    Replace,
    /// Objects are matched by this field.
    ByKey(&'a str),
    /// Scalars are matched by value.
    ByValue,
}

/// A type nothing is known of.
struct Unknown;

impl MergeStrategy for Unknown {
    fn field(&self, _name: &str) -> Option<FieldStrategy<'_>> {
        None
    }
}

/// Merges the patch into the document.
///
/// # Errors
/// When the patch is not an object, uses an unknown directive, or lacks the merge key of an item.
pub fn strategic_merge(
    document: Value,
    patch: &Value,
    strategy: &dyn MergeStrategy,
) -> Result<Value, PatchError> {
    let (Value::Object(document), Value::Object(patch)) = (document, patch) else {
        return Err(PatchError::Malformed(
            "a strategic merge patch of an object must be an object".to_owned(),
        ));
    };
    merge_objects(document, patch.clone(), strategy, "").map(Value::Object)
}

fn fault(path: &str, what: impl Into<String>) -> PatchError {
    let path = if path.is_empty() { "." } else { path };
    PatchError::Strategic { path: path.to_owned(), what: what.into() }
}

fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn merge_objects(
    mut object: Map<String, Value>,
    mut patch: Map<String, Value>,
    strategy: &dyn MergeStrategy,
    path: &str,
) -> Result<Map<String, Value>, PatchError> {
    if let Some(directive) = patch.remove(PATCH) {
        match directive.as_str() {
            Some("merge") => {}
            Some("replace") => return Ok(plain(patch)),
            Some("delete") => return Ok(Map::new()),
            _ => {
                return Err(fault(
                    path,
                    format!("unknown patch type {directive}: know delete, replace and merge"),
                ));
            }
        }
    }
    retain_keys(&mut object, &mut patch, path)?;
    for name in listed_fields(&patch) {
        merge_listed_field(&mut object, &mut patch, strategy, &name, path)?;
    }
    for (name, value) in patch {
        if value.is_null() {
            object.remove(&name);
            continue;
        }
        let Some(old) = object.remove(&name) else {
            object.insert(name, without_directives(value));
            continue;
        };
        let merged = merge_field(old, value, strategy, &child(path, &name), &name)?;
        object.insert(name, merged);
    }
    Ok(object)
}

fn plain(patch: Map<String, Value>) -> Map<String, Value> {
    match without_directives(Value::Object(patch)) {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn retain_keys(
    object: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    path: &str,
) -> Result<(), PatchError> {
    let Some(directive) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let keys: Option<Vec<&str>> =
        directive.as_array().and_then(|keys| keys.iter().map(Value::as_str).collect());
    let keys = keys.ok_or_else(|| fault(path, "$retainKeys must be a list of strings"))?;
    if let Some((stray, _)) =
        patch.iter().find(|(key, value)| !value.is_null() && !keys.contains(&key.as_str()))
    {
        return Err(fault(path, format!("the patch sets \"{stray}\", which its $retainKeys does not list")));
    }
    object.retain(|key, _| keys.contains(&key.as_str()));
    Ok(())
}

/// Fields whose lists have a directive of their own.
fn listed_fields(patch: &Map<String, Value>) -> Vec<String> {
    let name = |key: &String| {
        let name =
            key.strip_prefix(SET_ELEMENT_ORDER).or_else(|| key.strip_prefix(DELETE_FROM_PRIMITIVE_LIST));
        name.map(str::to_owned)
    };
    let mut names: Vec<_> = patch.keys().filter_map(name).collect();
    names.sort();
    names.dedup();
    names
}

/// Merges a list whose order or deletions the patch gives beside it.
fn merge_listed_field(
    object: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    strategy: &dyn MergeStrategy,
    name: &str,
    path: &str,
) -> Result<(), PatchError> {
    let path = child(path, name);
    let order = take_list(patch, &format!("{SET_ELEMENT_ORDER}{name}"), &path)?;
    let deletions = take_list(patch, &format!("{DELETE_FROM_PRIMITIVE_LIST}{name}"), &path)?;
    if patch.get(name).is_some_and(Value::is_null) {
        return Ok(());
    }
    let before = take_list(object, name, &path)?;
    let addition = take_list(patch, name, &path)?;
    let exists = before.is_some() || addition.is_some();
    let before = before.unwrap_or_default();
    let field = strategy.field(name);
    let merge_key = match field.as_ref().map(|field| field.list) {
        Some(ListMerge::ByKey(key)) => Some(key),
        Some(ListMerge::ByValue) => None,
        _ => {
            return Err(fault(&path, "the list does not merge, so its order or deletions cannot be patched"));
        }
    };
    let mut kept = before.clone();
    kept.retain(|item| !deletions.iter().flatten().any(|deleted| deleted == item));
    let merged = match addition {
        Some(addition) => merge_lists(kept, addition, field.as_ref(), &path)?,
        None => kept,
    };
    let arranged = match order {
        Some(order) => arrange(merged, &order, &before, merge_key),
        None => merged,
    };
    if exists {
        object.insert(name.to_owned(), Value::Array(arranged));
    }
    Ok(())
}

fn take_list(map: &mut Map<String, Value>, key: &str, path: &str) -> Result<Option<Vec<Value>>, PatchError> {
    match map.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(_) => Err(fault(path, format!("{key} must be a list"))),
    }
}

fn merge_field(
    old: Value,
    patch: Value,
    strategy: &dyn MergeStrategy,
    path: &str,
    name: &str,
) -> Result<Value, PatchError> {
    let field = strategy.field(name);
    match (old, patch) {
        (Value::Object(old), Value::Object(patch)) => match &field {
            Some(field) if field.replace => Ok(Value::Object(plain(patch))),
            Some(field) => merge_objects(old, patch, field.inner.as_ref(), path).map(Value::Object),
            None => merge_objects(old, patch, &Unknown, path).map(Value::Object),
        },
        (Value::Array(old), Value::Array(patch)) => {
            merge_lists(old, patch, field.as_ref(), path).map(Value::Array)
        }
        (_, patch) => Ok(without_directives(patch)),
    }
}

fn merge_lists(
    old: Vec<Value>,
    patch: Vec<Value>,
    field: Option<&FieldStrategy<'_>>,
    path: &str,
) -> Result<Vec<Value>, PatchError> {
    match field.map(|field| (field.list, field.inner.as_ref())) {
        Some((ListMerge::ByKey(key), inner)) => merge_by_key(old, patch, (key, inner), path),
        Some((ListMerge::ByValue, _)) => Ok(merge_by_value(old, patch)),
        _ => match without_directives(Value::Array(patch)) {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        },
    }
}

fn merge_by_value(old: Vec<Value>, patch: Vec<Value>) -> Vec<Value> {
    let mut merged = old.clone();
    for item in &patch {
        if !merged.contains(item) {
            merged.push(item.clone());
        }
    }
    arrange(merged, &patch, &old, None)
}

fn merge_by_key(
    old: Vec<Value>,
    patch: Vec<Value>,
    (key, inner): (&str, &dyn MergeStrategy),
    path: &str,
) -> Result<Vec<Value>, PatchError> {
    let mut merged = old.clone();
    let mut additions = Vec::new();
    let mut replaces = false;
    for mut item in patch {
        let map = item.as_object_mut().ok_or_else(|| fault(path, "items of this list must be objects"))?;
        let directive = map.remove(PATCH);
        match directive.as_ref().map(|value| value.as_str().unwrap_or_default()) {
            None => additions.push(item),
            Some("replace") => replaces = true,
            Some("delete") => {
                let wanted = keyed(&item, key, path)?;
                merged.retain(|other| identity(other, Some(key)) != Some(wanted));
            }
            Some("merge") => return Err(fault(path, "$patch: merge is not possible inside a list")),
            Some(other) => {
                return Err(fault(
                    path,
                    format!("unknown patch type {other}: know delete, replace and merge"),
                ));
            }
        }
    }
    if replaces {
        return Ok(additions.into_iter().map(without_directives).collect());
    }
    for item in &additions {
        let wanted = keyed(item, key, path)?;
        match position(&merged, item, Some(key)) {
            Some(index) => {
                let path =
                    format!("{path}[{key}={}]", wanted.as_str().map_or(wanted.to_string(), str::to_owned));
                if let (Value::Object(old), Value::Object(item)) = (merged[index].take(), item.clone()) {
                    merged[index] = Value::Object(merge_objects(old, item, inner, &path)?);
                }
            }
            None => merged.push(without_directives(item.clone())),
        }
    }
    Ok(arrange(merged, &additions, &old, Some(key)))
}

fn keyed<'a>(item: &'a Value, key: &str, path: &str) -> Result<&'a Value, PatchError> {
    identity(item, Some(key)).ok_or_else(|| {
        fault(path, format!("an item lacks \"{key}\", by which items of this list are matched"))
    })
}

#[cfg(test)]
mod tests;

//! Defaults as clients notice them: those of the type table and of custom schemas, and the few that depend on other
//! fields.

mod kinds;

use serde_json::{Map, Value};

use crate::catalog::ResourceType;
use crate::schema::{Field, Schema, Shape, find_field};

impl ResourceType {
    /// Fills in defaults. Done on every write and on every read from the store, so that old objects gain new defaults.
    pub fn default(&self, object: &mut Value) {
        walk(&self.schema, object);
    }
}

pub(crate) fn walk(schema: &Schema, value: &mut Value) {
    let resolved = schema.resolve();
    match (&resolved.shape, value) {
        (Shape::Object(fields), Value::Object(map)) => {
            fill(fields, map);
            if let Shape::Definition(id) = schema.shape {
                // Built-in kinds have no null of their own, whoever wrote one.
                map.retain(|name, value| !value.is_null() || keeps_null(fields, name));
                kinds::dependent_defaults(id, map);
            }
            for field in fields {
                if let Some(value) = map.get_mut(field.name.as_ref()) {
                    walk(&field.schema, value);
                }
            }
        }
        (Shape::Map(of), Value::Object(map)) => map.values_mut().for_each(|value| walk(of, value)),
        (Shape::List(of), Value::Array(items)) => items.iter_mut().for_each(|item| walk(of, item)),
        _ => {}
    }
}

fn keeps_null(fields: &[Field], name: &str) -> bool {
    find_field(fields, name).is_some_and(|field| matches!(field.schema.shape, Shape::Any))
}

fn fill(fields: &[Field], map: &mut Map<String, Value>) {
    for field in fields {
        let name = field.name.as_ref();
        // A null that is not a value of its own gives way to the default.
        let missing = map.get(name).is_none_or(|value| value.is_null() && !field.schema.nullable);
        if let (true, Some(default)) = (missing, &field.schema.default) {
            map.insert(name.to_owned(), default.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::Catalog;

    #[test]
    fn nulls_and_empty_metadata_go() {
        let catalog = Catalog::builtin();
        let of = catalog.kind("", "v1", "ConfigMap").unwrap();
        let mut object = json!({
            "metadata": {"name": "c", "labels": null, "annotations": {}, "finalizers": [], "generateName": ""},
            "data": null, "immutable": true,
        });
        of.default(&mut object);
        assert_eq!(object, json!({"metadata": {"name": "c"}, "immutable": true}));
    }
}

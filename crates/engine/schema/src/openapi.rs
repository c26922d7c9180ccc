//! OpenAPI v3 documents, as kubectl needs them for apply, create and explain: schemas with the Kubernetes extensions,
//! and paths whose operations tell the kinds and the forms of patches.

mod paths;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::catalog::{Catalog, ResourceType};
use crate::schema::{Field, ListKind, MapKind, Schema, Shape};
use crate::table::{self, DefinitionId};

/// What names of definitions begin with; the type table leaves it out.
const PREFIX: &str = "io.k8s.";
const OBJECT_META: &str = "apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "apimachinery.pkg.apis.meta.v1.ListMeta";
const QUANTITY: &str = "apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "apimachinery.pkg.util.intstr.IntOrString";
const PATCH: &str = "apimachinery.pkg.apis.meta.v1.Patch";
const DELETE_OPTIONS: &str = "apimachinery.pkg.apis.meta.v1.DeleteOptions";
const STATUS: &str = "apimachinery.pkg.apis.meta.v1.Status";

/// The name of a document: `api/v1`, `apis/apps/v1`.
fn document_name(of: &ResourceType) -> String {
    if of.group.is_empty() {
        format!("api/{}", of.version)
    } else {
        format!("apis/{}/{}", of.group, of.version)
    }
}

/// The index of documents: `{"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=…"}, …}}`. A document
/// changes only together with its hash.
#[must_use]
pub fn openapi_v3_index(catalog: &Catalog) -> Value {
    let mut groups: BTreeMap<String, DefaultHasher> = BTreeMap::new();
    for of in catalog.resources() {
        let hasher = groups.entry(document_name(of)).or_default();
        (&of.plural, &of.kind, of.is_namespaced(), &of.verbs).hash(hasher);
        match &of.custom {
            Some(custom) => custom.published().to_string().hash(hasher),
            None => table::fingerprint().hash(hasher),
        }
    }
    let paths: Map<String, Value> = groups
        .into_iter()
        .map(|(name, hasher)| {
            let url = format!("/openapi/v3/{name}?hash={:016X}", hasher.finish());
            (name, json!({"serverRelativeURL": url}))
        })
        .collect();
    json!({"paths": paths})
}

/// The document of a group and version, named as in the index: `api/v1`, `apis/apps/v1`.
#[must_use]
pub fn openapi_v3(catalog: &Catalog, group_version: &str) -> Option<Value> {
    let types: Vec<_> = catalog.resources().filter(|of| document_name(of) == group_version).collect();
    let first = types.first()?;
    let mut schemas =
        Schemas { group: first.group.clone(), version: first.version.clone(), ..Schemas::default() };
    for name in [PATCH, DELETE_OPTIONS, STATUS, OBJECT_META, LIST_META] {
        schemas.want(name);
    }
    let mut document_paths = Map::new();
    for of in &types {
        schemas.add_type(of);
        paths::add(&mut document_paths, of, &schema_name(of));
        for subresource in &of.subresources {
            let kind = &subresource.group_version_kind;
            if let Some(id) = table::find_kind(&kind.group, &kind.version, &kind.kind) {
                schemas.want(table::name(id));
            }
        }
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": format!("v{}", crate::KUBERNETES_VERSION)},
        "paths": document_paths,
        "components": {"schemas": schemas.finish()},
    }))
}

/// The name of the schema of a type. Custom ones reverse the group, as `io.k8s` does.
fn schema_name(of: &ResourceType) -> String {
    match of.schema.shape {
        Shape::Definition(id) => format!("{PREFIX}{}", table::name(id)),
        _ => custom_schema_name(&of.group, &of.version, &of.kind),
    }
}

fn custom_schema_name(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<_> = group.split('.').rev().collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn reference_to(name: &str) -> Value {
    json!({"allOf": [reference(&format!("{PREFIX}{name}"))]})
}

/// Schemas of a document: those asked for and all they refer to.
#[derive(Default)]
struct Schemas {
    group: String,
    version: String,
    wanted: Vec<DefinitionId>,
    seen: BTreeSet<&'static str>,
    done: Map<String, Value>,
}

impl Schemas {
    fn want(&mut self, name: &str) {
        if let Some(id) = table::find(name)
            && self.seen.insert(table::name(id))
        {
            self.wanted.push(id);
        }
    }

    fn add_type(&mut self, of: &Arc<ResourceType>) {
        match (&of.custom, &of.schema.shape) {
            (Some(custom), _) => {
                self.add_custom(of, &of.kind, custom_object(custom.published()));
                let items = json!({"type": "array", "items": reference(&schema_name(of))});
                let list = json!({
                    "type": "object",
                    "required": ["items"],
                    "properties": {
                        "apiVersion": {"type": "string"},
                        "kind": {"type": "string"},
                        "metadata": reference_to(LIST_META),
                        "items": items,
                    },
                });
                self.add_custom(of, &of.list_kind, list);
            }
            (None, Shape::Definition(id)) => {
                let name = table::name(*id);
                self.want(name);
                self.want(&format!("{name}List"));
            }
            _ => {}
        }
    }

    fn add_custom(&mut self, of: &ResourceType, kind: &str, mut schema: Value) {
        schema["x-kubernetes-group-version-kind"] =
            json!([{"group": of.group, "version": of.version, "kind": kind}]);
        self.done.insert(custom_schema_name(&of.group, &of.version, kind), schema);
    }

    fn finish(mut self) -> Map<String, Value> {
        while let Some(id) = self.wanted.pop() {
            let schema = self.definition(id);
            self.done.insert(format!("{PREFIX}{}", table::name(id)), schema);
        }
        self.done
    }

    fn definition(&mut self, id: DefinitionId) -> Value {
        let schema = table::definition(id);
        let mut out = match &schema.shape {
            Shape::Object(fields) => self.object(fields),
            Shape::Quantity => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
            Shape::IntOrString => {
                json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
            }
            _ => self.value(schema),
        };
        let kinds: Vec<Value> = table::kinds(id)
            .map(|kind| match kind.split('/').collect::<Vec<_>>()[..] {
                // A kind of every group is shown as one of this group.
                ["*", _, kind] => json!({"group": self.group, "version": self.version, "kind": kind}),
                [group, version, kind] => json!({"group": group, "version": version, "kind": kind}),
                _ => Value::Null,
            })
            .collect();
        if !kinds.is_empty() {
            out["x-kubernetes-group-version-kind"] = kinds.into();
        }
        out
    }

    fn object(&mut self, fields: &[Field]) -> Value {
        let properties: Map<String, Value> =
            fields.iter().map(|field| (field.name.to_string(), self.value(&field.schema))).collect();
        let mut out = json!({"type": "object", "properties": properties});
        let required: Vec<_> =
            fields.iter().filter(|field| field.required).map(|field| field.name.as_ref()).collect();
        if !required.is_empty() {
            out["required"] = required.into();
        }
        out
    }

    fn value(&mut self, schema: &Schema) -> Value {
        let mut out = self.shape(&schema.shape);
        if let Some(default) = &schema.default {
            out["default"] = default.clone();
        }
        if !schema.enumeration.is_empty() {
            out["enum"] = schema.enumeration.clone().into();
        }
        extensions(schema, &mut out);
        out
    }

    fn shape(&mut self, shape: &Shape) -> Value {
        match shape {
            Shape::Any => json!({}),
            Shape::AnyObject => json!({"type": "object"}),
            Shape::Object(fields) => self.object(fields),
            Shape::Map(of) => json!({"type": "object", "additionalProperties": self.value(of)}),
            Shape::List(of) => json!({"type": "array", "items": self.value(of)}),
            Shape::String => json!({"type": "string"}),
            Shape::Bytes => json!({"type": "string", "format": "byte"}),
            Shape::Time | Shape::MicroTime => json!({"type": "string", "format": "date-time"}),
            Shape::Quantity => self.named(QUANTITY),
            Shape::IntOrString => self.named(INT_OR_STRING),
            Shape::Int32 => json!({"type": "integer", "format": "int32"}),
            Shape::Int64 => json!({"type": "integer", "format": "int64"}),
            Shape::Number => json!({"type": "number", "format": "double"}),
            Shape::Bool => json!({"type": "boolean"}),
            Shape::Definition(id) => self.named(table::name(*id)),
        }
    }

    fn named(&mut self, name: &str) -> Value {
        self.want(name);
        reference_to(name)
    }
}

fn extensions(schema: &Schema, out: &mut Value) {
    let patch = &schema.patch;
    let strategies: Vec<_> =
        [("merge", patch.merge), ("retainKeys", patch.retain_keys), ("replace", patch.replace)]
            .into_iter()
            .filter_map(|(name, is_set)| is_set.then_some(name))
            .collect();
    if !strategies.is_empty() {
        out["x-kubernetes-patch-strategy"] = strategies.join(",").into();
    }
    if let Some(key) = &patch.merge_key {
        out["x-kubernetes-patch-merge-key"] = key.as_str().into();
    }
    match &schema.list {
        ListKind::Map(keys) => {
            out["x-kubernetes-list-type"] = "map".into();
            out["x-kubernetes-list-map-keys"] = keys.clone().into();
        }
        ListKind::Set => out["x-kubernetes-list-type"] = "set".into(),
        ListKind::Atomic if matches!(schema.shape, Shape::List(_)) => {
            out["x-kubernetes-list-type"] = "atomic".into()
        }
        ListKind::Atomic => {}
    }
    if schema.map == MapKind::Atomic {
        out["x-kubernetes-map-type"] = "atomic".into();
    }
}

/// The schema of a custom resource as published: with what every object has.
fn custom_object(published: &Value) -> Value {
    let mut out = published.clone();
    if !out.is_object() {
        out = json!({});
    }
    out["type"] = "object".into();
    if !out["properties"].is_object() {
        out["properties"] = json!({});
    }
    out["properties"]["apiVersion"] = json!({"type": "string"});
    out["properties"]["kind"] = json!({"type": "string"});
    out["properties"]["metadata"] = reference_to(OBJECT_META);
    out
}

#[cfg(test)]
mod tests;

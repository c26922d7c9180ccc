//! Paths of OpenAPI documents. kubectl reads from them which resource has which kind, whether a kind takes strategic
//! merge patches, and whether its writes know the `fieldValidation` option.

use serde_json::{Map, Value, json};

use super::{PATCH, PREFIX, reference};
use crate::catalog::{GroupVersionKind, ResourceType, Subresource};

/// Adds the paths of a resource and its subresources.
pub(super) fn add(paths: &mut Map<String, Value>, of: &ResourceType, schema: &str) {
    let root = if of.group.is_empty() {
        format!("/api/{}", of.version)
    } else {
        format!("/apis/{}/{}", of.group, of.version)
    };
    let operations = Operations { of, schema };
    let base = if of.is_namespaced() { format!("{root}/namespaces/{{namespace}}") } else { root.clone() };
    let collection = format!("{base}/{}", of.plural);
    if of.is_namespaced() && of.has_verb("list") {
        let all = json!({"get": operations.operation("list", "get", None)});
        paths.insert(format!("{root}/{}", of.plural), all);
    }
    paths.insert(collection.clone(), operations.collection());
    if of.has_verb("get") {
        let item = format!("{collection}/{{name}}");
        for subresource in &of.subresources {
            paths.insert(format!("{item}/{}", subresource.name), operations.subresource(subresource));
        }
        paths.insert(item, operations.item());
    }
}

struct Operations<'a> {
    of: &'a ResourceType,
    schema: &'a str,
}

impl Operations<'_> {
    fn collection(&self) -> Value {
        let mut out = json!({"parameters": self.parameters(false)});
        let verbs = [
            ("list", "get", "list"),
            ("create", "post", "post"),
            ("deletecollection", "delete", "deletecollection"),
        ];
        for (verb, method, action) in verbs {
            if self.of.has_verb(verb) {
                out[method] = self.operation(action, method, None);
            }
        }
        out
    }

    fn item(&self) -> Value {
        let mut out = json!({"parameters": self.parameters(true)});
        for (verb, method) in [("get", "get"), ("update", "put"), ("patch", "patch"), ("delete", "delete")] {
            if self.of.has_verb(verb) {
                out[method] = self.operation(method, method, None);
            }
        }
        out
    }

    fn subresource(&self, subresource: &Subresource) -> Value {
        let mut out = json!({"parameters": self.parameters(true)});
        for verb in &subresource.verbs {
            let method = match verb.as_str() {
                "create" => "post",
                "update" => "put",
                other => other,
            };
            out[method] = self.operation(method, method, Some(subresource));
        }
        out
    }

    /// Parameters that the path itself names.
    fn parameters(&self, named: bool) -> Vec<Value> {
        let path =
            |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
        let mut out = Vec::new();
        if named {
            out.push(path("name"));
        }
        if self.of.is_namespaced() {
            out.push(path("namespace"));
        }
        out
    }

    fn operation(&self, action: &str, method: &str, subresource: Option<&Subresource>) -> Value {
        let kind =
            subresource.map_or_else(|| self.of.group_version_kind(), |of| of.group_version_kind.clone());
        let own = kind == self.of.group_version_kind();
        let schema = if own { reference(self.schema) } else { built_in_reference(&kind) };
        let mut out = json!({
            "operationId": self.operation_id(action, subresource),
            "parameters": options(method),
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        });
        match method {
            "patch" => out["requestBody"] = json!({"required": true, "content": self.patch_forms()}),
            "post" | "put" => {
                out["requestBody"] = json!({"required": true, "content": {"*/*": {"schema": schema}}});
            }
            _ => {}
        }
        out
    }

    fn patch_forms(&self) -> Map<String, Value> {
        let mut forms = vec!["application/json-patch+json", "application/merge-patch+json"];
        if !self.of.is_custom() {
            forms.push("application/strategic-merge-patch+json");
        }
        forms.push("application/apply-patch+yaml");
        let schema = reference(&format!("{PREFIX}{PATCH}"));
        forms.into_iter().map(|form| (form.to_owned(), json!({"schema": schema}))).collect()
    }

    fn operation_id(&self, action: &str, subresource: Option<&Subresource>) -> String {
        let of = self.of;
        let group: String = of.group.split(['.', '-']).map(capitalised).collect();
        let scope = if of.is_namespaced() { "Namespaced" } else { "" };
        let part = subresource.map(|of| capitalised(&of.name)).unwrap_or_default();
        format!("{action}{group}{}{scope}{}{part}", capitalised(&of.version), of.kind)
    }
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn built_in_reference(kind: &GroupVersionKind) -> Value {
    match crate::table::find_kind(&kind.group, &kind.version, &kind.kind) {
        Some(id) => reference(&format!("{PREFIX}{}", crate::table::name(id))),
        None => json!({"type": "object"}),
    }
}

fn options(method: &str) -> Vec<Value> {
    let names: &[&str] = match method {
        "post" | "put" => &["dryRun", "fieldManager", "fieldValidation"],
        "patch" => &["dryRun", "fieldManager", "fieldValidation", "force"],
        "delete" => &["dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"],
        _ => &[],
    };
    let kind = |name: &str| match name {
        "force" | "orphanDependents" => "boolean",
        "gracePeriodSeconds" => "integer",
        _ => "string",
    };
    names.iter().map(|name| json!({"name": name, "in": "query", "schema": {"type": kind(name)}})).collect()
}

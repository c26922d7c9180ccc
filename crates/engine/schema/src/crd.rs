//! Custom resources: from a CustomResourceDefinition to the types it serves.

use std::sync::Arc;

use serde_json::Value;

use crate::catalog::{
    CustomType, GroupVersionKind, ResourceType, ScalePaths, Scope, Subresource, api_version,
};
use crate::cells::{self, Column};
use crate::fault::Faults;
use crate::jsonpath::JsonPath;
use crate::path::Path;
use crate::rules::{self, RuleSet};
use crate::schema::{Field, Schema, Shape};
use crate::structural;
use crate::{served, table};

/// Rules listed in the message of one problem at most.
const LISTED_MAX: usize = 10;

/// What keeps a CustomResourceDefinition, or a part of it, from being served.
#[derive(Clone, Debug, PartialEq)]
pub struct CrdProblem {
    /// The definition: its `metadata.name`.
    pub definition: String,
    /// The type of the condition that should show it: `NamesAccepted` (status False), `NonStructuralSchema` (status
    /// True), or `UnenforcedRules` (status True).
    pub condition: &'static str,
    /// The reason of that condition, one word.
    pub reason: String,
    /// What is wrong, for people.
    pub message: String,
    /// Whether the definition is not served because of it.
    pub fatal: bool,
}

/// The definitions, those last whose names have been refused: they do not take names from who has them.
pub(crate) fn by_claim(definitions: &[Value]) -> Vec<&Value> {
    let is_refused = |definition: &&Value| {
        let mut conditions = definition["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == "NamesAccepted" && condition["status"] == "False")
    };
    let (refused, mut sorted): (Vec<_>, Vec<_>) = definitions.iter().partition(is_refused);
    sorted.extend(refused);
    sorted
}

/// The types of all served versions of a definition, `before` taken over when it has not changed since; none when it has
/// a fatal problem.
pub(crate) fn resource_types(
    definition: &Value,
    (served, before): (&[Arc<ResourceType>], &[Arc<ResourceType>]),
    problems: &mut Vec<CrdProblem>,
) -> Vec<Arc<ResourceType>> {
    let of = Definition(definition);
    if let Some((reason, message)) = of.name_conflict(served) {
        problems.push(of.problem("NamesAccepted", &reason, message, true));
        return Vec::new();
    }
    let unchanged = of.unchanged(before);
    if !unchanged.is_empty() {
        return unchanged;
    }
    let spec = Arc::new(definition["spec"].clone());
    let mut types = Vec::new();
    for (index, version) in of.versions().iter().enumerate() {
        match of.read_schema(index, version) {
            Ok((schema, unenforced)) => {
                if !unenforced.is_empty() {
                    let message = unenforced_message(&of, version, &unenforced);
                    problems.push(of.problem("UnenforcedRules", "RulesNotSupported", message, false));
                }
                if version["served"] == true {
                    types.push(Arc::new(of.resource_type((&spec, index), schema)));
                }
            }
            Err(message) => {
                problems.push(of.problem("NonStructuralSchema", "Violations", message, true));
                return Vec::new();
            }
        }
    }
    types
}

fn unenforced_message(of: &Definition<'_>, version: &Value, paths: &[String]) -> String {
    let listed: Vec<_> = paths.iter().take(LISTED_MAX).map(String::as_str).collect();
    format!(
        "x-kubernetes-validations of {} are not enforced: {}{}",
        api_version(of.spec("group"), text(&version["name"])),
        listed.join(", "),
        if paths.len() > LISTED_MAX { ", …" } else { "" },
    )
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A definition, as stored.
struct Definition<'a>(&'a Value);

impl Definition<'_> {
    fn name(&self) -> &str {
        text(&self.0["metadata"]["name"])
    }

    fn spec(&self, field: &str) -> &str {
        text(&self.0["spec"][field])
    }

    fn names(&self, field: &str) -> &str {
        text(&self.0["spec"]["names"][field])
    }

    fn versions(&self) -> &[Value] {
        self.0["spec"]["versions"].as_array().map_or(&[], Vec::as_slice)
    }

    fn problem(&self, condition: &'static str, reason: &str, message: String, fatal: bool) -> CrdProblem {
        CrdProblem {
            definition: self.name().to_owned(),
            condition,
            reason: reason.to_owned(),
            message,
            fatal,
        }
    }

    fn singular(&self) -> String {
        match self.names("singular") {
            "" => self.names("kind").to_lowercase(),
            singular => singular.to_owned(),
        }
    }

    fn list_kind(&self) -> String {
        match self.names("listKind") {
            "" => format!("{}List", self.names("kind")),
            kind => kind.to_owned(),
        }
    }

    /// A name of this definition that a resource of the same group already has. Source: apiextensions
    /// `pkg/controller/status/naming_controller.go`.
    fn name_conflict(&self, served: &[Arc<ResourceType>]) -> Option<(String, String)> {
        let group = self.spec("group");
        let others: Vec<_> = served
            .iter()
            .filter(|of| of.group == group)
            .filter(|of| of.custom.as_ref().is_none_or(|custom| custom.definition_name != self.name()))
            .collect();
        let resource_taken = |name: &str| {
            let short = |of: &&Arc<ResourceType>| of.short_names.iter().any(|short| short == name);
            !name.is_empty() && others.iter().any(|of| of.plural == name || of.singular == name || short(of))
        };
        let kind_taken = |name: &str| others.iter().any(|of| of.kind == name || of.list_kind == name);
        let in_use =
            |reason: &str, name: &str| Some((reason.to_owned(), format!("\"{name}\" is already in use")));
        let singular = self.singular();
        let list_kind = self.list_kind();
        if resource_taken(self.names("plural")) {
            return in_use("PluralConflict", self.names("plural"));
        }
        if resource_taken(&singular) {
            return in_use("SingularConflict", &singular);
        }
        if let Some(name) =
            texts(&self.0["spec"]["names"]["shortNames"]).iter().find(|name| resource_taken(name))
        {
            return in_use("ShortNamesConflict", name);
        }
        if kind_taken(self.names("kind")) {
            return in_use("KindConflict", self.names("kind"));
        }
        if kind_taken(&list_kind) { in_use("ListKindConflict", &list_kind) } else { None }
    }

    /// The schema of a version and the places of rules that are not enforced.
    fn read_schema(&self, index: usize, version: &Value) -> Result<(Schema, Vec<String>), String> {
        let root = Path::Root;
        let (spec, versions);
        spec = root.field("spec");
        versions = spec.field("versions");
        let version_path = versions.index(index);
        let schema_path = version_path.field("schema");
        let path = schema_path.field("openAPIV3Schema");
        let schema = &version["schema"]["openAPIV3Schema"];
        let mut faults = Faults::default();
        structural::check(&path, schema, &mut faults);
        let faults = faults.into_vec();
        if !faults.is_empty() {
            let texts: Vec<_> = faults.iter().take(LISTED_MAX).map(ToString::to_string).collect();
            return Err(texts.join("; "));
        }
        Ok((as_root(structural::read(schema)), rules::unenforced(schema)))
    }

    /// The types that were made of the same specification.
    fn unchanged(&self, before: &[Arc<ResourceType>]) -> Vec<Arc<ResourceType>> {
        let of_this = before.iter().filter(|of| {
            let custom = of.custom.as_ref();
            custom.is_some_and(|c| c.definition_name == self.name() && *c.spec == self.0["spec"])
        });
        of_this.cloned().collect()
    }

    fn resource_type(&self, (spec, version_index): (&Arc<Value>, usize), schema: Schema) -> ResourceType {
        let version = &spec["versions"][version_index];
        let (group, name, kind) = (self.spec("group"), text(&version["name"]), self.names("kind"));
        let stored = self.versions().iter().find(|version| version["storage"] == true).unwrap_or(version);
        let stored_as = GroupVersionKind::new(group, text(&stored["name"]), kind);
        let names = &self.0["spec"]["names"];
        let (columns, column_paths) = read_columns(version);
        ResourceType {
            group: group.to_owned(),
            version: name.to_owned(),
            kind: kind.to_owned(),
            list_kind: self.list_kind(),
            plural: self.names("plural").to_owned(),
            singular: self.singular(),
            short_names: texts(&names["shortNames"]),
            categories: texts(&names["categories"]),
            scope: if self.spec("scope") == "Namespaced" { Scope::Namespaced } else { Scope::Cluster },
            verbs: served::VERBS.map(str::to_owned).to_vec(),
            subresources: subresources(version, &GroupVersionKind::new(group, name, kind)),
            stored_plural: self.names("plural").to_owned(),
            storage_version: stored_as.version.clone(),
            stored_as,
            is_unattended: false,
            custom: Some(CustomType {
                definition_name: self.name().to_owned(),
                deprecation_warning: self.deprecation_warning(version),
                scale: scale_paths(&version["subresources"]["scale"]),
                selectable_fields: selectable_fields(version),
                column_paths,
                rules: RuleSet::of(
                    &version["schema"]["openAPIV3Schema"],
                    (api_version(group, name), group, kind),
                ),
                spec: spec.clone(),
                version_index,
            }),
            schema,
            columns,
        }
    }

    fn deprecation_warning(&self, version: &Value) -> Option<String> {
        if version["deprecated"] != true {
            return None;
        }
        let of = api_version(self.spec("group"), text(&version["name"]));
        let default = || format!("{of} {} is deprecated", self.names("kind"));
        Some(version["deprecationWarning"].as_str().map_or_else(default, str::to_owned))
    }
}

/// Adds what every object has to the schema of the root.
fn as_root(mut schema: Schema) -> Schema {
    let fields = match std::mem::take(&mut schema.shape) {
        Shape::Object(fields) => fields,
        _ => Vec::new(),
    };
    schema.shape = Shape::Object(with_object_fields(fields));
    schema
}

/// The fields with `apiVersion`, `kind` and `metadata`, whatever the schema says of those.
pub(crate) fn with_object_fields(mut fields: Vec<Field>) -> Vec<Field> {
    let metadata =
        table::find("apimachinery.pkg.apis.meta.v1.ObjectMeta").map_or(Shape::AnyObject, Shape::Definition);
    fields.retain(|field| !matches!(field.name.as_ref(), "apiVersion" | "kind" | "metadata"));
    for (name, shape) in [("apiVersion", Shape::String), ("kind", Shape::String), ("metadata", metadata)] {
        fields.push(Field {
            name: name.into(),
            required: false,
            lenient: false,
            schema: Schema::of(shape),
            wire: None,
        });
    }
    fields.sort_by(|a, b| a.name.cmp(&b.name));
    fields
}

fn subresources(version: &Value, kind: &GroupVersionKind) -> Vec<Subresource> {
    let verbs = || ["get", "patch", "update"].map(str::to_owned).to_vec();
    let declared = &version["subresources"];
    let mut out = Vec::new();
    if declared["scale"].is_object() {
        let kind = GroupVersionKind::new("autoscaling", "v1", "Scale");
        out.push(Subresource { name: "scale".to_owned(), group_version_kind: kind, verbs: verbs() });
    }
    if declared["status"].is_object() {
        out.push(Subresource { name: "status".to_owned(), group_version_kind: kind.clone(), verbs: verbs() });
    }
    out
}

fn scale_paths(scale: &Value) -> Option<ScalePaths> {
    let path = |field: &str| scale[field].as_str().map(|path| path.trim_start_matches('.').to_owned());
    Some(ScalePaths {
        spec_replicas: path("specReplicasPath")?,
        status_replicas: path("statusReplicasPath")?,
        label_selector: path("labelSelectorPath").filter(|path| !path.is_empty()),
    })
}

fn selectable_fields(version: &Value) -> Vec<String> {
    let fields = version["selectableFields"].as_array().into_iter().flatten();
    fields.map(|field| text(&field["jsonPath"]).trim_start_matches('.').to_owned()).collect()
}

/// The name, then the additional columns; the age when there are none.
fn read_columns(version: &Value) -> (Vec<Column>, Vec<JsonPath>) {
    let mut columns = vec![cells::name_column()];
    let mut paths = Vec::new();
    for declared in version["additionalPrinterColumns"].as_array().into_iter().flatten() {
        let Ok(path) = JsonPath::parse(text(&declared["jsonPath"])) else { continue };
        columns.push(Column {
            name: text(&declared["name"]).to_owned(),
            type_: text(&declared["type"]).to_owned(),
            format: text(&declared["format"]).to_owned(),
            description: text(&declared["description"]).to_owned(),
            priority: declared["priority"]
                .as_i64()
                .and_then(|priority| i32::try_from(priority).ok())
                .unwrap_or(0),
        });
        paths.push(path);
    }
    if paths.is_empty() {
        let mut age = cells::age_column();
        age.type_ = "date".to_owned();
        columns.push(age);
        paths.extend(JsonPath::parse(".metadata.creationTimestamp"));
    }
    (columns, paths)
}

#[cfg(test)]
mod tests;

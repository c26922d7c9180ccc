//! Validation of CustomResourceDefinitions. Source: apiextensions
//! `pkg/apis/apiextensions/validation/validation.go`.

use serde_json::Value;

use super::names;
use super::{items, text};
use crate::fault::Faults;
use crate::jsonpath::JsonPath;
use crate::path::Path;
use crate::{rules, structural};

/// The annotation that groups of the Kubernetes project need.
const APPROVED: &str = "api-approved.kubernetes.io";
/// Selectable fields of a version at most.
const SELECTABLE_FIELDS_MAX: usize = 8;

/// Checks a CustomResourceDefinition.
pub(super) fn definition(definition: &Value, root: &Path<'_>, faults: &mut Faults) {
    let spec = &definition["spec"];
    let path = root.field("spec");
    let group = text(spec, "group");
    let wanted = format!("{}.{group}", text(&spec["names"], "plural"));
    let metadata = root.field("metadata");
    if text(&definition["metadata"], "name") != wanted {
        let name = text(&definition["metadata"], "name");
        faults.invalid(&metadata.field("name"), name, "must be spec.names.plural+\".\"+spec.group");
    }
    if let Err(message) = names::dns_subdomain(group) {
        faults.invalid(&path.field("group"), group, message);
    } else if !group.contains('.') {
        faults.invalid(&path.field("group"), group, "should be a domain with at least one dot");
    }
    let protected = [".k8s.io", ".kubernetes.io"].iter().any(|suffix| group.ends_with(suffix));
    if protected && text(&definition["metadata"]["annotations"], APPROVED).is_empty() {
        let message = format!(
            "protected groups must have approval annotation \"{APPROVED}\", see https://github.com/kubernetes/enhancements/pull/1111"
        );
        faults.required(&metadata.field("annotations").key(APPROVED), message);
    }
    if spec["preserveUnknownFields"] == true {
        let message = "must be false: set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        faults.invalid(&path.field("preserveUnknownFields"), true, message);
    }
    if text(&spec["conversion"], "strategy") == "Webhook" {
        let message = "conversion webhooks are not supported by this server: use the strategy None";
        faults.forbidden(&path.field("conversion").field("strategy"), message);
    }
    resource_names(&spec["names"], &path.field("names"), faults);
    versions(spec, &path.field("versions"), faults);
}

fn resource_names(of: &Value, path: &Path<'_>, faults: &mut Faults) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let name = text(of, field);
        if !name.is_empty()
            && let Err(message) = names::dns_1035_label(&name.to_lowercase())
        {
            faults.invalid(&path.field(field), name, message);
        }
    }
    for field in ["shortNames", "categories"] {
        let list = path.field(field);
        for (index, name) in items(of, field) {
            let name = name.as_str().unwrap_or_default();
            if let Err(message) = names::dns_1035_label(name) {
                faults.invalid(&list.index(index), name, message);
            }
        }
    }
    if text(of, "kind") == text(of, "listKind") && !text(of, "kind").is_empty() {
        faults.invalid(
            &path.field("listKind"),
            text(of, "listKind"),
            "kind and listKind may not be the same",
        );
    }
}

fn versions(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    let stored = items(spec, "versions").filter(|(_, version)| version["storage"] == true).count();
    if stored != 1 && items(spec, "versions").count() > 0 {
        faults.invalid(path, stored, "must have exactly one version marked as storage version");
    }
    let mut seen = Vec::new();
    for (index, version) in items(spec, "versions") {
        let path = path.index(index);
        let name = text(version, "name");
        if !name.is_empty()
            && let Err(message) = names::dns_1035_label(name)
        {
            faults.invalid(&path.field("name"), name, message);
        }
        if seen.contains(&name) {
            faults.invalid(&path.field("name"), name, "must be unique among all versions");
        }
        seen.push(name);
        let schema = &version["schema"]["openAPIV3Schema"];
        let schema_path = path.field("schema");
        structural::check(&schema_path.field("openAPIV3Schema"), schema, faults);
        rules::check(&schema_path.field("openAPIV3Schema"), schema, faults);
        json_paths(version, &path, faults);
    }
}

fn json_paths(version: &Value, path: &Path<'_>, faults: &mut Faults) {
    let columns = path.field("additionalPrinterColumns");
    for (index, column) in items(version, "additionalPrinterColumns") {
        let text = text(column, "jsonPath");
        if let Err(message) = JsonPath::parse(text) {
            faults.invalid(
                &columns.index(index).field("jsonPath"),
                text,
                format!("is an invalid jsonpath: {message}"),
            );
        }
    }
    let scale_path = path.field("subresources");
    let scale_path = scale_path.field("scale");
    let scale = &version["subresources"]["scale"];
    let roots =
        [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status."), ("labelSelectorPath", ".")];
    for (field, start) in roots {
        let text = text(scale, field);
        let plain = JsonPath::parse(text).is_ok_and(|path| path.plain_fields().is_some());
        let fits = plain && text.starts_with(start);
        if !text.is_empty() && !fits {
            let message = format!("should be a json path under {start}");
            faults.invalid(&scale_path.field(field), text, message);
        }
    }
    let selectable = path.field("selectableFields");
    let count = items(version, "selectableFields").count();
    if count > SELECTABLE_FIELDS_MAX {
        faults.too_many(&selectable, count, SELECTABLE_FIELDS_MAX);
    }
    for (index, field) in items(version, "selectableFields") {
        let text = text(field, "jsonPath");
        let plain = JsonPath::parse(text).is_ok_and(|path| path.plain_fields().is_some());
        if !plain || !text.starts_with('.') {
            faults.invalid(&selectable.index(index).field("jsonPath"), text, "must be a simple json path");
        }
    }
}

/// What a CustomResourceDefinition may not change: its objects would be lost.
pub(super) fn definition_update(new: &Value, old: &Value, faults: &mut Faults) {
    let path = Path::Root.field("spec");
    let (spec, before) = (&new["spec"], &old["spec"]);
    let established = items(&old["status"], "conditions").any(|(_, condition)| {
        text(condition, "type") == "Established" && text(condition, "status") == "True"
    });
    for field in ["group", "scope"] {
        if spec[field] != before[field] && (established || field == "group") {
            faults.invalid(&path.field(field), spec[field].clone(), "field is immutable");
        }
    }
    for field in ["kind", "plural"] {
        if established && spec["names"][field] != before["names"][field] {
            faults.invalid(
                &path.field("names").field(field),
                spec["names"][field].clone(),
                "field is immutable",
            );
        }
    }
    let stored = items(&new["status"], "storedVersions");
    for (_, version) in stored {
        if !items(spec, "versions").any(|(_, known)| known["name"] == *version) {
            let path = Path::Root.field("status");
            let path = path.field("storedVersions");
            let message = format!("{version} must remain in spec.versions while objects may be stored in it");
            faults.invalid(&path, version.clone(), message);
        }
    }
}

//! CustomResourceDefinitions: accepted names, and the conditions that tell clients whether they are served.
//! Source: apiextensions-apiserver pkg/controller/status and pkg/controller/establish.

use super::forbidden;
use crate::cluster::{Cluster, DEFINITIONS};
use crate::request::text;
use crate::status::{Answer, Failure};
use ambit_schema::{CrdProblem, FaultKind, FieldFault, ResourceType};
use serde_json::{Value, json};

/// Holds a definition until its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The collection that holds a definition's objects.
pub(crate) fn instances_of(definition: &Value) -> String {
    format!("{}/{}", text(definition, "/spec/group"), text(definition, "/spec/names/plural"))
}

/// Fills in the names that follow from others.
pub(super) fn complete_names(definition: &mut Value) {
    let kind = text(definition, "/spec/names/kind").to_owned();
    let names = &mut definition["spec"]["names"];
    for (field, value) in [("singular", kind.to_lowercase()), ("listKind", format!("{kind}List"))] {
        if names[field].as_str().unwrap_or_default().is_empty() {
            names[field] = value.into();
        }
    }
    if definition["spec"]["conversion"].is_null() {
        definition["spec"]["conversion"] = json!({"strategy": "None"});
    }
}

/// Decides whether a new or changed definition is served, and says so in its status.
pub(super) fn accept(cluster: &Cluster, kind: &ResourceType, definition: &mut Value) -> Answer<()> {
    complete_names(definition);
    let name = text(definition, "/metadata/name").to_owned();
    let mut all = cluster.values(DEFINITIONS, None);
    all.retain(|other| text(other, "/metadata/name") != name);
    all.push(definition.clone());
    let (_, problems) = cluster.catalog().with_crds(&all);
    let problems: Vec<CrdProblem> = problems.into_iter().filter(|p| p.definition == name).collect();
    if let Some(problem) = problems.iter().find(|p| p.fatal && p.condition == "NonStructuralSchema") {
        let fault = FieldFault {
            path: "spec.versions".into(),
            kind: FaultKind::Invalid,
            message: problem.message.clone(),
            bad_value: None,
        };
        return Err(Failure::invalid(kind, &name, &[fault]));
    }
    let now = cluster.now_text();
    let clash = problems.iter().find(|p| p.condition == "NamesAccepted");
    let fatal = problems.iter().find(|p| p.fatal);
    set_condition(definition, &now, "NamesAccepted", clash, ("NoConflicts", "no conflicts found"));
    let ready = ("InitialNamesAccepted", "the initial names have been accepted");
    set_condition(definition, &now, "Established", fatal, ready);
    if clash.is_none() {
        definition["status"]["acceptedNames"] = definition["spec"]["names"].clone();
    }
    let versions = definition["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let mut stored = definition["status"]["storedVersions"].as_array().cloned().unwrap_or_default();
    for version in versions.iter().filter(|v| v["storage"] == true) {
        if !stored.contains(&version["name"]) {
            stored.push(version["name"].clone());
        }
    }
    definition["status"]["storedVersions"] = stored.into();
    Ok(())
}

fn set_condition(
    definition: &mut Value,
    now: &str,
    name: &str,
    problem: Option<&CrdProblem>,
    (reason, message): (&str, &str),
) {
    let (status, reason, message) = match problem {
        Some(problem) => ("False", problem.reason.as_str(), problem.message.as_str()),
        None => ("True", reason, message),
    };
    let mut conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let before = conditions.iter().position(|c| c["type"] == name).map(|i| conditions.remove(i));
    let since =
        before.filter(|c| c["status"] == status).map_or(json!(now), |c| c["lastTransitionTime"].clone());
    conditions.push(json!({
        "type": name, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    }));
    definition["status"]["conditions"] = conditions.into();
}

/// Refuses a new custom object whose definition is going away.
pub(super) fn check_open(cluster: &Cluster, kind: &ResourceType, value: &Value) -> Answer<()> {
    let Some(custom) = &kind.custom else { return Ok(()) };
    let definition = cluster.object(DEFINITIONS, "", &custom.definition_name);
    match definition.map(|d| d.value()["metadata"].get("deletionTimestamp").is_some()) {
        Some(false) => Ok(()),
        _ => {
            Err(forbidden(kind, value, "create not allowed while custom resource definition is terminating"))
        }
    }
}

//! Namespaces: what every one carries, and that nothing is created in a missing or terminating one.
//! Source: the NamespaceLifecycle admission plugin and the strategy of namespaces.

use super::forbidden;
use crate::cluster::Cluster;
use crate::request::text;
use crate::status::{Answer, Failure};
use ambit_names::label;
use ambit_schema::ResourceType;
use ambit_store::Key;
use serde_json::{Value, json};

/// A new namespace.
pub(super) fn complete_new(value: &mut Value) {
    complete(value);
    let spec = &mut value["spec"];
    let listed = spec["finalizers"].as_array().is_some_and(|f| f.iter().any(|f| f == "kubernetes"));
    if !listed {
        match spec["finalizers"].as_array_mut() {
            Some(finalizers) => finalizers.push("kubernetes".into()),
            None => spec["finalizers"] = json!(["kubernetes"]),
        }
    }
    value["status"] = json!({"phase": "Active"});
}

/// The label that selectors of namespaces rely on cannot be taken off.
pub(super) fn complete(value: &mut Value) {
    let name = text(value, "/metadata/name").to_owned();
    value["metadata"]["labels"][label::NAMESPACE_NAME] = name.into();
}

/// Refuses a new object whose namespace is not there or is going away.
pub(super) fn check_open(cluster: &Cluster, kind: &ResourceType, value: &Value) -> Answer<()> {
    let namespace = text(value, "/metadata/namespace");
    let Some(found) = cluster.db.head(&Key::new("namespaces", "", namespace)) else {
        return Err(Failure::not_found(&cluster.built_in("", "v1", "Namespace"), namespace));
    };
    if found.value.value()["metadata"].get("deletionTimestamp").is_some() {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let message = format!("namespace {namespace} is being terminated");
        return Err(forbidden(kind, value, &why).cause("NamespaceTerminating", &message));
    }
    Ok(())
}

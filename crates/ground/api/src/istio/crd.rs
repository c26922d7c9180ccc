//! The custom resource definitions of the kinds in this room.

use super::{AuthorizationPolicy, PeerAuthentication, SECURITY_GROUP};
use crate::apiextensions::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
    CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceSubresourceStatus,
    CustomResourceSubresources, CustomResourceValidation, JSONSchemaProps,
};
use kube::Resource;
use kube::core::ObjectMeta;
use std::collections::BTreeMap;

/// Structural schemas by plural name.
const SCHEMAS: &str = include_str!("schemas.yaml");
/// Served versions, the stored one first. Their schemas do not differ.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// A printer column: name, JSON path, type, description.
type Column = (&'static str, &'static str, &'static str, &'static str);

const AGE: Column = ("Age", ".metadata.creationTimestamp", "date", "Time since the object was made.");
const ACTION: Column = ("Action", ".spec.action", "string", "What happens to a matching connection.");
const MODE: Column = ("Mode", ".spec.mtls.mode", "string", "What is accepted on all ports.");

/// The definitions a cluster needs before it can hold the kinds of this room.
///
/// # Panics
/// Never: the embedded schemas are read by a test.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut schemas: BTreeMap<String, JSONSchemaProps> =
        serde_saphyr::from_str(SCHEMAS).expect("the embedded schemas are valid");
    vec![
        definition::<AuthorizationPolicy>(&mut schemas, "ap", &[ACTION, AGE]),
        definition::<PeerAuthentication>(&mut schemas, "pa", &[MODE, AGE]),
    ]
}

fn definition<K: Resource<DynamicType = ()>>(
    schemas: &mut BTreeMap<String, JSONSchemaProps>,
    short_name: &str,
    columns: &[Column],
) -> CustomResourceDefinition {
    let (plural, kind) = (K::plural(&()).into_owned(), K::kind(&()).into_owned());
    let schema = schemas.remove(&plural).expect("every kind has an embedded schema");
    let columns: Vec<_> = columns.iter().map(column).collect();
    CustomResourceDefinition {
        metadata: ObjectMeta { name: Some(format!("{plural}.{SECURITY_GROUP}")), ..ObjectMeta::default() },
        spec: CustomResourceDefinitionSpec {
            group: SECURITY_GROUP.to_owned(),
            scope: "Namespaced".to_owned(),
            names: CustomResourceDefinitionNames {
                singular: Some(kind.to_lowercase()),
                list_kind: Some(format!("{kind}List")),
                categories: Some(vec!["istio-io".to_owned(), "security-istio-io".to_owned()]),
                short_names: Some(vec![short_name.to_owned()]),
                plural,
                kind,
            },
            versions: VERSIONS.iter().map(|name| version(name, &schema, &columns)).collect(),
            ..CustomResourceDefinitionSpec::default()
        },
        status: None,
    }
}

fn version(
    name: &str,
    schema: &JSONSchemaProps,
    columns: &[CustomResourceColumnDefinition],
) -> CustomResourceDefinitionVersion {
    CustomResourceDefinitionVersion {
        name: name.to_owned(),
        served: true,
        storage: name == VERSIONS[0],
        schema: Some(CustomResourceValidation { open_api_v3_schema: Some(schema.clone()) }),
        subresources: Some(CustomResourceSubresources {
            status: Some(CustomResourceSubresourceStatus(serde_json::json!({}))),
            scale: None,
        }),
        additional_printer_columns: Some(columns.to_vec()),
        ..CustomResourceDefinitionVersion::default()
    }
}

fn column(&(name, json_path, type_, description): &Column) -> CustomResourceColumnDefinition {
    CustomResourceColumnDefinition {
        name: name.to_owned(),
        json_path: json_path.to_owned(),
        type_: type_.to_owned(),
        description: Some(description.to_owned()),
        ..CustomResourceColumnDefinition::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Paths of schemas below `schema` that are not structural: a value without a type.
    fn untyped(path: &str, schema: &Value) -> Vec<String> {
        let mut found = Vec::new();
        if schema["type"].as_str().is_none() {
            found.push(path.to_owned());
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            found.extend(untyped(&format!("{path}.{name}"), property));
        }
        for inner in ["items", "additionalProperties"] {
            if let Some(inner_schema) = schema.get(inner) {
                found.extend(untyped(&format!("{path}.{inner}"), inner_schema));
            }
        }
        found
    }

    #[test]
    fn definitions_are_structural_and_complete() {
        let crds = crds();
        let names: Vec<_> = crds.iter().filter_map(|c| c.metadata.name.as_deref()).collect();
        assert_eq!(
            names,
            ["authorizationpolicies.security.istio.io", "peerauthentications.security.istio.io"]
        );
        for crd in &crds {
            assert_eq!(crd.spec.versions.iter().filter(|v| v.storage).count(), 1);
            for version in &crd.spec.versions {
                let schema = serde_json::to_value(version.schema.as_ref().unwrap()).unwrap();
                assert_eq!(untyped("", &schema["openAPIV3Schema"]), Vec::<String>::new());
            }
        }
    }

    #[test]
    fn schemas_know_every_field_of_the_types() {
        let crds = crds();
        let of = |i: usize| serde_json::to_value(&crds[i].spec.versions[0].schema).unwrap();
        let rule =
            &of(0)["openAPIV3Schema"]["properties"]["spec"]["properties"]["rules"]["items"]["properties"];
        let check = |schema: &Value, object: Value| {
            for field in object.as_object().unwrap().keys() {
                assert!(schema.get(field).is_some(), "{field}");
            }
        };
        let full = |names: &[&str]| -> Value {
            names
                .iter()
                .map(|n| ((*n).to_owned(), serde_json::json!(["x"])))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let source = full(&["principals", "notServiceAccounts", "notRemoteIpBlocks", "notIpBlocks"]);
        let read: super::super::Source = serde_json::from_value(source.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), source);
        check(&rule["from"]["items"]["properties"]["source"]["properties"], source);
        let operation = full(&["hosts", "notPorts", "notMethods", "notPaths"]);
        check(&rule["to"]["items"]["properties"]["operation"]["properties"], operation);
        check(&rule["when"]["items"]["properties"], full(&["key", "values", "notValues"]));
    }
}

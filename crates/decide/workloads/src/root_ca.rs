//! The ConfigMap in every namespace that tells pods whom to trust as the API server.
//! Source of behaviour: upstream pkg/controller/certificates/rootcacertpublisher.

use ambit_api::core::v1::{ConfigMap, Namespace};
use ambit_api::meta::ObjectMeta;
use std::collections::BTreeMap;

/// Name of the ConfigMap.
pub const NAME: &str = "kube-root-ca.crt";
/// Its only key.
pub const KEY: &str = "ca.crt";

/// What is to be written.
#[derive(Debug, PartialEq)]
pub enum Write {
    /// There is none.
    Create(ConfigMap),
    /// Somebody changed it.
    Replace(ConfigMap),
}

/// Decides for one namespace. Labels and other annotations of an existing object stay.
pub fn plan(namespace: &Namespace, existing: Option<&ConfigMap>, root_ca_pem: &str) -> Option<Write> {
    if namespace.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let data = Some(BTreeMap::from([(KEY.to_owned(), root_ca_pem.to_owned())]));
    match existing {
        Some(existing) if existing.data == data && existing.binary_data.is_none() => None,
        Some(existing) => {
            let metadata = existing.metadata.clone();
            Some(Write::Replace(ConfigMap { metadata, data, ..ConfigMap::default() }))
        }
        None => {
            let description = "Contains a CA bundle that can be used to verify the kube-apiserver when using \
                               internal endpoints such as the internal service IP or kubernetes.default.svc. \
                               No other usage is guaranteed across distributions of Kubernetes clusters.";
            let metadata = ObjectMeta {
                name: Some(NAME.to_owned()),
                namespace: namespace.metadata.name.clone(),
                annotations: Some(BTreeMap::from([(
                    "kubernetes.io/description".to_owned(),
                    description.to_owned(),
                )])),
                ..ObjectMeta::default()
            };
            Some(Write::Create(ConfigMap { metadata, data, ..ConfigMap::default() }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn it_is_created_restored_and_left_alone() {
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        let Some(Write::Create(mut map)) = plan(&namespace, None, "PEM") else { panic!("none is there") };
        assert_eq!(plan(&namespace, Some(&map), "PEM"), None);
        map.metadata.labels = Some(BTreeMap::from([("team".to_owned(), "x".to_owned())]));
        map.data = Some(BTreeMap::from([(KEY.to_owned(), "edited".to_owned())]));
        let Some(Write::Replace(restored)) = plan(&namespace, Some(&map), "PEM") else {
            panic!("it was edited")
        };
        assert_eq!(restored.data.unwrap()[KEY], "PEM");
        assert_eq!(restored.metadata.labels, map.metadata.labels);
        let leaving = json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(plan(&serde_json::from_value(leaving).unwrap(), None, "PEM"), None);
    }
}

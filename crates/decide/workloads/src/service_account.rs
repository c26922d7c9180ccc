//! The `default` ServiceAccount of every namespace. Source of behaviour: upstream pkg/controller/serviceaccount.

use ambit_api::core::v1::{Namespace, ServiceAccount};
use ambit_api::meta::ObjectMeta;

/// Name of the account that pods get unless they name one.
pub const NAME: &str = "default";

/// The account to create, if the namespace stays and has none.
pub fn plan(namespace: &Namespace, existing: Option<&ServiceAccount>) -> Option<ServiceAccount> {
    if namespace.metadata.deletion_timestamp.is_some() || existing.is_some() {
        return None;
    }
    let metadata = ObjectMeta {
        name: Some(NAME.to_owned()),
        namespace: namespace.metadata.name.clone(),
        ..ObjectMeta::default()
    };
    Some(ServiceAccount { metadata, ..ServiceAccount::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_namespace_that_stays_gets_one() {
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        let wanted = plan(&namespace, None).expect("none is there");
        assert_eq!(wanted.metadata.namespace.as_deref(), Some("a"));
        assert_eq!(plan(&namespace, Some(&wanted)), None);
        let leaving = json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(plan(&serde_json::from_value(leaving).unwrap(), None), None);
    }
}

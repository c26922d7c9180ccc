//! The class of claims and of ingresses that name none: the default one, if there is one. Sources: kubernetes
//! plugin/pkg/admission/storage/storageclass/setdefault, plugin/pkg/admission/network/defaultingressclass.

use crate::cluster::Cluster;
use crate::request::text;
use serde_json::Value;

/// Where a claim and an ingress name their class, and how a class says that it is the default.
struct Classes {
    collection: &'static str,
    /// The field of the specification.
    field: &'static str,
    /// The annotation that named it before there was a field.
    old: &'static str,
    defaults: &'static [&'static str],
}

const STORAGE: Classes = Classes {
    collection: "storage.k8s.io/storageclasses",
    field: "storageClassName",
    old: "volume.beta.kubernetes.io/storage-class",
    defaults: &[
        "storageclass.kubernetes.io/is-default-class",
        "storageclass.beta.kubernetes.io/is-default-class",
    ],
};
const INGRESS: Classes = Classes {
    collection: "networking.k8s.io/ingressclasses",
    field: "ingressClassName",
    old: "kubernetes.io/ingress.class",
    defaults: &["ingressclass.kubernetes.io/is-default-class"],
};

/// A new PersistentVolumeClaim.
pub(super) fn of_claim(cluster: &Cluster, claim: &mut Value) {
    STORAGE.fill(cluster, claim);
}

/// A new Ingress.
pub(super) fn of_ingress(cluster: &Cluster, ingress: &mut Value) {
    INGRESS.fill(cluster, ingress);
}

impl Classes {
    /// Names the default class in an object that names none. An empty name is one: it asks for no class.
    fn fill(&self, cluster: &Cluster, object: &mut Value) {
        let is_named = object["spec"].get(self.field).is_some_and(|name| !name.is_null());
        if is_named || object["metadata"]["annotations"].get(self.old).is_some() {
            return;
        }
        if let Some(name) = self.default_of(&cluster.values(self.collection, None)) {
            object["spec"][self.field] = name.into();
        }
    }

    /// The newest of the default classes; the first by name of those as old.
    fn default_of(&self, classes: &[Value]) -> Option<String> {
        let is_default = |class: &&Value| {
            self.defaults.iter().any(|annotation| class["metadata"]["annotations"][annotation] == "true")
        };
        let newest = classes.iter().filter(is_default).min_by(|a, b| {
            let (made, name) = ("/metadata/creationTimestamp", "/metadata/name");
            text(b, made).cmp(text(a, made)).then_with(|| text(a, name).cmp(text(b, name)))
        })?;
        Some(text(newest, "/metadata/name").to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn class(name: &str, second: u8, is_default: &str) -> Value {
        let annotations = json!({STORAGE.defaults[0]: is_default});
        let made = format!("2026-01-01T00:00:{second:02}Z");
        json!({"metadata": {"name": name, "creationTimestamp": made, "annotations": annotations}})
    }

    #[track_caller]
    fn check(classes: &[Value], expected: Option<&str>) {
        assert_eq!(STORAGE.default_of(classes).as_deref(), expected, "{classes:?}");
    }

    #[test]
    fn the_newest_default_class_wins() {
        check(&[], None);
        check(&[class("a", 1, "false"), json!({"metadata": {"name": "b"}})], None);
        check(&[class("a", 1, "true"), class("b", 2, "true"), class("c", 3, "false")], Some("b"));
        check(&[class("b", 1, "true"), class("a", 1, "true")], Some("a"));
    }
}

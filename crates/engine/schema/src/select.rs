//! Field selectors: which fields of which kinds can be asked for. Source: Kubernetes `pkg/apis/*/v1/conversion.go`
//! and the `GetAttrs` functions of the registries.

use serde_json::Value;

use crate::catalog::ResourceType;

/// Selectable fields of one kind. A name is followed by `=` and the place of its value where that differs.
struct Selectable {
    group: &'static str,
    kind: &'static str,
    fields: &'static [&'static str],
}

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source=source.component",
    "type",
];

const SELECTABLE: &[Selectable] = &[
    Selectable {
        group: "",
        kind: "Pod",
        fields: &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs=status.podIP",
            "status.nominatedNodeName",
        ],
    },
    Selectable { group: "", kind: "Event", fields: EVENT_FIELDS },
    Selectable { group: "", kind: "Namespace", fields: &["status.phase"] },
    Selectable { group: "", kind: "Node", fields: &["spec.unschedulable"] },
    Selectable { group: "", kind: "Secret", fields: &["type"] },
    Selectable { group: "", kind: "Service", fields: &["spec.clusterIP", "spec.type"] },
    Selectable {
        group: "events.k8s.io",
        kind: "Event",
        fields: &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
    },
];

/// Fields whose missing value reads as false rather than as nothing.
const TRUTH_VALUES: [&str; 2] = ["spec.hostNetwork", "spec.unschedulable"];

impl ResourceType {
    /// The value of a field for a field selector; `None` when the field is not selectable, whatever the object.
    #[must_use]
    pub fn field_for_selector(&self, object: &Value, path: &str) -> Option<String> {
        match path {
            "metadata.name" => return Some(value_at(object, path)),
            "metadata.namespace" if self.is_namespaced() => return Some(value_at(object, path)),
            _ => {}
        }
        if let Some(custom) = &self.custom {
            return custom
                .selectable_fields
                .iter()
                .any(|field| field == path)
                .then(|| value_at(object, path));
        }
        let of_kind = SELECTABLE.iter().find(|of| of.group == self.group && of.kind == self.kind)?;
        let place = of_kind.fields.iter().find_map(|field| match field.split_once('=') {
            Some((name, place)) => (name == path).then_some(place),
            None => (*field == path).then_some(*field),
        })?;
        let value = value_at(object, place);
        Some(if value.is_empty() && TRUTH_VALUES.contains(&path) { "false".to_owned() } else { value })
    }
}

fn value_at(object: &Value, path: &str) -> String {
    let found = path.split('.').try_fold(object, |value, name| value.get(name));
    match found {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::Catalog;

    #[track_caller]
    fn check((group, plural): (&str, &str), path: &str, expected: Option<&str>) {
        let object = json!({
            "metadata": {"name": "n", "namespace": "ns"},
            "spec": {"nodeName": "node-1", "hostNetwork": true},
            "source": {"component": "me"},
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        });
        let catalog = Catalog::builtin();
        let of = catalog.resource(group, "v1", plural).unwrap();
        assert_eq!(of.field_for_selector(&object, path).as_deref(), expected, "{plural} {path}");
    }

    #[test]
    fn fields() {
        check(("", "pods"), "metadata.name", Some("n"));
        check(("", "pods"), "metadata.namespace", Some("ns"));
        check(("", "nodes"), "metadata.namespace", None);
        check(("", "pods"), "spec.nodeName", Some("node-1"));
        check(("", "pods"), "spec.restartPolicy", Some(""));
        check(("", "pods"), "spec.hostNetwork", Some("true"));
        check(("", "pods"), "status.podIPs", Some("10.0.0.1"));
        check(("", "pods"), "spec.containers", None);
        check(("", "nodes"), "spec.unschedulable", Some("false"));
        check(("", "events"), "source", Some("me"));
        check(("apps", "deployments"), "spec.replicas", None);
    }
}

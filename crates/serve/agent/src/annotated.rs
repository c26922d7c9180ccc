//! What a pod's annotation tells of its capture, for those who cannot ask its node's agent.

use crate::Settings;
use crate::status::PodStatus;
use crate::work::policy_of;
use ambit_api::core::v1::{Namespace, Pod};
use ambit_node_plan::enroll::state::{Outcome, describe};
use ambit_node_plan::enroll::{self, Policy, Redirection};

/// Reads capture states from annotations, with the settings that agents have unless told otherwise: excluded namespaces and
/// selectors of an agent are known to nobody else.
#[derive(Debug)]
pub struct Annotated {
    policy: Policy,
}

impl Default for Annotated {
    fn default() -> Self {
        Self { policy: policy_of(&Settings::new("")) }
    }
}

impl Annotated {
    /// The state of a pod as its annotation tells it. It does not tell since when it is so, why a pod is not captured, nor
    /// whether it is kept off the network.
    pub fn status(&self, pod: &Pod, namespace: Option<&Namespace>) -> PodStatus {
        let decision = enroll::decide(pod, namespace, &self.policy);
        let handed_over = match enroll::redirection(pod) {
            Redirection::Enabled => Some(true),
            Redirection::Pending => Some(false),
            Redirection::None => None,
        };
        let has_address = !enroll::addresses(pod).is_empty();
        let capture = describe(decision, Outcome { has_address, handed_over, problem: None });
        PodStatus {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            wanted: capture.wanted.word().to_owned(),
            state: capture.state.word().to_owned(),
            since: String::new(),
            reason: capture.reason,
            kept_off: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(annotation: Option<&str>, mode: Option<&str>, expected: (&str, &str)) {
        let pod = json!({"metadata": {"name": "p", "namespace": "shop", "uid": "u",
            "annotations": {"ambient.istio.io/redirection": annotation}}, "status": {"podIP": "10.0.0.5"}});
        let namespace = json!({"metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": mode}}});
        let mut pod: Pod = serde_json::from_value(without_null(pod)).unwrap();
        let namespace: Namespace = serde_json::from_value(without_null(namespace)).unwrap();
        let shown = Annotated::default().status(&pod, Some(&namespace));
        assert_eq!((shown.wanted.as_str(), shown.state.as_str()), expected);
        pod.metadata.namespace = Some("kube-system".into());
        assert_eq!(Annotated::default().status(&pod, Some(&namespace)).wanted, "left-alone");
    }

    fn without_null(mut value: serde_json::Value) -> serde_json::Value {
        for map in ["/metadata/annotations", "/metadata/labels"] {
            if let Some(map) = value.pointer_mut(map).and_then(serde_json::Value::as_object_mut) {
                map.retain(|_, value| !value.is_null());
            }
        }
        value
    }

    #[test]
    fn the_annotation_and_the_labels_are_put_together() {
        check(Some("enabled"), Some("ambient"), ("captured", "captured"));
        check(Some("pending"), Some("ambient"), ("captured", "pending"));
        check(None, Some("ambient"), ("captured", "failed"));
        check(Some("enabled"), None, ("left-alone", "releasing"));
        check(None, None, ("left-alone", "left-alone"));
    }
}

//! AuthorizationPolicy and PeerAuthentication.

use super::SECURITY_GROUP;
use kube::Resource;
use kube::core::{NamespaceResourceScope, ObjectMeta};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Who may, or may not, reach the selected workloads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorizationPolicy {
    /// Name, namespace, labels and so on.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted; an absent spec is an empty one, which allows nothing.
    #[serde(default)]
    pub spec: AuthorizationPolicySpec,
    /// What the control planes made of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PolicyStatus>,
}

/// The spec of an [`AuthorizationPolicy`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorizationPolicySpec {
    /// Selected workloads; absent means all of the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<WorkloadSelector>,
    /// One object the policy is attached to, in place of a selector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetReference>,
    /// Objects the policy is attached to, in place of a selector.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub target_refs: Vec<TargetReference>,
    /// Any of them must match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// What happens to a matching connection.
    pub action: PolicyAction,
}

/// What happens to a connection that a policy matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PolicyAction {
    /// Let through; with any such policy, what none of them matches is refused.
    #[default]
    Allow,
    /// Refused.
    Deny,
    /// Marked for auditing.
    Audit,
    /// Handed to an external authorizer.
    Custom,
    /// A value this program does not know.
    #[serde(other)]
    Unknown,
}

/// Selects workloads by their labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSelector {
    /// All of them must be present with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

/// Names an object that a policy is attached to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetReference {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

/// One rule: `from`, `to` and `when` must all match.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Any of these sources; none given means any source.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<RuleFrom>,
    /// Any of these operations; none given means any operation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<RuleTo>,
    /// All of these conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<RuleWhen>,
}

/// One alternative of [`Rule::from`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleFrom {
    /// The source.
    pub source: Source,
}

/// One alternative of [`Rule::to`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleTo {
    /// The operation.
    pub operation: Operation,
}

/// One condition of a rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleWhen {
    /// Attribute, such as `source.ip`.
    pub key: String,
    /// Any of these values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// None of these values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_values: Vec<String>,
}

macro_rules! string_lists {
    ($(#[$doc:meta])* $name:ident { $($field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $(
                #[doc = concat!("The field `", stringify!($field), "` of the API, in camelCase there.")]
                #[serde(skip_serializing_if = "Vec::is_empty")]
                pub $field: Vec<String>,
            )*
        }
    };
}

string_lists! {
    /// A source; all given attributes must hold, each for any of its values.
    Source {
        principals, not_principals, request_principals, not_request_principals, namespaces, not_namespaces,
        service_accounts, not_service_accounts, ip_blocks, not_ip_blocks, remote_ip_blocks, not_remote_ip_blocks,
    }
}

string_lists! {
    /// An operation; all given attributes must hold, each for any of its values.
    Operation { hosts, not_hosts, ports, not_ports, methods, not_methods, paths, not_paths }
}

/// Status of a policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// One per type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// One condition of a [`PolicyStatus`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// What it is about.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, as one word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// When `status` last changed (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
    /// Generation it was computed from; a number or, from older writers, a string.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<serde_json::Value>,
}

/// Whether the selected workloads accept plain text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerAuthentication {
    /// Name, namespace, labels and so on.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: PeerAuthenticationSpec,
}

/// The spec of a [`PeerAuthentication`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerAuthenticationSpec {
    /// Selected workloads; absent means all of the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<WorkloadSelector>,
    /// For all ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtls: Option<MutualTls>,
    /// For single target ports, by decimal number; honoured only with a selector.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub port_level_mtls: BTreeMap<String, MutualTls>,
}

/// Settings for one level of a [`PeerAuthentication`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MutualTls {
    /// The mode.
    pub mode: MutualTlsMode,
}

/// What is accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum MutualTlsMode {
    /// As the next wider level says.
    #[default]
    Unset,
    /// Plain text only; the node proxy takes it as permissive.
    Disable,
    /// Plain text and mutual TLS.
    Permissive,
    /// Mutual TLS only.
    Strict,
    /// A value this program does not know; it is taken as the strictest.
    #[serde(other)]
    Unknown,
}

macro_rules! resource {
    ($type:ty, $kind:literal, $plural:literal) => {
        impl Resource for $type {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind(_: &()) -> Cow<'_, str> {
                $kind.into()
            }
            fn group(_: &()) -> Cow<'_, str> {
                SECURITY_GROUP.into()
            }
            fn version(_: &()) -> Cow<'_, str> {
                "v1".into()
            }
            fn plural(_: &()) -> Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

resource!(AuthorizationPolicy, "AuthorizationPolicy", "authorizationpolicies");
resource!(PeerAuthentication, "PeerAuthentication", "peerauthentications");

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_policy_reads_what_the_api_holds() {
        let policy: AuthorizationPolicy = serde_json::from_value(json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": {"name": "p", "namespace": "n"},
            "spec": {"action": "DENY", "selector": {"matchLabels": {"app": "x"}}, "somethingNew": 1,
                     "rules": [{"from": [{"source": {"notPrincipals": ["*"]}}],
                                "to": [{"operation": {"ports": ["80"]}}],
                                "when": [{"key": "source.ip", "notValues": ["1.2.3.4"]}]}]}
        }))
        .unwrap();
        assert_eq!(policy.spec.action, PolicyAction::Deny);
        assert_eq!(policy.spec.rules[0].from[0].source.not_principals, ["*"]);
        assert_eq!(policy.spec.rules[0].to[0].operation.ports, ["80"]);
        assert_eq!(policy.spec.rules[0].when[0].not_values, ["1.2.3.4"]);
    }

    #[test]
    fn odd_objects_are_read_too() {
        let bare: AuthorizationPolicy = serde_json::from_value(json!({"metadata": {"name": "p"}})).unwrap();
        assert_eq!(bare.spec, AuthorizationPolicySpec::default());
        let new: AuthorizationPolicySpec = serde_json::from_value(json!({"action": "QUARANTINE"})).unwrap();
        assert_eq!(new.action, PolicyAction::Unknown);
        let mode: PeerAuthenticationSpec =
            serde_json::from_value(json!({"mtls": {"mode": "WHATEVER"}, "portLevelMtls": {"x": {}}}))
                .unwrap();
        assert_eq!(mode.mtls, Some(MutualTls { mode: MutualTlsMode::Unknown }));
        assert_eq!(mode.port_level_mtls["x"].mode, MutualTlsMode::Unset);
    }
}

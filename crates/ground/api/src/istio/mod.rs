//! The Istio kinds we honour, as far as the node proxy needs them (`security.istio.io/v1`).
//!
//! Every field has a default: an object that somebody else's CRD let through must not stop an informer.
//! Unknown fields are left alone, so that they survive a patch of the parts that are known here.

mod crd;
mod security;

pub use crd::crds;
pub use security::{
    AuthorizationPolicy, AuthorizationPolicySpec, Condition, MutualTls, MutualTlsMode, Operation,
    PeerAuthentication, PeerAuthenticationSpec, PolicyAction, PolicyStatus, Rule, RuleFrom, RuleTo, RuleWhen,
    Source, TargetReference, WorkloadSelector,
};

/// API group of the security kinds.
pub const SECURITY_GROUP: &str = "security.istio.io";

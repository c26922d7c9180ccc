//! Whether a connection to a workload is permitted.

use crate::policy::{Action, Peer, Policy};
use crate::resource::Workload;
use crate::state::State;
use std::fmt;
use std::sync::Arc;

/// Why a connection is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// A DENY policy matched.
    Explicit {
        /// Its key.
        policy: Arc<str>,
    },
    /// There are ALLOW policies, and none matched.
    NotAllowed,
    /// The workload names a policy that has not arrived: unknown is not allowed. The field's proxy skips such
    /// names, which permits for a moment what the policy refuses.
    PolicyMissing {
        /// The name.
        policy: Arc<str>,
    },
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Explicit { policy } => write!(f, "explicitly denied by {policy}"),
            Self::NotAllowed => write!(f, "allow policies exist, but none allowed"),
            Self::PolicyMissing { policy } => write!(f, "policy {policy} has not arrived yet"),
        }
    }
}

/// The answer, with what dry-run policies would have done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The refusal, if any.
    pub denial: Option<Denial>,
    /// The ALLOW policy that matched, if one was needed.
    pub allowed_by: Option<Arc<str>>,
    /// Dry-run policies that matched.
    pub dry_run: Vec<(Arc<str>, Action)>,
}

impl State {
    /// Decides on one connection to `workload`.
    pub fn authorize(&self, workload: &Workload, peer: &Peer) -> Verdict {
        let selected = workload.policies.iter().filter_map(|key| self.policy(key));
        let mut policies: Vec<&Policy> =
            self.general_policies(&workload.namespace).chain(selected).map(Arc::as_ref).collect();
        policies.sort_by(|a, b| a.key.cmp(&b.key));
        policies.dedup_by(|a, b| a.key == b.key);
        let of = |action: Action| policies.iter().filter(move |policy| policy.action == action);
        let matches = |policy: &&&Policy| policy.matches(peer);
        let enforced = |policy: &&&Policy| !policy.dry_run;

        let dry_run = policies.iter().filter(|policy| policy.dry_run).filter(matches);
        let dry_run = dry_run.map(|policy| (policy.key.clone(), policy.action)).collect();
        let refuse =
            |denial| Verdict { denial: Some(denial), allowed_by: None, dry_run: Vec::clone(&dry_run) };
        if let Some(policy) = of(Action::Deny).filter(enforced).find(matches) {
            return refuse(Denial::Explicit { policy: policy.key.clone() });
        }
        if let Some(missing) = workload.policies.iter().find(|key| self.policy(key).is_none()) {
            return refuse(Denial::PolicyMissing { policy: missing.clone() });
        }
        let mut allows = of(Action::Allow).filter(enforced).peekable();
        if allows.peek().is_none() {
            return Verdict { denial: None, allowed_by: None, dry_run };
        }
        match allows.find(matches) {
            Some(policy) => Verdict { denial: None, allowed_by: Some(policy.key.clone()), dry_run },
            None => refuse(Denial::NotAllowed),
        }
    }
}

#[cfg(test)]
mod tests;

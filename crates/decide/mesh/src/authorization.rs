//! AuthorizationPolicy to what a node proxy enforces.

use crate::labels;
use ambit_api::istio::{AuthorizationPolicy, Operation, PolicyAction, Rule, RuleWhen, Source};
use ambit_proto::security;
use ambit_proto::security::string_match::MatchType;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Annotation that asks for a policy which only reports.
const DRY_RUN: &str = "istio.io/dry-run";

/// What becomes of an AuthorizationPolicy.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversion {
    /// What the node proxies are sent; none when the policy is not for them or cannot be honoured.
    pub policy: Option<security::Authorization>,
    /// The `ZtunnelAccepted` condition; none when the policy is not for node proxies.
    pub condition: Option<PolicyCondition>,
}

/// The `ZtunnelAccepted` condition of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyCondition {
    /// Whether the policy is in force.
    pub accepted: bool,
    /// `Accepted` or `UnsupportedValue`.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// Generation of the policy it was computed from.
    pub generation: Option<i64>,
}

const UNSUPPORTED: &str = "UnsupportedValue";

/// Converts a policy; `root_namespace` is the one whose policies hold for the whole mesh.
pub fn convert_authorization_policy(root_namespace: &str, policy: &AuthorizationPolicy) -> Conversion {
    let spec = &policy.spec;
    if spec.target_ref.is_some() || !spec.target_refs.is_empty() {
        // Such a policy is for the waypoint of its target.
        return Conversion { policy: None, condition: None };
    }
    let generation = policy.metadata.generation;
    let refused = |message: String| Conversion {
        policy: None,
        condition: Some(PolicyCondition { accepted: false, reason: UNSUPPORTED, message, generation }),
    };
    let action = match spec.action {
        PolicyAction::Allow => security::Action::Allow,
        PolicyAction::Deny => security::Action::Deny,
        other => return refused(format!("node proxies do not support the action {}", action_name(other))),
    };
    if let Some(asked) = labels::value(policy.metadata.annotations.as_ref(), DRY_RUN)
        && !matches!(asked, "false" | "False" | "FALSE" | "f" | "F" | "0")
    {
        return refused(format!("node proxies do not support the annotation {DRY_RUN}: {asked:?}"));
    }
    let namespace = policy.metadata.namespace.clone().unwrap_or_default();
    let mut lost = Lost::default();
    let rules: Vec<security::Rule> =
        spec.rules.iter().filter_map(|r| rule(action, r, &namespace, &mut lost)).collect();
    let (reason, message) = verdict(action, &rules, &lost);
    let condition = PolicyCondition { accepted: true, reason, message, generation };
    let converted = security::Authorization {
        name: policy.metadata.name.clone().unwrap_or_default(),
        scope: scope(root_namespace, &namespace, labels::selected(spec.selector.as_ref())).into(),
        namespace,
        action: action.into(),
        rules,
        dry_run: false,
        extensions: Vec::new(),
    };
    Conversion { policy: Some(converted), condition: Some(condition) }
}

fn action_name(action: PolicyAction) -> &'static str {
    match action {
        PolicyAction::Allow => "ALLOW",
        PolicyAction::Deny => "DENY",
        PolicyAction::Audit => "AUDIT",
        PolicyAction::Custom => "CUSTOM",
        PolicyAction::Unknown => "it names",
    }
}

fn scope(root_namespace: &str, namespace: &str, selected: Option<&labels::Map>) -> security::Scope {
    match selected {
        Some(_) => security::Scope::WorkloadSelector,
        None if namespace == root_namespace => security::Scope::Global,
        None => security::Scope::Namespace,
    }
}

/// What was in a policy and cannot be enforced.
#[derive(Default)]
struct Lost {
    /// Names of attributes of HTTP requests.
    http: BTreeSet<String>,
    /// Values that cannot be read, as `attribute: value`.
    invalid: BTreeSet<String>,
}

impl Lost {
    fn len(&self) -> usize {
        self.http.len() + self.invalid.len()
    }

    fn note_http(&mut self, attributes: &[(&str, &[String])]) {
        let given = attributes.iter().filter(|(_, values)| !values.is_empty());
        self.http.extend(given.map(|(name, _)| (*name).to_owned()));
    }

    fn parse<T>(&mut self, name: &str, values: &[String], parse: impl Fn(&str) -> Option<T>) -> Vec<T> {
        let mut parsed = Vec::with_capacity(values.len());
        for value in values {
            match parse(value) {
                Some(value) => parsed.push(value),
                None => drop(self.invalid.insert(format!("{name}: {value:?}"))),
            }
        }
        parsed
    }

    fn ports(&mut self, name: &str, values: &[String]) -> Vec<u32> {
        self.parse(name, values, |v| v.parse::<u16>().ok().map(u32::from))
    }

    fn blocks(&mut self, name: &str, values: &[String]) -> Vec<security::Address> {
        self.parse(name, values, block)
    }
}

/// The rule as a node proxy can enforce it. An ALLOW rule with anything it cannot enforce is left out: it allows
/// less. A DENY rule loses only that part: it denies more, or, when an alternative is left without any attribute,
/// that alternative never matches.
fn rule(action: security::Action, rule: &Rule, namespace: &str, lost: &mut Lost) -> Option<security::Rule> {
    let mut lost_here = Lost::default();
    let mut clauses = Vec::new();
    let mut clause = |matches: Vec<security::Match>| {
        if !matches.is_empty() {
            clauses.push(security::Clause { matches });
        }
    };
    clause(rule.to.iter().map(|to| operation(&to.operation, &mut lost_here)).collect());
    clause(rule.from.iter().map(|from| source(&from.source, namespace, &mut lost_here)).collect());
    for when in &rule.when {
        clause(vec![condition_match(when, &mut lost_here)]);
    }
    let whole = lost_here.len() == 0;
    lost.http.extend(lost_here.http);
    lost.invalid.extend(lost_here.invalid);
    (whole || action == security::Action::Deny).then_some(security::Rule { clauses })
}

fn operation(op: &Operation, lost: &mut Lost) -> security::Match {
    lost.note_http(&[
        ("hosts", &op.hosts),
        ("notHosts", &op.not_hosts),
        ("methods", &op.methods),
        ("notMethods", &op.not_methods),
        ("paths", &op.paths),
        ("notPaths", &op.not_paths),
    ]);
    security::Match {
        destination_ports: lost.ports("ports", &op.ports),
        not_destination_ports: lost.ports("notPorts", &op.not_ports),
        ..Default::default()
    }
}

fn source(source: &Source, namespace: &str, lost: &mut Lost) -> security::Match {
    lost.note_http(&[
        ("remoteIpBlocks", &source.remote_ip_blocks),
        ("notRemoteIpBlocks", &source.not_remote_ip_blocks),
        ("requestPrincipals", &source.request_principals),
        ("notRequestPrincipals", &source.not_request_principals),
    ]);
    security::Match {
        source_ips: lost.blocks("ipBlocks", &source.ip_blocks),
        not_source_ips: lost.blocks("notIpBlocks", &source.not_ip_blocks),
        namespaces: strings(&source.namespaces),
        not_namespaces: strings(&source.not_namespaces),
        service_accounts: accounts(&source.service_accounts, namespace),
        not_service_accounts: accounts(&source.not_service_accounts, namespace),
        principals: strings(&source.principals),
        not_principals: strings(&source.not_principals),
        ..Default::default()
    }
}

fn condition_match(when: &RuleWhen, lost: &mut Lost) -> security::Match {
    let mut result = security::Match::default();
    let (key, values, not_values) = (when.key.as_str(), &when.values, &when.not_values);
    match key {
        "source.ip" => {
            result.source_ips = lost.blocks(key, values);
            result.not_source_ips = lost.blocks(key, not_values);
        }
        "destination.ip" => {
            result.destination_ips = lost.blocks(key, values);
            result.not_destination_ips = lost.blocks(key, not_values);
        }
        "source.namespace" => {
            result.namespaces = strings(values);
            result.not_namespaces = strings(not_values);
        }
        "source.principal" => {
            result.principals = strings(values);
            result.not_principals = strings(not_values);
        }
        "destination.port" => {
            result.destination_ports = lost.ports(key, values);
            result.not_destination_ports = lost.ports(key, not_values);
        }
        other => drop(lost.http.insert(other.to_owned())),
    }
    result
}

fn strings(values: &[String]) -> Vec<security::StringMatch> {
    let one = |value: &String| {
        let match_type = if value == "*" {
            MatchType::Presence(())
        } else if let Some(suffix) = value.strip_prefix('*') {
            MatchType::Suffix(suffix.to_owned())
        } else if let Some(prefix) = value.strip_suffix('*') {
            MatchType::Prefix(prefix.to_owned())
        } else {
            MatchType::Exact(value.clone())
        };
        security::StringMatch { match_type: Some(match_type) }
    };
    values.iter().map(one).collect()
}

fn accounts(values: &[String], namespace: &str) -> Vec<security::ServiceAccountMatch> {
    let one = |value: &String| {
        let (namespace, account) = value.split_once('/').unwrap_or((namespace, value));
        security::ServiceAccountMatch { namespace: namespace.to_owned(), service_account: account.to_owned() }
    };
    values.iter().map(one).collect()
}

/// Reads an address or a CIDR block.
fn block(text: &str) -> Option<security::Address> {
    let (ip, length) = match text.split_once('/') {
        Some((ip, length)) => (ip.parse::<IpAddr>().ok()?, Some(length.parse::<u8>().ok()?)),
        None => (text.parse::<IpAddr>().ok()?, None),
    };
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    let length = length.unwrap_or(bits);
    (length <= bits)
        .then(|| security::Address { address: crate::resource::ip_bytes(ip), length: length.into() })
}

/// Reason and message for a policy that is in force.
fn verdict(action: security::Action, rules: &[security::Rule], lost: &Lost) -> (&'static str, String) {
    if lost.len() == 0 {
        return ("Accepted", "in force at the node proxies".to_owned());
    }
    let join = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(", ");
    let mut found = Vec::new();
    if !lost.http.is_empty() {
        found.push(format!(
            "node proxies do not support attributes of HTTP requests (found: {}), which need a waypoint",
            join(&lost.http)
        ));
    }
    if !lost.invalid.is_empty() {
        found.push(format!("some values cannot be read ({})", join(&lost.invalid)));
    }
    let effect = match action {
        security::Action::Deny if !can_match(rules) => {
            "what is left of this DENY policy matches nothing: it has no effect"
        }
        security::Action::Deny => {
            "the rest of this DENY policy is enforced, which denies more than requested"
        }
        security::Action::Allow => {
            "ALLOW rules with any of it are left out, which allows less than requested"
        }
    };
    (UNSUPPORTED, format!("{}; {effect}", found.join("; ")))
}

/// Whether any rule can match: a match without any attribute never does.
fn can_match(rules: &[security::Rule]) -> bool {
    let empty = security::Match::default();
    rules.iter().any(|rule| rule.clauses.iter().all(|clause| clause.matches.iter().any(|m| *m != empty)))
}

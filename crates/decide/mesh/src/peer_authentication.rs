//! PeerAuthentication to policies that refuse plain text.
//!
//! Plain text is a connection without a principal, so every mode becomes a DENY policy on `not_principals: presence`.
//! Which policies a workload names and what those policies say is decided by the same function, [`effect`], so that
//! no workload can name a policy that is not there.

use crate::labels;
use ambit_api::istio::{MutualTls, MutualTlsMode, PeerAuthentication, PeerAuthenticationSpec};
use ambit_proto::security;
use ambit_proto::security::string_match::MatchType;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Name of the policy, in the root namespace, that refuses all plain text.
const STATIC_STRICT: &str = "istio_converted_static_strict";
/// Prefix of the names of policies made from one object. The `_` keeps them apart from objects' own names.
const CONVERTED: &str = "converted_peer_authentication_";

/// What one mode comes to: node proxies accept mutual TLS always, so the open modes are equal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Unset,
    Open,
    Strict,
}

fn mode(mtls: Option<&MutualTls>) -> Mode {
    match mtls.map(|m| m.mode).unwrap_or_default() {
        MutualTlsMode::Unset => Mode::Unset,
        MutualTlsMode::Disable | MutualTlsMode::Permissive => Mode::Open,
        // A mode that is not known holds as the strictest: unknown is not allowed.
        MutualTlsMode::Strict | MutualTlsMode::Unknown => Mode::Strict,
    }
}

/// What holds for the workloads under one object.
enum Effect {
    /// Plain text is accepted.
    Open,
    /// Plain text is refused on every port.
    Strict,
    /// It depends on the port.
    ByPort(Vec<security::Rule>),
}

/// What holds for the workloads that `spec` selects, where `parent_strict` is what holds without it.
fn effect(spec: &PeerAuthenticationSpec, parent_strict: bool) -> Effect {
    let own = mode(spec.mtls.as_ref());
    let strict = own == Mode::Strict || (own == Mode::Unset && parent_strict);
    let ports = ports(&spec.port_level_mtls);
    let of = |wanted: Mode| -> Vec<u32> {
        ports.iter().filter(|(_, mtls)| mode(Some(mtls)) == wanted).map(|(port, _)| *port).collect()
    };
    if !strict {
        let strict_ports = of(Mode::Strict);
        return match strict_ports.is_empty() {
            true => Effect::Open,
            false => Effect::ByPort(strict_ports.into_iter().map(strict_port).collect()),
        };
    }
    // Source: istiod, which under an inherited STRICT takes only a PERMISSIVE port as a reason for exceptions.
    let opens = |mtls: &MutualTls| match own {
        Mode::Unset => mtls.mode == MutualTlsMode::Permissive,
        _ => mode(Some(mtls)) == Mode::Open,
    };
    if !ports.values().any(opens) {
        return Effect::Strict;
    }
    let mut clauses = vec![clause(no_principal())];
    for port in of(Mode::Open) {
        clauses.push(clause(security::Match { not_destination_ports: vec![port], ..Default::default() }));
    }
    Effect::ByPort(vec![security::Rule { clauses }])
}

/// Ports by number; what is not a port number is none.
fn ports(by_text: &BTreeMap<String, MutualTls>) -> BTreeMap<u32, MutualTls> {
    let read = |text: &String| text.parse::<u16>().ok().filter(|port| *port != 0).map(u32::from);
    by_text.iter().filter_map(|(text, mtls)| Some((read(text)?, *mtls))).collect()
}

fn no_principal() -> security::Match {
    let presence = security::StringMatch { match_type: Some(MatchType::Presence(())) };
    security::Match { not_principals: vec![presence], ..Default::default() }
}

fn clause(only: security::Match) -> security::Clause {
    security::Clause { matches: vec![only] }
}

fn strict_port(port: u32) -> security::Rule {
    let only = security::Match { destination_ports: vec![port], ..no_principal() };
    security::Rule { clauses: vec![clause(only)] }
}

/// The objects that hold for a whole namespace or the whole mesh.
pub(crate) struct Parents<'a> {
    namespace: Option<&'a PeerAuthentication>,
    mesh: Option<&'a PeerAuthentication>,
}

impl<'a> Parents<'a> {
    /// Picks the oldest object without a selector of each level.
    pub(crate) fn pick(
        in_namespace: impl Iterator<Item = &'a PeerAuthentication>,
        in_root: impl Iterator<Item = &'a PeerAuthentication>,
    ) -> Self {
        let unselected = |p: &&PeerAuthentication| labels::selected(p.spec.selector.as_ref()).is_none();
        Self {
            namespace: in_namespace.filter(unselected).min_by(|a, b| age(a, b)),
            mesh: in_root.filter(unselected).min_by(|a, b| age(a, b)),
        }
    }

    fn strict(&self) -> bool {
        let mtls = |of: Option<&PeerAuthentication>| mode(of.and_then(|p| p.spec.mtls.as_ref()));
        match mtls(self.namespace) {
            Mode::Unset => mtls(self.mesh) == Mode::Strict,
            own => own == Mode::Strict,
        }
    }
}

/// Oldest first; names break ties, so that the answer does not depend on the order of arrival.
fn age(a: &PeerAuthentication, b: &PeerAuthentication) -> Ordering {
    let time = |p: &PeerAuthentication| p.metadata.creation_timestamp.as_ref().map(|t| t.0);
    time(a).cmp(&time(b)).then_with(|| a.metadata.name.cmp(&b.metadata.name))
}

/// Resource names of the policies that a workload must name, sorted.
pub(crate) fn attached<'a>(
    root_namespace: &str,
    parents: &Parents<'_>,
    selecting: impl Iterator<Item = &'a PeerAuthentication>,
) -> Vec<String> {
    let own = selecting.min_by(|a, b| age(a, b));
    let strict = |is: bool| is.then(|| format!("{root_namespace}/{STATIC_STRICT}"));
    let key = match own {
        None => strict(parents.strict()),
        Some(own) => match effect(&own.spec, parents.strict()) {
            Effect::Open => None,
            Effect::Strict => strict(true),
            Effect::ByPort(_) => Some(converted_key(own)),
        },
    };
    key.into_iter().collect()
}

fn converted_key(object: &PeerAuthentication) -> String {
    let meta = &object.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{CONVERTED}{}", meta.name.as_deref().unwrap_or_default())
}

/// The policy that refuses all plain text, with its resource name. It is there as soon as there is any object.
pub(crate) fn static_strict(root_namespace: &str) -> (String, security::Authorization) {
    let rules = vec![security::Rule { clauses: vec![clause(no_principal())] }];
    let key = format!("{root_namespace}/{STATIC_STRICT}");
    (key, deny(STATIC_STRICT.to_owned(), root_namespace.to_owned(), rules))
}

/// The policy for the ports of one object, with its resource name; none when it makes no exceptions.
pub(crate) fn converted(
    root_namespace: &str,
    object: &PeerAuthentication,
    parents: &Parents<'_>,
) -> Option<(String, security::Authorization)> {
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    labels::selected(object.spec.selector.as_ref())?;
    if namespace == root_namespace {
        return None;
    }
    let Effect::ByPort(rules) = effect(&object.spec, parents.strict()) else { return None };
    let name = format!("{CONVERTED}{}", object.metadata.name.as_deref().unwrap_or_default());
    Some((converted_key(object), deny(name, namespace, rules)))
}

fn deny(name: String, namespace: String, rules: Vec<security::Rule>) -> security::Authorization {
    security::Authorization {
        name,
        namespace,
        scope: security::Scope::WorkloadSelector.into(),
        action: security::Action::Deny.into(),
        rules,
        dry_run: false,
        extensions: Vec::new(),
    }
}

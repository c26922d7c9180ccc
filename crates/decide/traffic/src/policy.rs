//! Authorization policies: reading them and matching one connection against them.

use crate::resource::{ResourceError, parse_address};
use ambit_names::mesh::SPIFFE_SCHEME;
use ambit_names::spiffe::Identity;
use ambit_proto::security as wire;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// What a policy is about: one connection, as the destination sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Address the connection comes from.
    pub source: IpAddr,
    /// Proven identity of the source; none in plain text.
    pub identity: Option<Identity>,
    /// Destination address and (translated) port.
    pub destination: SocketAddr,
}

/// Which workloads a policy holds for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyScope {
    /// All.
    Global,
    /// Those of its namespace.
    Namespace,
    /// Those that name it.
    Workload,
}

/// What a match of a policy means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Permits.
    Allow,
    /// Refuses.
    Deny,
}

/// One policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Its resource name, `namespace/name`.
    pub key: Arc<str>,
    /// Namespace it holds for, when of that scope.
    pub namespace: Arc<str>,
    /// Where it holds.
    pub scope: PolicyScope,
    /// What a match means.
    pub action: Action,
    /// Matches are reported, not enforced.
    pub dry_run: bool,
    rules: Vec<Rule>,
}

type Rule = Vec<Clause>;
type Clause = Vec<Match>;

/// All conditions hold; each pair is (any of these, none of these).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Match {
    namespaces: Lists<Text>,
    principals: Lists<Text>,
    service_accounts: Lists<(String, String)>,
    source_ips: Lists<IpNet>,
    destination_ips: Lists<IpNet>,
    destination_ports: Lists<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Lists<T> {
    any_of: Vec<T>,
    none_of: Vec<T>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Text {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Present,
}

impl Policy {
    /// Reads a policy. Unlike the field's proxy, a part that cannot be read refuses the whole policy: leaving a
    /// condition out could widen what an ALLOW permits or narrow what a DENY refuses.
    ///
    /// # Errors
    /// An unknown scope, action or string kind; an address that is none.
    pub fn parse(key: &str, from: &wire::Authorization) -> Result<Self, ResourceError> {
        let scope = match wire::Scope::try_from(from.scope) {
            Ok(wire::Scope::Global) => PolicyScope::Global,
            Ok(wire::Scope::Namespace) => PolicyScope::Namespace,
            Ok(wire::Scope::WorkloadSelector) => PolicyScope::Workload,
            Err(_) => return Err(ResourceError::Value { field: "scope", value: from.scope.into() }),
        };
        let action = match wire::Action::try_from(from.action) {
            Ok(wire::Action::Allow) => Action::Allow,
            Ok(wire::Action::Deny) => Action::Deny,
            Err(_) => return Err(ResourceError::Value { field: "action", value: from.action.into() }),
        };
        let rules = from
            .rules
            .iter()
            .map(|rule| rule.clauses.iter().map(parse_clause).collect::<Result<Rule, _>>())
            .collect::<Result<_, _>>()?;
        let namespace = from.namespace.as_str().into();
        Ok(Self { key: key.into(), namespace, scope, action, dry_run: from.dry_run, rules })
    }

    /// What stands in for a policy that arrived unreadable and of which no earlier version is held: it refuses
    /// everything where the policy would have held, so that nothing is allowed by omission.
    pub(crate) fn refusing(key: &str, scope: PolicyScope) -> Self {
        let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
        Self {
            key: key.into(),
            namespace: namespace.into(),
            scope,
            action: Action::Deny,
            dry_run: false,
            rules: vec![vec![]],
        }
    }

    /// Whether any rule matches; none at all never does.
    pub fn matches(&self, peer: &Peer) -> bool {
        self.rules.iter().any(|rule| {
            rule.iter().all(|clause| clause.is_empty() || clause.iter().any(|one| one.holds(peer)))
        })
    }
}

impl Match {
    /// All given attributes hold; a match without any never does.
    fn holds(&self, peer: &Peer) -> bool {
        let identity = peer.identity.as_ref();
        let namespace = identity.map_or("", Identity::namespace);
        let principal = identity.map(|id| id.to_string().split_off(SPIFFE_SCHEME.len()));
        let verdicts = [
            self.namespaces.holds(|text| text.matches(namespace)),
            self.principals.holds(|text| principal.as_deref().is_some_and(|p| text.matches(p))),
            self.service_accounts.holds(|(namespace, account)| {
                identity.is_some_and(|id| id.namespace() == namespace && id.service_account() == account)
            }),
            self.source_ips.holds(|net| net.contains(&peer.source)),
            self.destination_ips.holds(|net| net.contains(&peer.destination.ip())),
            self.destination_ports.holds(|port| *port == peer.destination.port()),
        ];
        let mut given = verdicts.into_iter().flatten().peekable();
        given.peek().is_some() && given.all(|verdict| verdict)
    }
}

impl<T> Lists<T> {
    /// None when neither list says anything.
    fn holds(&self, matches: impl Fn(&T) -> bool) -> Option<bool> {
        if self.any_of.is_empty() && self.none_of.is_empty() {
            return None;
        }
        let wanted = self.any_of.is_empty() || self.any_of.iter().any(&matches);
        Some(wanted && !self.none_of.iter().any(&matches))
    }
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self { any_of: vec![], none_of: vec![] }
    }
}

impl Text {
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(wanted) => text == wanted,
            Self::Prefix(wanted) => text.starts_with(wanted.as_str()),
            Self::Suffix(wanted) => text.ends_with(wanted.as_str()),
            Self::Present => !text.is_empty(),
        }
    }
}

fn parse_clause(from: &wire::Clause) -> Result<Clause, ResourceError> {
    from.matches.iter().map(parse_match).collect()
}

fn parse_match(from: &wire::Match) -> Result<Match, ResourceError> {
    Ok(Match {
        namespaces: parse_lists(&from.namespaces, &from.not_namespaces, |t| parse_text("namespaces", t))?,
        principals: parse_lists(&from.principals, &from.not_principals, |t| {
            parse_text("principals", t).map(Text::without_scheme)
        })?,
        service_accounts: parse_lists(&from.service_accounts, &from.not_service_accounts, |one| {
            Ok((one.namespace.clone(), one.service_account.clone()))
        })?,
        source_ips: parse_lists(&from.source_ips, &from.not_source_ips, |a| parse_net("source_ips", a))?,
        destination_ips: parse_lists(&from.destination_ips, &from.not_destination_ips, |a| {
            parse_net("destination_ips", a)
        })?,
        destination_ports: parse_lists(&from.destination_ports, &from.not_destination_ports, |port| {
            u16::try_from(*port)
                .map_err(|_| ResourceError::Value { field: "destination_ports", value: (*port).into() })
        })?,
    })
}

fn parse_lists<W, T>(
    any_of: &[W],
    none_of: &[W],
    parse: impl Fn(&W) -> Result<T, ResourceError>,
) -> Result<Lists<T>, ResourceError> {
    let read = |list: &[W]| list.iter().map(&parse).collect::<Result<_, _>>();
    Ok(Lists { any_of: read(any_of)?, none_of: read(none_of)? })
}

fn parse_text(field: &'static str, from: &wire::StringMatch) -> Result<Text, ResourceError> {
    use wire::string_match::MatchType;
    Ok(match from.match_type.as_ref().ok_or(ResourceError::Missing { field })? {
        MatchType::Exact(text) => Text::Exact(text.clone()),
        MatchType::Prefix(text) => Text::Prefix(text.clone()),
        MatchType::Suffix(text) => Text::Suffix(text.clone()),
        MatchType::Presence(()) => Text::Present,
    })
}

impl Text {
    /// Principals are compared without `spiffe://`, whichever way they were written.
    fn without_scheme(self) -> Self {
        let strip = |text: String| text.strip_prefix(SPIFFE_SCHEME).map(str::to_owned).unwrap_or(text);
        match self {
            Self::Exact(text) => Self::Exact(strip(text)),
            Self::Prefix(text) => Self::Prefix(strip(text)),
            other => other,
        }
    }
}

fn parse_net(field: &'static str, from: &wire::Address) -> Result<IpNet, ResourceError> {
    let fault = || ResourceError::Address { field, bytes: from.address.len(), prefix: Some(from.length) };
    // A mapped IPv4 range keeps its IPv6 form here: only its addresses are made canonical.
    let address = match <[u8; 16]>::try_from(from.address.as_ref()) {
        Ok(bytes) => IpAddr::from(bytes),
        Err(_) => parse_address(field, &from.address)?,
    };
    let length = u8::try_from(from.length).map_err(|_| fault())?;
    IpNet::new(address, length).map_err(|_| fault())
}

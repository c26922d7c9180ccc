//! Whether and how a pod is captured, and what of it has to change.

pub mod selector;
pub mod state;

use self::selector::{Selected, Selectors};

use ambit_api::core::v1::{Namespace, Pod};
use ambit_names::{annotation, dataplane_mode, label, redirection};
use ambit_rules::pod::{Capture, Dns, Excluded, Families, Inbound};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

/// What the agent was told about the capture of pods.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Namespace of the mesh's own pods.
    pub system_namespace: String,
    /// Namespaces whose pods are never captured.
    pub excluded_namespaces: BTreeSet<String>,
    /// Which pods are captured, in place of the label `istio.io/dataplane-mode`.
    pub selectors: Option<Selectors>,
    /// Whether DNS is captured where the pod does not say.
    pub dns: Dns,
    /// Address families that are captured.
    pub families: Families,
}

/// Why a pod is captured or not. The text is shown to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The pod's label says so.
    PodLabel,
    /// The namespace's label says so, and the pod's does not object.
    NamespaceLabel,
    /// It uses the node's network.
    HostNetwork,
    /// Its namespace is excluded by the agent's settings.
    ExcludedNamespace,
    /// It has a sidecar.
    Sidecar,
    /// It has ended.
    Ended,
    /// It is the node proxy itself.
    Proxy,
    /// The pod's label forbids it.
    PodLabelNone,
    /// Neither the pod nor its namespace is labelled.
    NotLabelled,
    /// The agent's selectors take it.
    Selected,
    /// None of the agent's selectors takes it.
    NotSelected,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::PodLabel => "the pod is labelled istio.io/dataplane-mode=ambient",
            Reason::NamespaceLabel => "the namespace is labelled istio.io/dataplane-mode=ambient",
            Reason::HostNetwork => "the pod uses the node's network",
            Reason::ExcludedNamespace => "the namespace is excluded by the agent's settings",
            Reason::Sidecar => "the pod has a sidecar",
            Reason::Ended => "the pod has ended",
            Reason::Proxy => "the pod is the node proxy",
            Reason::PodLabelNone => "the pod is labelled istio.io/dataplane-mode=none",
            Reason::NotLabelled => {
                "neither the pod nor its namespace is labelled istio.io/dataplane-mode=ambient"
            }
            Reason::Selected => "the pod and its namespace match the agent's enablement selectors",
            Reason::NotSelected => "the pod and its namespace match none of the agent's enablement selectors",
        })
    }
}

/// Whether a pod is to be captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It is.
    Capture(Reason),
    /// It is not.
    LeaveAlone(Reason),
    /// Its namespace is not known yet: nothing may be decided, neither to capture nor to release.
    Unknown,
}

/// Decides about a pod. `namespace` is the pod's namespace as far as it is known.
pub fn decide(pod: &Pod, namespace: Option<&Namespace>, policy: &Policy) -> Decision {
    if let Some(reason) = never(pod, policy) {
        return Decision::LeaveAlone(reason);
    }
    if let Some(selectors) = &policy.selectors {
        let of_namespace = namespace.map(|namespace| namespace.metadata.labels.as_ref());
        return match selectors.select(pod.metadata.labels.as_ref(), of_namespace) {
            Selected::Yes => Decision::Capture(Reason::Selected),
            Selected::No => Decision::LeaveAlone(Reason::NotSelected),
            Selected::Unknown => Decision::Unknown,
        };
    }
    match mode(pod.metadata.labels.as_ref()) {
        Some(dataplane_mode::NONE) => return Decision::LeaveAlone(Reason::PodLabelNone),
        Some(dataplane_mode::AMBIENT) => return Decision::Capture(Reason::PodLabel),
        _ => {}
    }
    match namespace.map(|namespace| mode(namespace.metadata.labels.as_ref())) {
        None => Decision::Unknown,
        Some(Some(dataplane_mode::AMBIENT)) => Decision::Capture(Reason::NamespaceLabel),
        Some(_) => Decision::LeaveAlone(Reason::NotLabelled),
    }
}

/// Why a pod cannot be captured, whatever the labels say.
fn never(pod: &Pod, policy: &Policy) -> Option<Reason> {
    let spec = pod.spec.as_ref();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let labels = pod.metadata.labels.as_ref();
    if spec.and_then(|spec| spec.host_network) == Some(true) {
        return Some(Reason::HostNetwork);
    }
    if policy.excluded_namespaces.contains(namespace) {
        return Some(Reason::ExcludedNamespace);
    }
    if annotation_of(pod, annotation::SIDECAR_STATUS).is_some() {
        return Some(Reason::Sidecar);
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return Some(Reason::Ended);
    }
    let app = labels.and_then(|labels| labels.get("app")).map(String::as_str);
    (namespace == policy.system_namespace && app == Some("ztunnel")).then_some(Reason::Proxy)
}

fn mode(labels: Option<&BTreeMap<String, String>>) -> Option<&str> {
    labels?.get(label::DATAPLANE_MODE).map(String::as_str)
}

fn annotation_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// What the pod's annotation says about its capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirection {
    /// Nothing.
    None,
    /// Rules in place, proxy not ready for it.
    Pending,
    /// Captured.
    Enabled,
}

/// Reads the pod's capture annotation; values of others count as nothing known.
pub fn redirection(pod: &Pod) -> Redirection {
    match annotation_of(pod, annotation::REDIRECTION) {
        Some(redirection::ENABLED) => Redirection::Enabled,
        Some(redirection::PENDING) => Redirection::Pending,
        _ => Redirection::None,
    }
}

/// Entries of an annotation that excludes something: each makes a rule that every connection is compared with.
const EXCLUDED_MAX: usize = 100;

/// How to capture a pod, from the agent's settings and the pod's annotations, and which annotations were not understood.
pub fn capture_of(pod: &Pod, policy: &Policy) -> (Capture, Vec<String>) {
    let mut faults = Vec::new();
    let mut flag = |name: &str| {
        let text = annotation_of(pod, name)?;
        let value = parse_bool(text);
        if value.is_none() {
            faults.push(format!("annotation {name} is {text:?}: use \"true\" or \"false\""));
        }
        value
    };
    let inbound = match flag(annotation::BYPASS_INBOUND) {
        Some(true) => Inbound::Bypassed,
        _ => Inbound::Captured,
    };
    let dns = match flag(annotation::DNS_CAPTURE) {
        Some(true) => Dns::Captured,
        Some(false) => Dns::Untouched,
        None => policy.dns,
    };
    let interfaces = annotation_of(pod, annotation::REROUTE_INTERFACES).unwrap_or_default();
    let reroute_interfaces =
        interfaces.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let excluded = Excluded {
        inbound_ports: list(pod, annotation::EXCLUDE_INBOUND_PORTS, port_of, &mut faults),
        outbound_ports: list(pod, annotation::EXCLUDE_OUTBOUND_PORTS, port_of, &mut faults),
        outbound_nets: list(pod, annotation::EXCLUDE_OUTBOUND_RANGES, net_of, &mut faults),
    };
    (Capture { inbound, dns, families: policy.families, reroute_interfaces, excluded }, faults)
}

/// The entries of an annotation, commas between; none of them if one is not understood or they are too many, since what
/// is not excluded is captured.
fn list<T>(
    pod: &Pod,
    name: &str,
    read: fn(&str) -> Result<T, &'static str>,
    faults: &mut Vec<String>,
) -> Vec<T> {
    let entries = annotation_of(pod, name).unwrap_or_default().split(',').map(str::trim);
    let entries: Vec<&str> = entries.filter(|entry| !entry.is_empty()).collect();
    if entries.len() > EXCLUDED_MAX {
        faults.push(format!(
            "annotation {name} has {} entries: at most {EXCLUDED_MAX} are taken",
            entries.len()
        ));
        return Vec::new();
    }
    let read = entries.into_iter().map(|entry| read(entry).map_err(|wanted| (entry, wanted)));
    read.collect::<Result<_, _>>().unwrap_or_else(|(entry, wanted)| {
        faults.push(format!("annotation {name} has {entry:?}: use {wanted}"));
        Vec::new()
    })
}

fn port_of(text: &str) -> Result<u16, &'static str> {
    text.parse().ok().filter(|port| *port != 0).ok_or("ports from 1 to 65535, with commas between")
}

fn net_of(text: &str) -> Result<IpNet, &'static str> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(address).ok_or("networks such as 192.0.2.0/24, with commas between")
}

/// Texts of truth values that Go's `strconv.ParseBool` takes, as the field's agent does.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The UID under which the node's runtime knows a pod, in its calls of plugins and the names of its control groups. The
/// API server gives the mirror of a static pod another one.
pub fn runtime_uid(pod: &Pod) -> &str {
    let of_static = annotation_of(pod, annotation::MIRROR).and(annotation_of(pod, annotation::CONFIG_HASH));
    of_static.or(pod.metadata.uid.as_deref()).unwrap_or_default()
}

/// The pod's addresses, IPv4 in IPv6 form turned into IPv4; unreadable ones are left out.
pub fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else { return Vec::new() };
    let listed = status.pod_ips.iter().flatten().map(|entry| entry.ip.as_str());
    let mut found: Vec<IpAddr> = listed
        .chain(status.pod_ip.as_deref())
        .filter_map(|text| text.parse::<IpAddr>().ok())
        .map(|address| address.to_canonical())
        .collect();
    let mut seen = BTreeSet::new();
    found.retain(|address| seen.insert(*address));
    found
}

/// What the agent knows of a pod that it has enrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known<'a> {
    /// Its addresses that the node's probes may reach.
    pub addresses: &'a [IpAddr],
    /// Whether a proxy has taken it over.
    pub handed_over: bool,
}

/// What has to be done about a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// Put rules in place, hand over, annotate: each if missing.
    Enroll,
    /// Remove rules, take back from the proxy, remove the annotation.
    Release(Reason),
}

/// Compares what should be with what is, for a pod that exists.
///
/// A pod without addresses is let be: it is enrolled by the plugin when its network is made, or once it has some.
pub fn plan(pod: &Pod, decision: Decision, known: Option<Known<'_>>) -> Step {
    let annotated = redirection(pod);
    let addresses = addresses(pod);
    match decision {
        Decision::Unknown => Step::Rest,
        Decision::LeaveAlone(reason) if known.is_some() || annotated != Redirection::None => {
            Step::Release(reason)
        }
        Decision::LeaveAlone(_) => Step::Rest,
        Decision::Capture(_) if addresses.is_empty() => Step::Rest,
        Decision::Capture(_) => match known {
            Some(known)
                if known.handed_over
                    && annotated == Redirection::Enabled
                    && addresses.iter().all(|address| known.addresses.contains(address)) =>
            {
                Step::Rest
            }
            _ => Step::Enroll,
        },
    }
}

#[cfg(test)]
mod tests;

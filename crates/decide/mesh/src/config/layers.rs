//! Layers checked documents, and reads from the result what the product honours.

use crate::config::check::{Checked, Entry, Item, Origin, check_mesh, join};
use crate::config::document::{Fault, Place};
use serde_json::Value;
use std::collections::BTreeMap;

/// Name of the source of what nobody has set.
pub const DEFAULTS_SOURCE: &str = "defaults";

/// The field's defaults that matter to somebody. Source: the control plane of the field, mesh defaults.
const DEFAULTS: &str = "\
trustDomain: cluster.local
rootNamespace: istio-system
enableAutoMtls: true
outboundTrafficPolicy: {mode: ALLOW_ANY}
inboundTrafficPolicy: {mode: PASSTHROUGH}
ingressControllerMode: STRICT
ingressClass: istio
ingressService: istio-ingressgateway
proxyListenPort: 15001
proxyInboundListenPort: 15006
connectTimeout: 10s
dnsRefreshRate: 60s
protocolDetectionTimeout: 0s
accessLogFile: ''
accessLogEncoding: TEXT
enablePrometheusMerge: true
enableTracing: true
defaultServiceExportTo: ['*']
defaultVirtualServiceExportTo: ['*']
defaultDestinationRuleExportTo: ['*']
extensionProviders:
- {name: prometheus, prometheus: {}}
- {name: stackdriver, stackdriver: {}}
- {name: envoy, envoyFileAccessLog: {path: /dev/stdout}}
defaultConfig:
  discoveryAddress: istiod.istio-system.svc:15012
  drainDuration: 45s
  terminationDrainDuration: 5s
  proxyAdminPort: 15000
  statusPort: 15020
  statNameLength: 189
";

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// It is used.
    Used,
    /// It is kept and has no effect.
    NotUsedHere,
}

impl Scope {
    /// What becomes of a field of the mesh configuration.
    pub fn of(field: &str) -> Self {
        match field {
            "trustDomain" | "rootNamespace" | "discoverySelectors" => Self::Used,
            _ => Self::NotUsedHere,
        }
    }
}

/// The mesh configuration in force.
#[derive(Debug, Clone, PartialEq)]
pub struct MeshConfig {
    /// All fields, with their origin.
    pub fields: BTreeMap<String, Entry>,
    /// `trustDomain`.
    pub trust_domain: String,
    /// `rootNamespace`.
    pub root_namespace: String,
    discovery: Vec<Selector>,
}

/// A label selector without faults.
#[derive(Debug, Clone, PartialEq, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Selector {
    match_labels: BTreeMap<String, String>,
    match_expressions: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Default, serde::Deserialize)]
#[serde(default)]
struct Requirement {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl Selector {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let met = |requirement: &Requirement| {
            let value = labels.get(&requirement.key);
            let listed = value.is_some_and(|value| requirement.values.contains(value));
            match requirement.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                // A configuration with another one has a fault and is not in force.
                _ => false,
            }
        };
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(met)
    }
}

/// Layers documents without faults over the defaults; later ones win.
///
/// Scalars, messages and most lists are replaced. `defaultConfig` and `defaultProviders` are merged by field, in the
/// former `proxyMetadata` by key and `proxyHeaders` by field; `extensionProviders` by name; `trustDomainAliases` become
/// one sorted list.
pub fn layer<'a>(documents: impl IntoIterator<Item = &'a Checked>) -> MeshConfig {
    let mut fields = check_mesh(DEFAULTS_SOURCE, DEFAULTS.as_bytes()).fields;
    for document in documents {
        for (name, entry) in &document.fields {
            match fields.get_mut(name) {
                Some(under) => put(name, under, entry),
                None => drop(fields.insert(name.clone(), first(name, entry))),
            }
        }
    }
    let text = |name: &str| match fields.get(name).map(|entry| &entry.item) {
        Some(Item::Scalar(Value::String(text))) => text.clone(),
        _ => String::new(),
    };
    let selectors = fields.get("discoverySelectors").map(|entry| entry.item.to_json());
    // The fields have been checked: what they hold has the selectors' shape.
    let discovery = selectors.and_then(|list| serde_json::from_value(list).ok()).unwrap_or_default();
    MeshConfig { trust_domain: text("trustDomain"), root_namespace: text("rootNamespace"), discovery, fields }
}

/// A field that no source below has set.
fn first(name: &str, entry: &Entry) -> Entry {
    match (name, &entry.item) {
        ("trustDomainAliases", Item::List(items)) => {
            let mut union = Vec::new();
            sorted_union(&mut union, items);
            Entry { item: Item::List(union), origin: entry.origin.clone() }
        }
        _ => entry.clone(),
    }
}

fn put(path: &str, under: &mut Entry, over: &Entry) {
    match (path, &mut under.item, &over.item) {
        ("extensionProviders", Item::List(under), Item::List(over)) => by_name(under, over),
        ("trustDomainAliases", Item::List(under), Item::List(over)) => sorted_union(under, over),
        (
            "defaultConfig"
            | "defaultProviders"
            | "defaultConfig.proxyMetadata"
            | "defaultConfig.proxyHeaders",
            Item::Map(fields),
            Item::Map(over),
        ) => {
            for (name, entry) in over {
                match fields.get_mut(name) {
                    Some(under) => put(&join(path, name), under, entry),
                    None => drop(fields.insert(name.clone(), entry.clone())),
                }
            }
        }
        _ => *under = over.clone(),
    }
}

fn by_name(under: &mut Vec<Entry>, over: &[Entry]) {
    for entry in over {
        let name = name_of(entry);
        match under.iter_mut().find(|known| name_of(known) == name) {
            Some(known) => *known = entry.clone(),
            None => under.push(entry.clone()),
        }
    }
}

fn name_of(entry: &Entry) -> Option<&str> {
    let Item::Map(fields) = &entry.item else { return None };
    match &fields.get("name")?.item {
        Item::Scalar(Value::String(name)) => Some(name),
        _ => None,
    }
}

fn sorted_union(under: &mut Vec<Entry>, over: &[Entry]) {
    for entry in over {
        if !under.iter().any(|known| known.item == entry.item) {
            under.push(entry.clone());
        }
    }
    under.sort_by_key(|entry| entry.item.to_json().as_str().map(str::to_owned));
}

impl MeshConfig {
    /// Whether the mesh sees a namespace with these labels: one of `discoverySelectors` takes it, or there are none.
    pub fn sees(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        let none = BTreeMap::new();
        let labels = labels.unwrap_or(&none);
        self.discovery.is_empty() || self.discovery.iter().any(|selector| selector.matches(labels))
    }

    /// As one JSON document.
    pub fn to_json(&self) -> Value {
        self.fields.iter().map(|(name, entry)| (name.clone(), entry.item.to_json())).collect()
    }

    /// Every value that has no parts, by its path, with its origin.
    pub fn origins(&self) -> Vec<(String, &Entry)> {
        let mut all = Vec::new();
        self.fields.iter().for_each(|(name, entry)| leaves(name, entry, &mut all));
        all
    }
}

fn leaves<'a>(path: &str, entry: &'a Entry, all: &mut Vec<(String, &'a Entry)>) {
    match &entry.item {
        Item::Map(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(name, entry)| leaves(&join(path, name), entry, all));
        }
        Item::List(items) if !items.is_empty() => {
            for (at, entry) in items.iter().enumerate() {
                leaves(&format!("{path}[{at}]"), entry, all);
            }
        }
        _ => all.push((path.to_owned(), entry)),
    }
}

/// What the types do not say: names that are names, ports that are ports.
pub(crate) fn check_meaning(checked: &mut Checked) {
    let mut faults = Vec::new();
    for (name, entry) in &checked.fields {
        let value = entry.item.to_json();
        let wrong = match (name.as_str(), &value) {
            ("trustDomain", Value::String(text)) if !is_trust_domain(text) => {
                Some(format!("{text:?} is no trust domain, lower-case letters, digits, - _ . are expected"))
            }
            ("rootNamespace", Value::String(text)) if !is_label(text) => {
                Some(format!("{text:?} is no namespace, lower-case letters, digits and - are expected"))
            }
            ("proxyListenPort" | "proxyInboundListenPort", Value::Number(port))
                if !port.as_i64().is_some_and(|port| (1..=65_535).contains(&port)) =>
            {
                Some(format!("{port} is no port, 1 to 65535 is expected"))
            }
            _ => None,
        };
        faults.extend(wrong.map(|message| Fault::new(entry.origin.place, name, message)));
        faults.append(&mut members(name, entry));
    }
    for fault in &faults {
        checked.fields.remove(fault.path.split(['[', '.']).next().unwrap_or_default());
    }
    checked.faults.append(&mut faults);
    checked.faults.sort_by_key(|fault| fault.place);
    let unused = checked.fields.iter().filter(|(name, _)| Scope::of(name) == Scope::NotUsedHere);
    let notes: Vec<Fault> =
        unused.map(|(name, entry)| Fault::new(entry.origin.place, name, "not used here")).collect();
    checked.notes.extend(notes);
    checked.notes.sort_by_key(|note| note.place);
}

fn members(name: &str, entry: &Entry) -> Vec<Fault> {
    let Item::List(items) = &entry.item else { return Vec::new() };
    let mut faults = Vec::new();
    let mut fault = |at: usize, origin: &Origin, message: String| {
        faults.push(Fault::new(origin.place, &format!("{name}[{at}]"), message));
    };
    for (at, item) in items.iter().enumerate() {
        match name {
            "extensionProviders" => {
                let named = name_of(item).filter(|name| !name.is_empty());
                let first = items[..at].iter().find(|other| named.is_some() && name_of(other) == named);
                match (named, first) {
                    (None, _) => {
                        fault(at, &item.origin, "name is missing, every provider needs one".to_owned())
                    }
                    (Some(name), Some(first)) => {
                        let place = first.origin.place;
                        fault(
                            at,
                            &item.origin,
                            format!("{name:?} is there twice, first at {place}: keep one of them"),
                        );
                    }
                    _ => {}
                }
            }
            "trustDomainAliases" => {
                let text = item.item.to_json();
                let text = text.as_str().unwrap_or_default();
                if !is_trust_domain(text) {
                    fault(at, &item.origin, format!("{text:?} is no trust domain"));
                }
            }
            "discoverySelectors" => {
                for (place, message) in selector_faults(item) {
                    let origin = Origin { place, source: item.origin.source.clone() };
                    fault(at, &origin, message);
                }
            }
            _ => {}
        }
    }
    faults
}

/// Requirements of a label selector that cannot be met or read.
fn selector_faults(selector: &Entry) -> Vec<(Place, String)> {
    let Item::Map(fields) = &selector.item else { return Vec::new() };
    let Some(Item::List(requirements)) = fields.get("matchExpressions").map(|entry| &entry.item) else {
        return Vec::new();
    };
    let wrong = |requirement: &Entry| {
        let value = requirement.item.to_json();
        let has_values = value["values"].as_array().is_some_and(|values| !values.is_empty());
        match (value["operator"].as_str().unwrap_or_default(), has_values) {
            ("In" | "NotIn", true) | ("Exists" | "DoesNotExist", false) => None,
            ("In" | "NotIn", false) => Some("values are missing".to_owned()),
            ("Exists" | "DoesNotExist", true) => Some("no values are expected with this operator".to_owned()),
            (other, _) => {
                Some(format!("{other:?} is no operator, In, NotIn, Exists or DoesNotExist is expected"))
            }
        }
    };
    requirements.iter().filter_map(|r| Some((r.origin.place, wrong(r)?))).collect()
}

/// Source: the SPIFFE ID specification, section 2.1.
fn is_trust_domain(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= 255 && text.bytes().all(allowed)
}

/// Source: RFC 1123, section 2.1, as Kubernetes uses it for namespaces.
fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let ends = |b: Option<u8>| b.is_some_and(|b| b != b'-');
    let bytes = text.as_bytes();
    text.len() <= 63
        && bytes.iter().all(|b| inner(*b))
        && ends(bytes.first().copied())
        && ends(bytes.last().copied())
}

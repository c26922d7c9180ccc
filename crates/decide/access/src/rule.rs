//! Rules of roles: what they allow, and whether some of them allow all that others do.

use serde::{Deserialize, Serialize};

/// Stands for every verb, group, resource or path.
const ALL: &str = "*";

/// What somebody wants to do. Source: the attributes of a SubjectAccessReview.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// `get`, `create`, …; for a path the HTTP method in lower case.
    pub verb: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Plural name of the resource.
    pub resource: String,
    /// Empty for the object itself.
    pub subresource: String,
    /// Empty for the whole cluster.
    pub namespace: String,
    /// Empty for all objects.
    pub name: String,
    /// Set for requests that are not about a resource.
    pub path: String,
}

impl Request {
    /// The resource with its subresource, as rules name it: `pods`, `pods/log`.
    pub fn full_resource(&self) -> String {
        match &*self.subresource {
            "" => self.resource.clone(),
            subresource => format!("{}/{subresource}", self.resource),
        }
    }
}

/// A rule of a role (rbac/v1 `PolicyRule`): every listed verb on every listed resource or path.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// `*`: all.
    #[serde(deserialize_with = "or_null")]
    pub verbs: Vec<String>,
    /// The empty text is the core group; `*`: all.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_null")]
    pub api_groups: Vec<String>,
    /// `pods`, `pods/log`, `*/scale`, `*`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_null")]
    pub resources: Vec<String>,
    /// Empty: objects of any name.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_null")]
    pub resource_names: Vec<String>,
    /// `/healthz`, `/healthz/*`, `*`.
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty", deserialize_with = "or_null")]
    pub non_resource_urls: Vec<String>,
}

/// Clients in Go write empty lists as null.
fn or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Rule {
    /// A rule about resources of one group.
    pub fn of(group: &str, resources: &[&str], verbs: &[&str]) -> Self {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Self {
            verbs: owned(verbs),
            api_groups: vec![group.to_owned()],
            resources: owned(resources),
            ..Self::default()
        }
    }

    /// A rule about paths.
    pub fn of_paths(paths: &[&str], verbs: &[&str]) -> Self {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Self { verbs: owned(verbs), non_resource_urls: owned(paths), ..Self::default() }
    }

    /// The same rule, for objects of these names only.
    #[must_use]
    pub fn named(mut self, names: &[&str]) -> Self {
        self.resource_names = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Whether this rule allows a request. Source: kubernetes pkg/apis/rbac/v1 evaluation_helpers.go.
    pub fn allows(&self, request: &Request) -> bool {
        if !has(&self.verbs, &request.verb) {
            return false;
        }
        if !request.path.is_empty() {
            return self.non_resource_urls.iter().any(|pattern| covers_path(pattern, &request.path));
        }
        has(&self.api_groups, &request.group)
            && self
                .resources
                .iter()
                .any(|pattern| names_resource(pattern, &request.resource, &request.subresource))
            && (self.resource_names.is_empty() || self.resource_names.contains(&request.name))
    }

    /// The rule as rules of one verb on one resource (of one name, if it names any) or path each.
    fn single(&self) -> Vec<Self> {
        let mut singles = Vec::new();
        for verb in &self.verbs {
            let mut single = |group: &[String], resource: &[String], name: &[String], path: &[String]| {
                singles.push(Self {
                    verbs: vec![verb.clone()],
                    api_groups: group.to_vec(),
                    resources: resource.to_vec(),
                    resource_names: name.to_vec(),
                    non_resource_urls: path.to_vec(),
                });
            };
            for group in self.api_groups.chunks(1) {
                for resource in self.resources.chunks(1) {
                    if self.resource_names.is_empty() {
                        single(group, resource, &[], &[]);
                    }
                    self.resource_names.chunks(1).for_each(|name| single(group, resource, name, &[]));
                }
            }
            self.non_resource_urls.chunks(1).for_each(|path| single(&[], &[], &[], path));
        }
        singles
    }

    /// Whether this rule allows all that `single` (a rule of one verb on one thing) does.
    fn covers(&self, single: &Self) -> bool {
        let listed = |own: &[String], theirs: &[String]| theirs.iter().all(|one| has(own, one));
        let resource = |one: &String| {
            let (resource, subresource) = one.split_once('/').unwrap_or((one, ""));
            // `*/scale` covers the scale of every resource, but only `*` covers `*`.
            self.resources.iter().any(|own| own == one || names_resource(own, resource, subresource))
        };
        listed(&self.verbs, &single.verbs)
            && listed(&self.api_groups, &single.api_groups)
            && single.resources.iter().all(resource)
            && (self.resource_names.is_empty()
                || !single.resource_names.is_empty()
                    && single.resource_names.iter().all(|name| self.resource_names.contains(name)))
            && single
                .non_resource_urls
                .iter()
                .all(|path| self.non_resource_urls.iter().any(|own| covers_path(own, path)))
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == ALL || one == wanted)
}

fn names_resource(pattern: &str, resource: &str, subresource: &str) -> bool {
    if pattern == ALL {
        return true;
    }
    match pattern.split_once('/') {
        Some((ALL, of)) => !subresource.is_empty() && of == subresource,
        Some((own, of)) => own == resource && of == subresource,
        None => subresource.is_empty() && pattern == resource,
    }
}

fn covers_path(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => pattern == path,
    }
}

/// What `wanted` allows and `held` does not, as rules of one verb on one thing each.
///
/// Source: kubernetes pkg/registry/rbac/validation/policy_comparator.go.
pub fn uncovered(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let singles = wanted.iter().flat_map(Rule::single);
    singles.filter(|single| !held.iter().any(|rule| rule.covers(single))).collect()
}

#[cfg(test)]
mod tests;

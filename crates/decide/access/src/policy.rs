//! All roles and bindings of a cluster, arranged by who they speak of.

use crate::rule::{Request, Rule};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

/// The kinds of objects a policy is made of (group `rbac.authorization.k8s.io`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Rules for use anywhere.
    ClusterRole,
    /// Rules for use in one namespace.
    Role,
    /// Who has a cluster role everywhere.
    ClusterRoleBinding,
    /// Who has a role in one namespace.
    RoleBinding,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::ClusterRole, Self::Role, Self::ClusterRoleBinding, Self::RoleBinding];

    /// The plural of the resource.
    pub fn plural(self) -> &'static str {
        match self {
            Self::ClusterRole => "clusterroles",
            Self::Role => "roles",
            Self::ClusterRoleBinding => "clusterrolebindings",
            Self::RoleBinding => "rolebindings",
        }
    }
}

/// Whom a binding speaks of.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// A user by name; a service account is the user `system:serviceaccount:NAMESPACE:NAME`.
    User(String),
    /// Everybody in a group.
    Group(String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "User {name:?}"),
            Self::Group(name) => write!(f, "Group {name:?}"),
        }
    }
}

/// Who asks, as bindings see it.
#[derive(Debug, Clone, Copy)]
pub struct User<'a> {
    /// The user's name.
    pub name: &'a str,
    /// The groups the user is in.
    pub groups: &'a [String],
}

impl User<'_> {
    fn subjects(&self) -> impl Iterator<Item = Subject> {
        let groups = self.groups.iter().map(|group| Subject::Group(group.clone()));
        std::iter::once(Subject::User(self.name.to_owned())).chain(groups)
    }
}

/// Why a request is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Empty for a ClusterRoleBinding.
    pub namespace: String,
    /// Name of the binding.
    pub binding: String,
    /// The role it gives.
    pub role: String,
    /// Whom it gives it to.
    pub subject: Subject,
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => write!(f, "RBAC: allowed by ClusterRoleBinding {:?}", self.binding)?,
            namespace => write!(f, "RBAC: allowed by RoleBinding \"{}/{namespace}\"", self.binding)?,
        }
        write!(f, " of {} to {}", self.role, self.subject)
    }
}

/// The rules that somebody has somewhere, and the roles that bindings name in vain.
#[derive(Debug, Default)]
pub struct Found<'a> {
    /// The rules, in the order of bindings.
    pub rules: Vec<&'a Rule>,
    /// One sentence for each binding whose role is missing.
    pub missing: Vec<String>,
}

impl Found<'_> {
    /// The rules, as owned values.
    pub fn cloned(&self) -> Vec<Rule> {
        self.rules.iter().map(|rule| (*rule).clone()).collect()
    }
}

/// Namespace (empty for the cluster) and name.
type Place = (String, String);

#[derive(Debug)]
struct Binding {
    role: Reference,
    subjects: Vec<Subject>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Reference {
    kind: Kind,
    name: String,
}

/// All roles and bindings. Objects that cannot be read count as absent: nothing is allowed by mistake.
#[derive(Debug, Default)]
pub struct Policy {
    roles: HashMap<Place, Vec<Rule>>,
    bindings: HashMap<Place, Binding>,
    /// The bindings of a subject, by namespace.
    by_subject: HashMap<Subject, BTreeSet<Place>>,
}

/// A role as it is stored.
#[derive(Deserialize)]
struct RoleForm {
    rules: Option<Vec<Rule>>,
}

/// A binding as it is stored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BindingForm {
    role_ref: NamedForm,
    subjects: Option<Vec<NamedForm>>,
}

#[derive(Deserialize)]
struct NamedForm {
    kind: String,
    name: String,
    namespace: Option<String>,
}

impl NamedForm {
    fn subject(self, own_namespace: &str) -> Option<Subject> {
        match &*self.kind {
            "User" => Some(Subject::User(self.name)),
            "Group" => Some(Subject::Group(self.name)),
            "ServiceAccount" => {
                let namespace = self.namespace.filter(|n| !n.is_empty());
                let namespace = namespace.unwrap_or_else(|| own_namespace.to_owned());
                // In a ClusterRoleBinding there is no namespace to fall back on.
                (!namespace.is_empty())
                    .then(|| Subject::User(format!("system:serviceaccount:{namespace}:{}", self.name)))
            }
            _ => None,
        }
    }
}

impl Policy {
    /// Takes up the state of an object; `None`: it is gone.
    pub fn set(&mut self, kind: Kind, (namespace, name): (&str, &str), object: Option<&Value>) {
        let place = (namespace.to_owned(), name.to_owned());
        match kind {
            Kind::ClusterRole | Kind::Role => {
                match object.and_then(|object| RoleForm::deserialize(object).ok()) {
                    Some(role) => self.roles.insert(place, role.rules.unwrap_or_default()),
                    None => self.roles.remove(&place),
                };
            }
            Kind::ClusterRoleBinding | Kind::RoleBinding => {
                self.unbind(&place);
                if let Some(binding) = object.and_then(|object| read_binding(object, namespace)) {
                    for subject in &binding.subjects {
                        self.by_subject.entry(subject.clone()).or_default().insert(place.clone());
                    }
                    self.bindings.insert(place, binding);
                }
            }
        }
    }

    fn unbind(&mut self, place: &Place) {
        for subject in self.bindings.remove(place).into_iter().flat_map(|binding| binding.subjects) {
            if let Some(places) = self.by_subject.get_mut(&subject) {
                places.remove(place);
                if places.is_empty() {
                    self.by_subject.remove(&subject);
                }
            }
        }
    }

    /// Whether and why `user` may do this. What no binding allows is not allowed.
    pub fn allows(&self, user: User<'_>, request: &Request) -> Option<Grant> {
        // Paths belong to no namespace.
        let namespace = if request.path.is_empty() { &*request.namespace } else { "" };
        self.bound(user, namespace).find_map(|(subject, place, binding)| {
            let rules = self.rules(place, &binding.role)?;
            rules.iter().any(|rule| rule.allows(request)).then(|| Grant {
                namespace: place.0.clone(),
                binding: place.1.clone(),
                role: binding.role.to_string(),
                subject,
            })
        })
    }

    /// The rules that `user` has in a namespace, or, if it is empty, everywhere.
    pub fn rules_of(&self, user: User<'_>, namespace: &str) -> Found<'_> {
        let mut found = Found::default();
        let mut seen = BTreeSet::new();
        for (_, place, binding) in self.bound(user, namespace).filter(|(_, place, _)| seen.insert(*place)) {
            match self.rules(place, &binding.role) {
                Some(rules) => found.rules.extend(rules),
                None => found.missing.push(format!("{} of binding {:?} is missing", binding.role, place.1)),
            }
        }
        found
    }

    /// The rules of a role; `None` when it does not exist.
    pub fn role(&self, kind: Kind, namespace: &str, name: &str) -> Option<&[Rule]> {
        let namespace = if kind == Kind::Role { namespace } else { "" };
        self.roles.get(&(namespace.to_owned(), name.to_owned())).map(Vec::as_slice)
    }

    fn rules(&self, place: &Place, role: &Reference) -> Option<&[Rule]> {
        self.role(role.kind, &place.0, &role.name)
    }

    /// The bindings that speak of `user`: those of the cluster, then those of the namespace.
    fn bound<'a>(
        &'a self,
        user: User<'_>,
        namespace: &'a str,
    ) -> impl Iterator<Item = (Subject, &'a Place, &'a Binding)> {
        let namespaces = std::iter::once("").chain((!namespace.is_empty()).then_some(namespace));
        let subjects: Vec<Subject> = user.subjects().filter(|s| self.by_subject.contains_key(s)).collect();
        namespaces.flat_map(move |namespace| {
            let subjects = subjects.clone();
            subjects.into_iter().flat_map(move |subject| {
                let first = (namespace.to_owned(), String::new());
                let places = self.by_subject.get(&subject).into_iter().flat_map(move |places| {
                    places.range(first.clone()..).take_while(move |(of, _)| of == namespace)
                });
                places.filter_map(move |place| Some((subject.clone(), place, self.bindings.get(place)?)))
            })
        })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind == Kind::Role { "Role" } else { "ClusterRole" };
        write!(f, "{kind} {:?}", self.name)
    }
}

fn read_binding(object: &Value, namespace: &str) -> Option<Binding> {
    let BindingForm { role_ref, subjects } = BindingForm::deserialize(object).ok()?;
    let kind = match &*role_ref.kind {
        "ClusterRole" => Kind::ClusterRole,
        // A cluster-wide binding cannot give a role of a namespace.
        "Role" if !namespace.is_empty() => Kind::Role,
        _ => return None,
    };
    let subjects = subjects.unwrap_or_default().into_iter().filter_map(|s| s.subject(namespace)).collect();
    Some(Binding { role: Reference { kind, name: role_ref.name }, subjects })
}

#[cfg(test)]
mod tests;

//! The catalog of everything that is served: built-in resources and custom ones, found by resource or by kind.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use serde_json::Value;

use crate::cells::Column;
use crate::crd::{self, CrdProblem};
use crate::schema::{Schema, Shape};
use crate::served::{self, Served};
use crate::table;

/// A group, a version and a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    /// The API group; empty for the core group.
    pub group: String,
    /// The version in the group.
    pub version: String,
    /// The kind, as in `Pod`.
    pub kind: String,
}

impl GroupVersionKind {
    /// The three parts together.
    #[must_use]
    pub fn new(group: &str, version: &str, kind: &str) -> GroupVersionKind {
        GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }

    /// The `apiVersion` of such an object: `v1`, `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Kind={}", self.api_version(), self.kind)
    }
}

pub(crate) fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// Whether objects of a resource live in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One set of names for the whole cluster.
    Cluster,
    /// A set of names per namespace.
    Namespaced,
}

/// A part of an object with an address of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Subresource {
    /// The last segment of its address, as in `status`.
    pub name: String,
    /// The kind it reads and writes; that of the object itself for `status`.
    pub group_version_kind: GroupVersionKind,
    /// What can be done with it.
    pub verbs: Vec<String>,
}

/// Where `scale` of a custom resource finds its parts, as dotted JSON paths.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalePaths {
    /// Wanted replicas, under `.spec`.
    pub spec_replicas: String,
    /// Observed replicas, under `.status`.
    pub status_replicas: String,
    /// The serialised label selector, under `.spec` or `.status`.
    pub label_selector: Option<String>,
}

/// One served resource in one version, and what is known of its objects.
#[derive(Debug)]
pub struct ResourceType {
    /// The API group; empty for the core group.
    pub group: String,
    /// The version in the group.
    pub version: String,
    /// The kind of the objects.
    pub kind: String,
    /// The kind of their lists.
    pub list_kind: String,
    /// The name in addresses.
    pub plural: String,
    /// The name clients print for one object.
    pub singular: String,
    /// Abbreviations clients may use.
    pub short_names: Vec<String>,
    /// Groups of resources clients may ask for, as in `all`.
    pub categories: Vec<String>,
    /// Whether objects live in namespaces.
    pub scope: Scope,
    /// What can be done with the resource.
    pub verbs: Vec<String>,
    /// Parts with an address of their own.
    pub subresources: Vec<Subresource>,
    /// The group and kind that objects are stored as. Resources that share it share their objects.
    pub stored_as: GroupVersionKind,
    /// The plural name of the stored resource: part of the key in the store.
    pub stored_plural: String,
    /// The version objects are stored in; the same as `stored_as.version`.
    pub storage_version: String,
    /// Whether no part of this product acts on such objects: they are kept for others.
    pub is_unattended: bool,
    /// Set on custom resources.
    pub custom: Option<CustomType>,
    pub(crate) schema: Schema,
    pub(crate) columns: Vec<Column>,
}

/// What only custom resources have.
#[derive(Debug)]
pub struct CustomType {
    /// The name of the definition: `<plural>.<group>`.
    pub definition_name: String,
    /// The warning clients get who use this version, when it is deprecated.
    pub deprecation_warning: Option<String>,
    /// Where `scale` finds its parts.
    pub scale: Option<ScalePaths>,
    /// Fields usable in field selectors, as dotted paths.
    pub selectable_fields: Vec<String>,
    /// Paths to values of the additional printer columns.
    pub(crate) column_paths: Vec<crate::jsonpath::JsonPath>,
    /// Its rules in CEL.
    pub(crate) rules: crate::rules::RuleSet,
    /// The `spec` of the definition, and which of its versions this is.
    pub(crate) spec: Arc<Value>,
    pub(crate) version_index: usize,
}

impl CustomType {
    /// The schema as the definition has it.
    pub(crate) fn published(&self) -> &Value {
        &self.spec["versions"][self.version_index]["schema"]["openAPIV3Schema"]
    }
}

impl ResourceType {
    /// The kind with its group and version.
    #[must_use]
    pub fn group_version_kind(&self) -> GroupVersionKind {
        GroupVersionKind::new(&self.group, &self.version, &self.kind)
    }

    /// The `apiVersion` of the objects.
    #[must_use]
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// The resource as errors name it: `pods`, `deployments.apps`.
    #[must_use]
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Whether the objects live in namespaces.
    #[must_use]
    pub fn is_namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    /// Whether this is a custom resource.
    #[must_use]
    pub fn is_custom(&self) -> bool {
        self.custom.is_some()
    }

    /// The subresource of that name.
    #[must_use]
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }

    /// Whether the resource knows the verb.
    #[must_use]
    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }

    /// The type of the objects.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// A type of objects that have no address of their own.
    pub(crate) fn of_kind(group: &str, version: &str, kind: &str, schema: Schema) -> ResourceType {
        ResourceType {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            list_kind: format!("{kind}List"),
            plural: String::new(),
            singular: String::new(),
            short_names: Vec::new(),
            categories: Vec::new(),
            scope: Scope::Cluster,
            verbs: Vec::new(),
            subresources: Vec::new(),
            stored_as: GroupVersionKind::new(group, version, kind),
            stored_plural: String::new(),
            storage_version: version.to_owned(),
            is_unattended: false,
            custom: None,
            schema,
            columns: Vec::new(),
        }
    }

    fn built_in(served: Served) -> ResourceType {
        let GroupVersionKind { group, version, kind } = served.kind.clone();
        let id = table::find_kind(&group, &version, &kind)
            .unwrap_or_else(|| panic!("the type table has no definition of {}", served.kind));
        let stored_as = served.stored_as.unwrap_or(served.kind);
        ResourceType {
            list_kind: format!("{kind}List"),
            columns: crate::cells::built_in_columns(&group, &kind),
            group,
            version,
            kind,
            stored_plural: served.plural.clone(),
            storage_version: stored_as.version.clone(),
            plural: served.plural,
            singular: served.singular,
            short_names: served.short_names,
            categories: served.categories,
            scope: served.scope,
            verbs: served.verbs,
            subresources: served.subresources,
            stored_as,
            is_unattended: served.is_unattended,
            custom: None,
            schema: Schema::of(Shape::Definition(id)),
        }
    }
}

/// All resources that are served. Immutable; cheap to clone.
#[derive(Clone)]
pub struct Catalog(Arc<Inner>);

struct Inner {
    types: Vec<Arc<ResourceType>>,
    by_resource: HashMap<(String, String, String), usize>,
    by_kind: HashMap<GroupVersionKind, usize>,
}

static BUILT_IN: LazyLock<Catalog> = LazyLock::new(|| {
    Catalog::of(served::served().map(|served| Arc::new(ResourceType::built_in(served))).collect())
});

impl Catalog {
    /// The built-in resources. Indexed on the first call; types are parsed when first used.
    #[must_use]
    pub fn builtin() -> Catalog {
        BUILT_IN.clone()
    }

    fn of(types: Vec<Arc<ResourceType>>) -> Catalog {
        let by_resource = types
            .iter()
            .enumerate()
            .map(|(index, of)| ((of.group.clone(), of.version.clone(), of.plural.clone()), index))
            .collect();
        let by_kind = types.iter().enumerate().map(|(index, of)| (of.group_version_kind(), index)).collect();
        Catalog(Arc::new(Inner { types, by_resource, by_kind }))
    }

    /// The built-in resources and those of the given CustomResourceDefinitions, each as stored; custom resources this
    /// catalog has and the list does not have are gone in the new one. What is wrong with a definition is reported
    /// beside it, for its status; what keeps rules of one from being enforced, once.
    #[must_use]
    pub fn with_crds(&self, crds: &[Value]) -> (Catalog, Vec<CrdProblem>) {
        let (custom, mut types): (Vec<_>, Vec<_>) =
            self.0.types.iter().cloned().partition(|of| of.is_custom());
        let mut problems = Vec::new();
        for definition in crd::by_claim(crds) {
            types.extend(crd::resource_types(definition, (&types, &custom), &mut problems));
        }
        (Catalog::of(types), problems)
    }

    /// The resource at `/apis/<group>/<version>/…/<plural>`.
    #[must_use]
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<ResourceType>> {
        let key = (group.to_owned(), version.to_owned(), plural.to_owned());
        self.0.by_resource.get(&key).map(|index| &self.0.types[*index])
    }

    /// The resource whose objects are of that kind.
    #[must_use]
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<ResourceType>> {
        self.0.by_kind.get(&GroupVersionKind::new(group, version, kind)).map(|index| &self.0.types[*index])
    }

    /// All resources, in the order of discovery.
    pub fn resources(&self) -> impl Iterator<Item = &Arc<ResourceType>> {
        self.0.types.iter()
    }
}

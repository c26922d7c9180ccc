//! The hand-written list of resources that are served: `data/served.tbl`.

use crate::catalog::{GroupVersionKind, Scope, Subresource};

static SERVED: &str = include_str!("../data/served.tbl");

/// All verbs of a stored resource, in the order of discovery documents.
pub(crate) const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// One line of the list.
pub(crate) struct Served {
    pub(crate) kind: GroupVersionKind,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) scope: Scope,
    pub(crate) verbs: Vec<String>,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) stored_as: Option<GroupVersionKind>,
    pub(crate) subresources: Vec<Subresource>,
    /// No part of this product acts on such objects.
    pub(crate) is_unattended: bool,
}

/// The list, in its order.
pub(crate) fn served() -> impl Iterator<Item = Served> {
    SERVED.lines().filter(|line| !line.starts_with('#')).map(parse_line)
}

fn parse_line(line: &str) -> Served {
    let mut words = line.split(' ');
    let mut word = || words.next().expect("a served resource has six leading words");
    let (group, version) = word().split_once('/').expect("a served resource begins with group/version");
    let kind = GroupVersionKind::new(group, version, word());
    let plural = word().to_owned();
    let singular = word().to_owned();
    let scope = if word() == "namespaced" { Scope::Namespaced } else { Scope::Cluster };
    let verbs = parse_verbs(word());
    let mut served = Served {
        kind,
        plural,
        singular,
        scope,
        verbs,
        short_names: Vec::new(),
        categories: Vec::new(),
        stored_as: None,
        subresources: Vec::new(),
        is_unattended: false,
    };
    for word in words {
        if word == "unattended" {
            served.is_unattended = true;
            continue;
        }
        let list = |value: &str| value.split(',').map(str::to_owned).collect();
        match word.split_once('=').expect("attributes are key=value") {
            ("short", value) => served.short_names = list(value),
            ("cat", value) => served.categories = list(value),
            ("stored", value) => served.stored_as = Some(parse_kind(value)),
            ("sub", value) => {
                let subresource = parse_subresource(value, &served.kind);
                served.subresources.push(subresource);
            }
            (key, _) => panic!("served.tbl has an unknown attribute {key}"),
        }
    }
    served
}

fn parse_verbs(word: &str) -> Vec<String> {
    match word {
        "all" => VERBS.map(str::to_owned).to_vec(),
        "all-but-deletecollection" => {
            VERBS.iter().filter(|verb| **verb != "deletecollection").map(|verb| (*verb).to_owned()).collect()
        }
        list => list.split(',').map(str::to_owned).collect(),
    }
}

fn parse_kind(word: &str) -> GroupVersionKind {
    let mut parts = word.split('/');
    let mut part = || parts.next().expect("a kind is group/version/Kind");
    let (group, version, kind) = (part(), part(), part());
    GroupVersionKind::new(group, version, kind)
}

fn parse_subresource(word: &str, parent: &GroupVersionKind) -> Subresource {
    let mut parts = word.splitn(3, ':');
    let name = parts.next().unwrap_or_default().to_owned();
    let verbs = parse_verbs(parts.next().expect("a subresource has verbs"));
    let kind = parts.next().map_or_else(|| parent.clone(), parse_kind);
    Subresource { name, group_version_kind: kind, verbs }
}

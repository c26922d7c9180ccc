//! Which fields of its objects an informer keeps: the others are passed over while objects are decoded, and are never
//! built.

mod filter;

pub(crate) use filter::Kept;
use std::collections::BTreeMap;

/// What an informer needs itself to tell objects and their versions apart.
const IDENTITY: [&str; 4] =
    ["metadata.namespace", "metadata.name", "metadata.uid", "metadata.resourceVersion"];

/// Which fields of its objects an informer keeps. By default all but `metadata.managedFields`, which is often half of an
/// object and read by nobody.
///
/// Paths are JSON names with dots between; a name with dots in it stands in brackets. A path leads through lists into each
/// of their items.
///
/// ```text
/// spec.nodeName
/// spec.containers.ports
/// metadata.annotations[example.com/team]
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Keep(Fields);

/// What happens to the fields of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Fields {
    named: BTreeMap<String, Fate>,
    others: Others,
}

/// What happens to one field.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Fate {
    Kept,
    Dropped,
    Partly(Fields),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Others {
    Kept,
    Dropped,
}

impl Keep {
    /// Every field, field ownership included.
    pub fn everything() -> Self {
        Self(Fields::new(Others::Kept))
    }

    /// All but these fields.
    pub fn without(paths: &[&str]) -> Self {
        let mut fields = Fields::new(Others::Kept);
        paths.iter().for_each(|path| fields.set(&names(path), Fate::Dropped));
        Self(fields)
    }

    /// These fields only, and of the metadata what identifies an object and its version: `namespace`, `name`, `uid`,
    /// `resourceVersion`. A type that requires a field which is not kept decodes no object.
    pub fn only(paths: &[&str]) -> Self {
        let mut fields = Fields::new(Others::Dropped);
        IDENTITY.iter().chain(paths).for_each(|path| fields.set(&names(path), Fate::Kept));
        Self(fields)
    }
}

impl Default for Keep {
    fn default() -> Self {
        Self::without(&["metadata.managedFields"])
    }
}

impl Fields {
    fn new(others: Others) -> Self {
        Self { named: BTreeMap::new(), others }
    }

    /// Gives a field its fate; one that is around a field with a fate of its own takes it over.
    fn set(&mut self, names: &[String], fate: Fate) {
        let Some((first, rest)) = names.split_first() else { return };
        if rest.is_empty() {
            self.named.insert(first.clone(), fate);
            return;
        }
        let others = self.others;
        let inner = self.named.entry(first.clone()).or_insert_with(|| Fate::Partly(Self::new(others)));
        if let Fate::Partly(inner) = inner {
            inner.set(rest, fate);
        }
    }

    fn fate(&self, name: &str) -> &Fate {
        match (self.named.get(name), self.others) {
            (Some(fate), _) => fate,
            (None, Others::Kept) => &Fate::Kept,
            (None, Others::Dropped) => &Fate::Dropped,
        }
    }
}

/// The names of a path. Every text is one: what names no field has no effect.
fn names(path: &str) -> Vec<String> {
    let (mut names, mut rest) = (Vec::new(), path);
    while !rest.is_empty() {
        let (name, after) = match rest.strip_prefix('[') {
            Some(bracketed) => bracketed.split_once(']').unwrap_or((bracketed, "")),
            None => rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len())),
        };
        names.push(name.to_owned());
        rest = after.strip_prefix('.').unwrap_or(after);
    }
    names
}

#[cfg(test)]
mod tests;

//! YAML with the place of every value.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use std::fmt;

/// Bytes of one document: four times what a ConfigMap can hold.
pub const CONFIG_BYTES_MAX: usize = 4 << 20;
/// Values in one document once its aliases are expanded: a document of the largest size has fewer, an alias bomb more.
const NODES_MAX: usize = 500_000;
/// Levels of nesting, far above what the configuration has.
const DEPTH_MAX: usize = 64;

/// Where something stands in a document; both numbers count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line.
    pub line: u64,
    /// Column, in characters.
    pub column: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// What is wrong in a document. Displayed as `LINE:COLUMN: field.path: what is wrong, what is expected`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// Path of the field; empty for the document as a whole.
    pub path: String,
    /// What is wrong, and what is expected.
    pub message: String,
}

/// What the user should know of a document that is in order.
pub type Note = Fault;

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "{}: {}", self.place, self.message),
            path => write!(f, "{}: {path}: {}", self.place, self.message),
        }
    }
}

impl Fault {
    pub(crate) fn new(place: Place, path: &str, message: impl Into<String>) -> Self {
        Self { place, path: path.to_owned(), message: message.into() }
    }
}

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) tree: Tree,
}

/// A YAML value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tree {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// Entries in their order, duplicates included.
    Map(Vec<(Node, Node)>),
}

impl Tree {
    /// What it is, for messages.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Null => "nothing".to_owned(),
            Self::Bool(value) => format!("the boolean {value}"),
            Self::Integer(value) => format!("the number {value}"),
            Self::Float(value) => format!("the number {value}"),
            Self::Text(text) => format!("the text {:?}", text.chars().take(60).collect::<String>()),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a mapping".to_owned(),
        }
    }

    /// A scalar as the text of a key. `Y` and `no` are booleans in YAML, which nobody means who writes them as a key.
    pub(crate) fn key(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Integer(value) => Some(value.to_string()),
            Self::Float(value) => Some(value.to_string()),
            Self::Null | Self::Bool(_) | Self::List(_) | Self::Map(_) => None,
        }
    }
}

/// Reads one document. An empty one is an empty mapping.
pub(crate) fn parse(bytes: &[u8]) -> Result<Node, Fault> {
    let start = Place { line: 1, column: 1 };
    if bytes.len() > CONFIG_BYTES_MAX {
        let message = format!("it has {} bytes, at most {CONFIG_BYTES_MAX} are read", bytes.len());
        return Err(Fault::new(start, "", message));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
        let message = format!("byte {} is not UTF-8: save the text in UTF-8", error.valid_up_to());
        Fault::new(end_of(&before), "", message)
    })?;
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::PassThrough,
        legacy_octal_numbers: true,
        budget: serde_saphyr::budget! { max_nodes: NODES_MAX, max_depth: DEPTH_MAX },
    };
    let node: Option<Node> = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let place = error.location().map_or(start, |at| Place { line: at.line(), column: at.column() });
        let text = error.without_snippet().to_string();
        Fault::new(place, "", format!("it is not YAML: {}", text.lines().next().unwrap_or_default()))
    })?;
    let node = node.unwrap_or(Node { place: start, tree: Tree::Null });
    match node.tree {
        Tree::Null => Ok(Node { place: start, tree: Tree::Map(Vec::new()) }),
        Tree::Map(_) => Ok(node),
        other => Err(Fault::new(
            node.place,
            "",
            format!("it is {}, a mapping of fields is expected", other.shown()),
        )),
    }
}

fn end_of(text: &str) -> Place {
    let last = text.rsplit('\n').next().unwrap_or_default();
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    Place { line: count(text.matches('\n').count()) + 1, column: count(last.chars().count()) + 1 }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Tree>::deserialize(deserializer)?;
        let at = spanned.referenced;
        Ok(Self { place: Place { line: at.line().max(1), column: at.column().max(1) }, tree: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(i64::try_from(value).map_or_else(|_| Tree::Text(value.to_string()), Tree::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Tree, E> {
        Ok(Tree::Text(value))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}

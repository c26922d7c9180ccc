//! The one model of a type: what a value may look like and how lists and maps merge. Built-in kinds and custom
//! resources share it, so that every walk (decode, default, validate, patch) is written once.

use serde_json::Value;

use crate::table::{self, DefinitionId};

/// A type of value, with everything the walks need to know about it.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// The form of the value.
    pub shape: Shape,
    /// Whether `null` is a value of its own. Built-in kinds read `null` as absent instead.
    pub nullable: bool,
    /// The value an absent field takes.
    pub default: Option<Value>,
    /// All values allowed; empty when not limited.
    pub enumeration: Vec<Value>,
    /// How items of a list are told apart.
    pub list: ListKind,
    /// How entries of a map or object are owned.
    pub map: MapKind,
    /// How a strategic merge patch treats the field.
    pub patch: PatchStrategy,
    /// Whether fields that the schema does not know are kept.
    pub preserve_unknown: bool,
    /// Whether the value is an object with `apiVersion`, `kind` and `metadata` of its own.
    pub embedded_resource: bool,
    /// The value checks of a custom resource's schema.
    pub rules: Option<Box<Rules>>,
}

/// The form of a value.
#[derive(Clone, Debug, Default)]
pub enum Shape {
    /// Any JSON value.
    #[default]
    Any,
    /// Any JSON object.
    AnyObject,
    /// An object of known fields, sorted by name.
    Object(Vec<Field>),
    /// A map from strings to values of one type.
    Map(Box<Schema>),
    /// A list of values of one type.
    List(Box<Schema>),
    /// A string.
    String,
    /// Bytes in base64.
    Bytes,
    /// A time in whole seconds, RFC 3339.
    Time,
    /// A time in microseconds, RFC 3339.
    MicroTime,
    /// A quantity such as `500m` or `1Gi`; numbers are accepted.
    Quantity,
    /// A number or a string, as ports and percentages are.
    IntOrString,
    /// A whole number of 32 bits.
    Int32,
    /// A whole number of 64 bits.
    Int64,
    /// Any number.
    Number,
    /// A truth value.
    Bool,
    /// A definition of the type table.
    Definition(DefinitionId),
}

/// One field of an object.
#[derive(Clone, Debug)]
pub struct Field {
    /// The name in JSON.
    pub name: Box<str>,
    /// Whether the field must be given.
    pub required: bool,
    /// Whether a required field may be missing all the same, as far as validation goes.
    pub lenient: bool,
    /// The type of its value.
    pub schema: Schema,
    /// How it is written in protobuf; `None` where it is not.
    pub(crate) wire: Option<Box<Wire>>,
}

/// How a field is written in protobuf.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wire {
    /// Its number, after the numbers of the messages around it that JSON flattens.
    pub(crate) path: Vec<u32>,
    /// What an absent scalar is told from.
    pub(crate) zero: Zero,
    /// What its message looks like.
    pub(crate) form: WireForm,
}

/// What the zero of a scalar says in protobuf, where the Go type that is not a pointer is written always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zero {
    /// The same as an absent field.
    Absent,
    /// A value of its own.
    Value,
}

/// Forms of messages that the type of the field does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireForm {
    /// As the type of the field says; any JSON value is its text.
    Plain,
    /// A list inside a message of its own.
    Items,
    /// A JSON schema, or a list of them.
    SchemaOrArray,
    /// A JSON schema, or a truth value.
    SchemaOrBool,
    /// A JSON schema, or a list of strings.
    SchemaOrStrings,
}

/// How items of a list are told apart. Source: the `x-kubernetes-list-type` extension.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ListKind {
    /// The list is one value.
    #[default]
    Atomic,
    /// Items are scalars and differ.
    Set,
    /// Items are objects that differ in these fields.
    Map(Vec<String>),
}

/// How entries of a map or object are owned. Source: the `x-kubernetes-map-type` extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MapKind {
    /// Each entry by itself.
    #[default]
    Granular,
    /// All together.
    Atomic,
}

/// How a strategic merge patch treats a field. Source: the `x-kubernetes-patch-*` extensions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PatchStrategy {
    /// Lists are merged item by item instead of replaced.
    pub merge: bool,
    /// Fields that the patch does not list under `$retainKeys` are dropped.
    pub retain_keys: bool,
    /// A map is replaced as a whole.
    pub replace: bool,
    /// The field by which items of a merged list are matched; `None` for lists of scalars.
    pub merge_key: Option<String>,
}

/// The value checks of a custom resource's schema. Source: the JSON schema dialect of apiextensions.k8s.io/v1.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The regular expression a string must match, as written and compiled.
    pub pattern: Option<regex::Regex>,
    /// The named format of a string.
    pub format: Option<String>,
    /// Lower bound of a number, and whether it is excluded.
    pub minimum: Option<(f64, bool)>,
    /// Upper bound of a number, and whether it is excluded.
    pub maximum: Option<(f64, bool)>,
    /// What a number must be a multiple of.
    pub multiple_of: Option<f64>,
    /// Characters of a string, at least.
    pub length_min: Option<u64>,
    /// Characters of a string, at most.
    pub length_max: Option<u64>,
    /// Items of a list, at least.
    pub items_min: Option<u64>,
    /// Items of a list, at most.
    pub items_max: Option<u64>,
    /// Entries of an object, at least.
    pub properties_min: Option<u64>,
    /// Entries of an object, at most.
    pub properties_max: Option<u64>,
    /// Schemas that must all hold.
    pub all_of: Vec<Schema>,
    /// Schemas of which one at least must hold.
    pub any_of: Vec<Schema>,
    /// Schemas of which exactly one must hold.
    pub one_of: Vec<Schema>,
    /// A schema that must not hold.
    pub not: Option<Box<Schema>>,
}

impl Schema {
    /// The schema of the named form alone.
    #[must_use]
    pub fn of(shape: Shape) -> Schema {
        Schema { shape, ..Schema::default() }
    }

    /// The schema itself, or the definition that it refers to. Field facts (list kind, patch strategy, default) stay
    /// on the reference.
    #[must_use]
    pub fn resolve(&self) -> &Schema {
        match self.shape {
            Shape::Definition(id) => table::definition(id),
            _ => self,
        }
    }

    /// The type of the field of that name: of an object's field or of a map's values.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Schema> {
        match &self.resolve().shape {
            Shape::Object(fields) => find_field(fields, name).map(|field| &field.schema),
            Shape::Map(value) => Some(value),
            _ => None,
        }
    }

    /// The type of a list's items.
    #[must_use]
    pub fn item(&self) -> Option<&Schema> {
        match &self.resolve().shape {
            Shape::List(item) => Some(item),
            _ => None,
        }
    }
}

/// Finds a field by name; fields are sorted.
pub(crate) fn find_field<'a>(fields: &'a [Field], name: &str) -> Option<&'a Field> {
    let index = fields.binary_search_by(|field| field.name.as_ref().cmp(name)).ok()?;
    Some(&fields[index])
}

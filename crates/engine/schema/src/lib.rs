//! The type table of every kind and all it drives: decoding, pruning, defaulting, validation, tables and OpenAPI.
//! It never holds code for a single kind beyond printer columns, defaults and cross-field checks.

mod catalog;
mod cells;
mod convert;
mod crd;
mod decode;
mod defaults;
mod fault;
mod jsonpath;
mod openapi;
mod parse;
mod path;
mod protobuf;
mod quantity;
mod rules;
mod schema;
mod select;
mod served;
mod structural;
mod table;
#[cfg(test)]
mod tests;
mod validate;

pub use catalog::{Catalog, CustomType, GroupVersionKind, ResourceType, ScalePaths, Scope, Subresource};
pub use cells::Column;
pub use crd::CrdProblem;
pub use decode::{DecodeError, Decoded, FieldValidation, decode_kind};
pub use fault::{FaultKind, FieldFault};
pub use openapi::{openapi_v3, openapi_v3_index};
pub use parse::{ParseError, Parsed, parse_json, parse_yaml};
pub use protobuf::{ProtobufError, decode_protobuf, encode_protobuf, encode_protobuf_event};
pub use quantity::Quantity;
pub use schema::{Field, ListKind, MapKind, PatchStrategy, Rules, Schema, Shape};
pub use table::DefinitionId;
pub use validate::selects;

/// The Kubernetes version whose types and behaviour this room has.
pub const KUBERNETES_VERSION: &str = "1.35.0";

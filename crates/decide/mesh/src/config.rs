//! The mesh configuration: documents with places, checked against the field's own fields, layered, with their origin.
//!
//! A document that has a fault has no effect at all: [`layer`] takes whole documents without faults only.

mod check;
mod document;
mod fields;
mod file;
mod force;
mod layers;
#[cfg(test)]
mod tests;

pub use check::{Checked, Entry, Item, Origin, check_mesh, check_networks};
pub use document::{CONFIG_BYTES_MAX, Fault, Note, Place};
pub use file::check_file;
pub use force::{Content, Decision, Document, decide};
pub use layers::{DEFAULTS_SOURCE, MeshConfig, Scope, layer};

//! Derived collections: keyed, indexed, dependency-tracked, equality-suppressed and batch-driven.
//! It never knows a word of Kubernetes.
//!
//! A [`Graph`] holds collections of values by key. *Inputs* are written in [`Batch`]es; *derived* collections
//! are pure functions of the values of another collection and of what they read elsewhere through [`Reads`].
//! The graph remembers what each output read and runs again only what a batch touches, in the order in which
//! the collections were made, which is a topological one: a collection can only read older ones. An output that
//! equals its predecessor makes no event. Everything happens on the caller's thread.

mod contributions;
mod derived;
mod graph;
mod merged;
mod node;
mod reads;
mod store;
#[cfg(test)]
mod tests;

pub use graph::{Batch, CollectionStats, Commit, Graph};
pub use node::{Collection, Fault, Index, Input};
pub use reads::Reads;
pub use store::{Change, Key, Value};

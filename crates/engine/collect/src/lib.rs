//! Derived collections: keyed, indexed, dependency-tracked, equality-suppressed and batch-driven.
//! It never knows a word of Kubernetes.
//!
//! A [`Graph`] holds collections of values by key. *Inputs* are written in [`Batch`]es; *derived* collections
//! are pure functions of the values of another collection and of what they read elsewhere through [`Reads`].
//! The graph remembers what each output read and runs again only what a batch touches, in topological order: a
//! collection can only read collections that stand before it. An output that equals its predecessor makes no event.
//! Everything happens on the caller's thread.
//!
//! | to have | use |
//! |---|---|
//! | one output, or several, for each input | [`Graph::map`], [`Graph::flat_map`] |
//! | two collections by their common keys | [`Graph::join`], [`Graph::left_join`], [`Graph::full_join`] |
//! | several sources as one | [`Graph::merge`], [`Graph::merge_with`], [`Graph::union`] with [`Graph::connect`] |
//! | values by something else than their key | [`Graph::index`], [`Graph::label_index`], [`Graph::selector_index`] |
//! | what never changes | [`Graph::fixed`] |
//! | a part that can be taken out again | [`Graph::open`], [`Graph::within`], [`Graph::close`] |
//! | to be told of changes | [`Commit::changes`], [`Graph::on_change`] |
//! | to know why | [`Graph::dump`], [`Graph::why`] |

mod contributions;
mod derived;
mod dump;
mod explain;
mod fault;
mod graph;
mod handle;
mod index;
mod joined;
mod label;
mod merged;
mod node;
mod reads;
mod store;
#[cfg(test)]
mod tests;
mod track;
mod value;

pub use dump::{Cause, CollectionDump, Dump, Explanation, How, Kind, Stamp};
pub use fault::Fault;
pub use graph::{Batch, Commit, Graph, Scope};
pub use handle::{Collection, Index, Input, LabelIndex, SelectorIndex, Union};
pub use reads::Reads;
pub use store::Change;
pub use value::{Key, Value};

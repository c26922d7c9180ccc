//! Role-based access control: who may do what, from roles and bindings.
//! It never reads or stores an object by itself.

pub mod defaults;
mod policy;
mod rule;

pub use policy::{Found, Grant, Kind, Policy, Subject, User};
pub use rule::{Request, Rule, uncovered};

//! One module per built-in controller: observed objects and time to wanted writes.
//! It never holds a queue or performs a write.

pub mod cluster_role;
pub mod deployment;
pub mod endpoint_slice;
pub mod expectations;
pub mod garbage;
pub mod namespace;
pub mod node_health;
pub mod ownership;
pub mod pod;
pub mod replica_set;
pub mod root_ca;
pub mod schedule;
pub mod selector;
pub mod service_account;

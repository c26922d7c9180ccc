//! The controllers against the real API server on an in-memory log. The tests act as users and as the node.

mod cluster;
mod clusters;
mod defaults;
mod endpoints;
mod events;
mod faults;
mod garbage;
mod informers;
mod leader;
mod metrics;
mod namespaces;
mod roles;
mod scheduling;
mod vanished;
mod workloads;
mod writes;

//! The proxy between real network namespaces, with a control plane and a node agent that speak the real protocols.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail where it is")]

mod control;
mod handover;
mod log;
mod policy;
mod relay;
mod traffic;
mod tunnel;
mod world;

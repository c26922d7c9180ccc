//! Pod life-cycle decisions of the node runtime, and enrollment decisions of the agent.
//! It never performs an effect.

pub mod enroll;
pub mod handover;
pub mod pod;

//! The checks of the whole on a real cluster, run by `make demo` and by the cluster test.
//! It never reaches into a room: it uses the program, kubectl's API and packets, as a user would.

pub mod capture;
pub mod checks;
pub mod cluster;
pub mod demo;
pub mod machine;
pub mod memory;
pub mod pods;
pub mod report;
pub mod sandbox;
mod wait;

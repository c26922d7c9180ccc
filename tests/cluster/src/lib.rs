//! The checks of the whole on a real cluster.

pub mod capture;

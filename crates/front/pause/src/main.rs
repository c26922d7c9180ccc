//! The pause process of a pod sandbox.

fn main() {}

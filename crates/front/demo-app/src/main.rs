//! The demo workload: a small HTTP and TCP server and client in one static binary.

fn main() {}

//! The program: roles, settings and command line.

fn main() {}

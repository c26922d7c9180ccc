//! Checks of the house and generated tables.

fn main() {}

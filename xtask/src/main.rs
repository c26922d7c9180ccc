//! Checks of the house and generated tables.

mod tidy;
mod type_table;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("type-table") => type_table::run(arguments.next().as_deref()),
        Some("tidy") => tidy::run(),
        _ => anyhow::bail!("usage: cargo xtask tidy | type-table [DEFINITIONS.json]"),
    }
}

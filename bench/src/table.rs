//! The type table: the first thing every API server does.

use crate::measure::Suite;
use ambit_runtime::Clock;
use ambit_schema::Catalog;
use anyhow::{Context, Result};
use std::hint::black_box;
use std::process::Command;
use std::time::Duration;

/// Name of the work in a fresh process.
pub(crate) const LOAD: &str = "table-load";
/// Fresh processes.
const PROCESSES: usize = 20;

/// The table is read once a process, so each sample is a process of its own.
pub(crate) fn run(suite: &mut Suite) -> Result<()> {
    let name = "schema/type table, first use in a process";
    if !suite.wants(name) {
        return Ok(());
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut samples = Vec::new();
    for _ in 0..PROCESSES {
        let output =
            Command::new(&program).args(["--once", LOAD]).output().context("cannot run this program")?;
        let text = String::from_utf8_lossy(&output.stdout);
        samples.push(Duration::from_nanos(text.trim().parse().context("the fresh process failed")?));
    }
    suite.record(name, samples);
    Ok(())
}

/// Reads the table and finds one type in it.
pub(crate) fn load_ns() -> u64 {
    let start = Clock.now();
    black_box(Catalog::builtin().resource("apps", "v1", "deployments").map(|kind| kind.kind.len()));
    u64::try_from(Clock.now().duration_since(start).as_nanos()).unwrap_or(u64::MAX)
}

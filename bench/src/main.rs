//! `make bench`: measures the rooms and prints medians beside the budgets of the design.
#![expect(clippy::print_stdout, reason = "a program of its own, whose output is the result")]

mod add;
mod apiserver;
mod collections;
mod dns;
mod enroll;
mod informers;
mod measure;
mod pods;
mod server;
mod services;
mod table;
mod writes;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use measure::Suite;

/// Measures the rooms of Ambit.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only benchmarks whose name contains this.
    filter: Option<String>,
    /// How the result is printed.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Folder with the programs that `make programs` builds.
    #[arg(long, default_value = "target/programs")]
    programs: std::path::PathBuf,
    /// Does one piece of work in this fresh process and prints what it measured.
    #[arg(long, hide = true)]
    once: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// One line a benchmark.
    Table,
    /// One array of objects, durations in nanoseconds.
    Json,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(work) = arguments.once {
        return once(&work);
    }
    let mut suite = Suite::new(arguments.filter);
    dns::run(&mut suite)?;
    collections::run(&mut suite)?;
    services::run(&mut suite)?;
    table::run(&mut suite)?;
    writes::run(&mut suite)?;
    informers::run(&mut suite, &arguments.programs)?;
    apiserver::run(&mut suite, &arguments.programs)?;
    add::run(&mut suite, &arguments.programs)?;
    enroll::run(&mut suite)?;
    let measurements = suite.finish()?;
    match arguments.output {
        Output::Table => println!("{}", measure::table(&measurements)),
        Output::Json => println!("{}", serde_json::to_string_pretty(&measurements)?),
    }
    Ok(())
}

fn once(work: &str) -> Result<()> {
    match work {
        table::LOAD => println!("{}", table::load_ns()),
        collections::MEMORY => {
            println!("{}", collections::memory()?);
        }
        writes::MEMORY => println!("{}", writes::memory()?),
        place if place.starts_with(enroll::AGENT) => enroll::agent(&place[enroll::AGENT.len()..])?,
        view if view.starts_with(informers::VIEW) => {
            println!("{}", informers::view(&view[informers::VIEW.len()..])?);
        }
        other => bail!("there is no work {other:?} to do once"),
    }
    Ok(())
}

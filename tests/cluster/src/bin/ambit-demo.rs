//! Runs the demo: a cluster on this machine, the checks of the mesh, a clean end.

use ambit_cluster_tests::checks::Timing;
use ambit_cluster_tests::cluster::Programs;
use ambit_cluster_tests::demo::{Afterwards, Demo};
use ambit_cluster_tests::sandbox;
use anyhow::{Context as _, Result};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Starts a cluster with the mesh on this machine, shows that it does what it promises, and cleans up.
#[derive(Debug, Parser)]
struct Args {
    /// Folder with the built programs.
    #[arg(long)]
    programs: PathBuf,
    /// Folder with the example manifests.
    #[arg(long, default_value = "examples/demo")]
    examples: PathBuf,
    /// Another node proxy's program to run in place of ours.
    #[arg(long)]
    proxy: Option<PathBuf>,
    /// Leave the cluster running and say how to use it.
    #[arg(long)]
    keep: bool,
    /// Do not judge how long things take.
    #[arg(long)]
    lenient: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    let programs = Programs::find(&args.programs)?;
    sandbox::enter()?;
    let state =
        tempfile::Builder::new().prefix("ambit-demo-").tempdir().context("cannot make a temporary folder")?;
    let demo = Demo {
        programs,
        examples: &args.examples,
        proxy: args.proxy.as_deref(),
        state: state.path(),
        timing: if args.lenient { Timing::Eventually } else { Timing::Promised },
        afterwards: if args.keep { Afterwards::Keep } else { Afterwards::CleanUp },
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(demo.run())?;
    if args.keep {
        // The cluster works in it.
        let _ = state.keep();
    }
    let broken = report.broken();
    if broken.is_empty() {
        eprintln!("all {} promises were held", report.made());
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{} of {} promises were broken: {}", broken.len(), report.made(), broken.join("; "));
    Ok(ExitCode::FAILURE)
}

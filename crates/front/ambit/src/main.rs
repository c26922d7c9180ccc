//! The program: roles, settings and command line. The only room that reads flags, environment and files of settings,
//! and the only one that prints.

mod agent;
mod agent_check;
mod cli;
mod config;
mod image;
mod kubeconfig;
mod manifests;
mod parts;
mod preflight;
mod proxy_settings;
mod roles;
mod status;
mod up;

use clap::Parser;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let outcome = ambit_runtime::logging::init(&cli.log, cli.log_format.into())
        .map_err(anyhow::Error::from)
        .and_then(|()| run(cli.command));
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: cli::Command) -> anyhow::Result<ExitCode> {
    // Before there is any thread: what a process gives up, each of its threads would have to give up.
    let confined = match &command {
        cli::Command::Agent(args) if args.action.is_none() => Some(agent::confined(args)?),
        _ => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            cli::Command::Up(args) => up::run(args).await,
            cli::Command::Apiserver(args) => roles::apiserver(args).await,
            cli::Command::Controllers(args) => roles::controllers(args).await,
            cli::Command::Node(args) => roles::node(args).await,
            cli::Command::ControlPlane(args) => roles::control_plane(args).await,
            cli::Command::Agent(args) => agent::run(args, confined).await,
            cli::Command::Proxy => roles::proxy().await,
            cli::Command::Config(args) => return config::run(args.action).await,
            cli::Command::Status(args) => return status::run(args).await,
            cli::Command::Image(args) => image::run(args.action).await,
        }
        .map(|()| ExitCode::SUCCESS)
    })
}

//! `ambit agent check`: whether this node can run the mesh, and what to do where it cannot. It changes nothing: the
//! kernel is tried in a network namespace of the check's own.

mod cluster;
mod configuration;
mod kernel;
mod machine;

use crate::cli;
use crate::roles::install_settings;
use ambit_cni_conf::Entry;
use anyhow::{Result, bail};
use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warn,
    Fail,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    subject: &'static str,
    found: String,
    /// What to do; empty when nothing is to be done.
    #[serde(skip_serializing_if = "str::is_empty")]
    remedy: String,
}

fn fine(subject: &'static str, found: impl Into<String>) -> Finding {
    Finding { level: Level::Ok, subject, found: found.into(), remedy: String::new() }
}

fn bad(level: Level, subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { level, subject, found: found.into(), remedy: remedy.into() }
}

fn chain(error: impl std::error::Error + Send + Sync + 'static) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

/// Checks and prints.
///
/// # Errors
/// Something fails.
#[expect(clippy::print_stdout, reason = "the findings are what is asked for")]
pub(crate) async fn run(args: &cli::Agent, output: cli::CheckOutput) -> Result<()> {
    let mut findings = check(args)?;
    findings.extend(cluster::check(args).await);
    match output {
        cli::CheckOutput::Json => println!("{}", serde_json::to_string_pretty(&findings)?),
        cli::CheckOutput::Text => findings.iter().for_each(|finding| println!("{}", line(finding))),
    }
    match findings.iter().filter(|finding| finding.level == Level::Fail).count() {
        0 => Ok(()),
        failed => bail!("this node cannot run the mesh yet: {failed} of {} checks failed", findings.len()),
    }
}

fn line(finding: &Finding) -> String {
    let level = match finding.level {
        Level::Ok => "ok  ",
        Level::Warn => "warn",
        Level::Fail => "FAIL",
    };
    let remedy =
        if finding.remedy.is_empty() { String::new() } else { format!("\n      {}", finding.remedy) };
    format!("{level}  {}: {}{remedy}", finding.subject, finding.found)
}

/// What can be known of the node without a cluster.
fn check(args: &cli::Agent) -> Result<Vec<Finding>> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(vec![bad(Level::Fail, "user", "not root", "run the check and the agent as root")]);
    }
    let install = install_settings(&args.cni)?;
    let mut findings = vec![fine("user", "root")];
    findings.extend(kernel::check(args));
    findings.extend(machine::check("/proc".as_ref(), &args.proc_root));
    findings.push(configuration::writable("configuration directory", &install.conf_dir));
    findings.push(configuration::writable("plugin directory", &install.bin_dir));
    findings.push(configuration::plugin(&install.plugin));
    let entry = Entry {
        run_dir: args.run_dir.display().to_string(),
        exclude_namespaces: args.exclude_namespaces.clone(),
        pod_namespace: args.system_namespace.clone(),
    };
    findings.extend(configuration::check(&install, entry));
    findings.extend(configuration::runtime(&install.conf_dir));
    findings.extend(machine::sockets(args));
    Ok(findings)
}

#[cfg(test)]
mod tests;

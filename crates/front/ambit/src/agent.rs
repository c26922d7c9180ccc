//! `ambit agent`: the role, and the operator's commands for a node.

mod removal;

use crate::kubeconfig::connect;
use crate::{agent_check, cli, roles};
use ambit_agent::install;
use ambit_api::core::v1::Pod;
use ambit_names::annotation;
use ambit_runtime::{Readiness, Shutdown};
use anyhow::{Context as _, Result, anyhow, bail};
use kube::api::{Api, ListParams};
use removal::Watched;
use std::time::Duration;

/// Time for the agent to find the pods of its node before they are released.
const FIND_DEADLINE: Duration = Duration::from_secs(60);
/// Pause between looks at its readiness.
const PAUSE: Duration = Duration::from_millis(50);

/// Settings of the agent, to which this process is confined from now on. To be called before there is a second thread.
///
/// # Errors
/// A setting is wrong, or the process lacks a right that every agent needs.
pub(crate) fn confined(args: &cli::Agent) -> Result<ambit_agent::Settings> {
    let mut settings = settings(args)?;
    if args.cni.cni_conf_dir.is_some() {
        settings.install = Some(roles::install_settings(&args.cni)?);
    }
    Ok(ambit_agent::confine(settings)?)
}

/// Runs the agent alone with the settings to which this process was confined, or one of the operator's commands.
pub(crate) async fn run(args: cli::Agent, confined: Option<ambit_agent::Settings>) -> Result<()> {
    match args.action {
        Some(cli::AgentAction::Check { output }) => agent_check::run(&args, output).await,
        Some(cli::AgentAction::Uninstall) => uninstall(&args).await,
        None => {
            let settings = confined.context("the agent was not confined")?;
            let client = connect(args.connection.kubeconfig.as_deref()).await?;
            match args.removed_with {
                Some(set) => run_until_removed(settings, client, set).await,
                None => {
                    roles::alone(|readiness, stop| ambit_agent::run(settings, client, readiness, stop)).await
                }
            }
        }
    }
}

/// Runs the agent; if it is removed for good when it is asked to stop, it releases all pods and takes the plugin away.
async fn run_until_removed(
    mut settings: ambit_agent::Settings,
    client: kube::Client,
    set: cli::SetName,
) -> Result<()> {
    let watched = Watched::new(client.clone(), set).await?;
    let removal = Shutdown::new();
    settings.removal = Some(removal.clone());
    let install = settings.install.clone();
    let ask = async || {
        if watched.is_removed().await {
            removal.cancel();
        }
    };
    roles::alone_until(ask, |readiness, stop| ambit_agent::run(settings, client, readiness, stop)).await?;
    match install {
        Some(install) if removal.is_cancelled() => take_away(&install),
        _ => Ok(()),
    }
}

fn settings(args: &cli::Agent) -> Result<ambit_agent::Settings> {
    let name =
        args.node_name.clone().context("the node's name is not known: set --node-name or NODE_NAME")?;
    let selectors = args.enablement_selector.as_deref().filter(|text| !text.trim().is_empty());
    Ok(ambit_agent::Settings {
        run_dir: args.run_dir.clone(),
        handover_socket: args.handover_socket.clone(),
        proc_root: args.proc_root.clone(),
        system_namespace: args.system_namespace.clone(),
        excluded_namespaces: args.exclude_namespaces.clone(),
        dns_capture: args.dns_capture,
        ipv6: !args.no_ipv6,
        health: args.health,
        metrics: args.metrics,
        probe_uid: args.probe_uid,
        release_on_stop: args.release_on_stop,
        selectors: selectors.map(enablement).transpose()?,
        uncaptured: match args.uncaptured {
            cli::Uncaptured::LetBe => ambit_agent::Uncaptured::LetBe,
            cli::Uncaptured::KeptOff => ambit_agent::Uncaptured::KeptOff,
        },
        ..ambit_agent::Settings::new(name)
    })
}

/// The selectors in a setting's text.
fn enablement(text: &str) -> Result<ambit_agent::Selectors> {
    let list: serde_json::Value =
        serde_saphyr::from_str(text).context("the enablement selectors are not YAML")?;
    ambit_agent::Selectors::parse(&list)
        .map_err(|fault| anyhow!("the enablement selectors are wrong: {fault}"))
}

/// Releases all pods, verifies it, and only then takes the plugin away, so that none is left behind captured.
async fn uninstall(args: &cli::Agent) -> Result<()> {
    let install = roles::install_settings(&args.cni)?;
    let settings = ambit_agent::Settings { release_on_stop: true, ..settings(args)? };
    let node = settings.node_name.clone();
    let client = connect(args.connection.kubeconfig.as_deref()).await?;
    release(settings, client.clone()).await?;
    let left = captured(client, &node).await?;
    if !left.is_empty() {
        bail!(
            "pods are still captured, nothing was removed: {}; delete them or run this again",
            left.join(", ")
        );
    }
    take_away(&install)
}

/// Takes the plugin and its entry away.
#[expect(clippy::print_stdout, reason = "what was removed is what an operator wants to know")]
fn take_away(install: &install::Settings) -> Result<()> {
    let removed = install::uninstall(install)?;
    for path in removed.configurations {
        println!("took the plugin out of {}", path.display());
    }
    let binary = install.bin_dir.join(ambit_cni_conf::list::PLUGIN_TYPE);
    match removed.binary_kept_for {
        None => println!("removed {}", binary.display()),
        Some(record) => println!(
            "left {} for the deletion of sandboxes that were made with it ({record}): run this again when they are gone",
            binary.display()
        ),
    }
    Ok(())
}

/// An agent that takes up all captured pods of the node and releases them at its stop.
async fn release(settings: ambit_agent::Settings, client: kube::Client) -> Result<()> {
    let (readiness, stop) = (Readiness::default(), Shutdown::new());
    let agent = ambit_agent::run(settings, client, readiness.clone(), stop.clone());
    let mut agent = std::pin::pin!(agent);
    let ready = async {
        loop {
            tokio::time::sleep(PAUSE).await;
            if readiness.waiting_for().is_empty() {
                return;
            }
        }
    };
    let found = tokio::select! {
        ended = &mut agent => {
            ended.context("the agent that is to release the pods has failed: is the node's own still running?")?;
            bail!("the agent that is to release the pods has ended")
        }
        ready = tokio::time::timeout(FIND_DEADLINE, ready) => ready,
    };
    stop.cancel();
    agent.await?;
    found.map_err(|_| anyhow!("the pods of this node were not found within {} s", FIND_DEADLINE.as_secs()))
}

/// Pods of the node that say that they are captured.
async fn captured(client: kube::Client, node: &str) -> Result<Vec<String>> {
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = Api::<Pod>::all(client).list(&on_node).await.context("cannot list the pods of this node")?;
    let is_captured = |pod: &Pod| {
        pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(annotation::REDIRECTION))
    };
    let name = |pod: &Pod| {
        let meta = &pod.metadata;
        format!(
            "{}/{}",
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default()
        )
    };
    Ok(pods.iter().filter(|pod| is_captured(pod)).map(name).collect())
}

//! `ambit status`: the capture state of pods, as the agents of their nodes see it where they can be asked.

mod cluster;

use crate::cli::{Status, StatusFormat};
use crate::kubeconfig::connect;
use ambit_agent::{NodeStatus, PODS_PATH, PodStatus};
use anyhow::{Context as _, Result};
use cluster::{NodeReport, Source};
use serde::Serialize;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// Time for an agent to answer: it reads what it has in memory.
const DEADLINE: Duration = Duration::from_secs(5);
/// A pod that was named is not known.
const UNKNOWN: u8 = 3;
/// A pod is not as it was asked for.
const AMISS: u8 = 4;

/// What is shown of several nodes.
#[derive(Debug, Serialize)]
struct Report {
    nodes: Vec<NodeReport>,
}

/// Prints the pods that were asked for. The exit code says whether all of those that were named are known, and whether all are as
/// they were asked for.
///
/// # Errors
/// The agent of this node, or the API server, does not answer.
#[expect(clippy::print_stdout, reason = "the states are what is asked for")]
pub(crate) async fn run(args: Status) -> Result<ExitCode> {
    let by_api = args.node.is_some() || args.all_nodes;
    let mut report = if by_api {
        let client = connect(args.connection.kubeconfig.as_deref()).await?;
        Report { nodes: cluster::ask(&client, args.node.as_deref()).await? }
    } else {
        let NodeStatus { node, pods, .. } = ask(args.agent).await?;
        Report { nodes: vec![NodeReport { node, source: Source::Agent, pods }] }
    };
    let missing = report.select(&args.pods, args.namespace.as_deref());
    match (args.output, by_api) {
        (StatusFormat::Table, _) => print!("{}", report.table(by_api)),
        (StatusFormat::Json, true) => println!("{}", serde_json::to_string_pretty(&report)?),
        (StatusFormat::Json, false) => println!("{}", serde_json::to_string_pretty(&report.nodes.first())?),
    }
    for NodeReport { node, source, .. } in &report.nodes {
        if let Source::Annotations { because } = source {
            eprintln!(
                "node {node}: shown is what the pods' annotations tell, since its agent could not be asked: {because}"
            );
        }
    }
    let elsewhere = if args.all_nodes { "" } else { ": it may run on another node" };
    for pod in &missing {
        eprintln!("pod {pod} is not known{elsewhere}");
    }
    Ok(ExitCode::from(report.code(&missing)))
}

async fn ask(agent: SocketAddr) -> Result<NodeStatus> {
    let mut config = kube::Config::new(format!("http://{agent}/").parse()?);
    (config.connect_timeout, config.read_timeout) = (Some(DEADLINE), Some(DEADLINE));
    let client = kube::Client::try_from(config)?;
    let request = http::Request::get(PODS_PATH).body(Vec::new())?;
    let answer = tokio::time::timeout(DEADLINE, client.request::<NodeStatus>(request));
    let hint = || {
        format!(
            "no node agent answers on {agent}: run this on the node, name the agent's health address with --agent, \
             or ask the API server with --node or --all-nodes"
        )
    };
    answer.await.with_context(hint)?.with_context(hint)
}

impl Report {
    /// Keeps the pods that were asked for, `NAME` or `NAMESPACE/NAME` each, and returns those that are on none of the nodes.
    fn select(&mut self, asked: &[String], namespace: Option<&str>) -> Vec<String> {
        let is = |pod: &PodStatus, asked: &str| match asked.split_once('/') {
            Some((namespace, name)) => pod.namespace == namespace && pod.name == name,
            None => pod.name == asked,
        };
        for node in &mut self.nodes {
            node.pods.retain(|pod| {
                namespace.is_none_or(|namespace| pod.namespace == namespace)
                    && (asked.is_empty() || asked.iter().any(|asked| is(pod, asked)))
            });
        }
        let known = |asked: &str| self.pods().any(|pod| is(pod, asked));
        asked.iter().filter(|asked| !known(asked)).cloned().collect()
    }

    fn pods(&self) -> impl Iterator<Item = &PodStatus> {
        self.nodes.iter().flat_map(|node| &node.pods)
    }

    fn code(&self, missing: &[String]) -> u8 {
        match () {
            () if !missing.is_empty() => UNKNOWN,
            () if self.pods().any(PodStatus::is_amiss) => AMISS,
            () => 0,
        }
    }

    /// One line per pod, the columns as wide as their widest cell; with the node where there may be several.
    fn table(&self, with_node: bool) -> String {
        let head = ["NODE", "NAMESPACE", "POD", "WANTED", "STATE", "SINCE", "REASON"].map(str::to_owned);
        let rows = self.nodes.iter().flat_map(|node| node.pods.iter().map(|pod| row(&node.node, pod)));
        let rows: Vec<[String; 7]> = std::iter::once(head).chain(rows).collect();
        let first = usize::from(!with_node);
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..6).map(width).collect();
        let line = |row: &[String; 7]| {
            let cells = row.iter().zip(&widths).skip(first);
            let cells: String = cells.map(|(cell, width)| format!("{cell:<width$}   ")).collect();
            format!("{cells}{}\n", row[6])
        };
        rows.iter().map(line).collect()
    }
}

fn row(node: &str, pod: &PodStatus) -> [String; 7] {
    let off = if pod.kept_off { " (kept off the network)" } else { "" };
    let since = if pod.since.is_empty() { "-" } else { &pod.since };
    let reason = format!("{}{off}", pod.reason);
    [node, &pod.namespace, &pod.name, &pod.wanted, &pod.state, since, &reason].map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> Report {
        let pod = |namespace: &str, name: &str, state: &str, kept_off: bool| {
            json!({"namespace": namespace, "name": name, "uid": "u", "wanted": "captured", "state": state,
                "since": "2026-01-02T03:04:05Z", "reason": "because", "kept_off": kept_off})
        };
        let node = |node: &str, pods: serde_json::Value| NodeReport {
            node: node.to_owned(),
            source: Source::Agent,
            pods: serde_json::from_value(pods).unwrap(),
        };
        let first = json!([pod("bank", "web", "captured", false), pod("shop", "db-0", "failed", true)]);
        Report {
            nodes: vec![node("n1", first), node("node-2", json!([pod("shop", "web", "captured", false)]))],
        }
    }

    #[test]
    fn the_table_is_aligned_and_says_why() {
        let expected = "\
NODE     NAMESPACE   POD    WANTED     STATE      SINCE                  REASON
n1       bank        web    captured   captured   2026-01-02T03:04:05Z   because
n1       shop        db-0   captured   failed     2026-01-02T03:04:05Z   because (kept off the network)
node-2   shop        web    captured   captured   2026-01-02T03:04:05Z   because
";
        assert_eq!(report().table(true), expected);
        let mut empty = report();
        empty.nodes.clear();
        assert_eq!(empty.table(false), "NAMESPACE   POD   WANTED   STATE   SINCE   REASON\n");
        let mut first = report();
        first.nodes.truncate(1);
        first.nodes[0].pods.truncate(1);
        first.nodes[0].pods[0].since.clear();
        let expected = "\
NAMESPACE   POD   WANTED     STATE      SINCE   REASON
bank        web   captured   captured   -       because
";
        assert_eq!(first.table(false), expected);
    }

    #[track_caller]
    fn check(asked: &[&str], namespace: Option<&str>, expected: (&[&str], &[&str], u8)) {
        let mut report = report();
        let asked: Vec<String> = asked.iter().map(|&pod| pod.to_owned()).collect();
        let missing = report.select(&asked, namespace);
        let left: Vec<String> = report.pods().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
        assert_eq!(
            (&left[..], &missing[..], report.code(&missing)),
            (
                &expected.0.iter().map(|&pod| pod.to_owned()).collect::<Vec<_>>()[..],
                &expected.1.iter().map(|&pod| pod.to_owned()).collect::<Vec<_>>()[..],
                expected.2,
            )
        );
    }

    #[test]
    fn pods_are_selected_by_name_and_namespace_and_the_exit_code_tells_of_them() {
        check(&[], None, (&["bank/web", "shop/db-0", "shop/web"], &[], AMISS));
        check(&[], Some("bank"), (&["bank/web"], &[], 0));
        check(&["web"], None, (&["bank/web", "shop/web"], &[], 0));
        check(&["web"], Some("shop"), (&["shop/web"], &[], 0));
        check(&["shop/web", "ghost"], None, (&["shop/web"], &["ghost"], UNKNOWN));
        check(&["shop/db-0", "ghost"], None, (&["shop/db-0"], &["ghost"], UNKNOWN));
        check(&["db-0"], Some("bank"), (&[], &["db-0"], UNKNOWN));
    }

    #[tokio::test]
    async fn an_agent_that_is_not_there_is_named_with_what_to_do() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = format!("{:#}", ask(free).await.unwrap_err());
        assert!(
            error.starts_with(&format!("no node agent answers on {free}: run this on the node")),
            "{error}"
        );
    }
}

//! `ambit status`: the capture state of this node's pods, as the node agent sees it.

use crate::cli::{Status, StatusFormat};
use ambit_agent::{NodeStatus, PODS_PATH, PodStatus};
use anyhow::{Context as _, Result};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// Time for the agent to answer: it reads what it has in memory.
const DEADLINE: Duration = Duration::from_secs(5);

/// Prints the pods that were asked for. The exit code says whether all of those that were named are known.
///
/// # Errors
/// The agent does not answer.
#[expect(clippy::print_stdout, reason = "the states are what is asked for")]
pub(crate) async fn run(args: Status) -> Result<ExitCode> {
    let mut status = ask(args.agent).await?;
    let missing = select(&mut status.pods, &args.pods, args.namespace.as_deref());
    match args.output {
        StatusFormat::Table => print!("{}", table(&status.pods)),
        StatusFormat::Json => println!("{}", serde_json::to_string_pretty(&status)?),
    }
    for pod in &missing {
        eprintln!("pod {pod} is not known on node {}: it may run on another node", status.node);
    }
    Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn ask(agent: SocketAddr) -> Result<NodeStatus> {
    let mut config = kube::Config::new(format!("http://{agent}/").parse()?);
    (config.connect_timeout, config.read_timeout) = (Some(DEADLINE), Some(DEADLINE));
    let client = kube::Client::try_from(config)?;
    let request = http::Request::get(PODS_PATH).body(Vec::new())?;
    let answer = tokio::time::timeout(DEADLINE, client.request::<NodeStatus>(request));
    let hint = || {
        format!(
            "no node agent answers on {agent}: run this on the node, and name the agent's health address with --agent"
        )
    };
    answer.await.with_context(hint)?.with_context(hint)
}

/// Keeps the pods that were asked for, `NAME` or `NAMESPACE/NAME` each, and returns those that are not there.
fn select(pods: &mut Vec<PodStatus>, asked: &[String], namespace: Option<&str>) -> Vec<String> {
    pods.retain(|pod| namespace.is_none_or(|namespace| pod.namespace == namespace));
    let is = |pod: &PodStatus, asked: &str| match asked.split_once('/') {
        Some((namespace, name)) => pod.namespace == namespace && pod.name == name,
        None => pod.name == asked,
    };
    let missing = asked.iter().filter(|asked| !pods.iter().any(|pod| is(pod, asked))).cloned().collect();
    if !asked.is_empty() {
        pods.retain(|pod| asked.iter().any(|asked| is(pod, asked)));
    }
    missing
}

/// One line per pod, the columns as wide as their widest cell.
fn table(pods: &[PodStatus]) -> String {
    let head = ["NAMESPACE", "POD", "WANTED", "STATE", "SINCE", "REASON"].map(str::to_owned);
    let rows = pods.iter().map(|pod| {
        let off = if pod.kept_off { " (kept off the network)" } else { "" };
        let reason = format!("{}{off}", pod.reason);
        let cells = [&pod.namespace, &pod.name, &pod.wanted, &pod.state, &pod.since, &reason];
        cells.map(|cell| cell.clone())
    });
    let rows: Vec<[String; 6]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(width).collect();
    let line = |row: &[String; 6]| {
        let cells: String =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}   ")).collect();
        format!("{cells}{}\n", row[5])
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pods() -> Vec<PodStatus> {
        let pod = |namespace: &str, name: &str, state: &str, kept_off: bool| {
            json!({"namespace": namespace, "name": name, "uid": "u", "wanted": "captured", "state": state,
                "since": "2026-01-02T03:04:05Z", "reason": "because", "kept_off": kept_off})
        };
        let all = json!([
            pod("bank", "web", "captured", false),
            pod("shop", "db-0", "failed", true),
            pod("shop", "web", "captured", false),
        ]);
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn the_table_is_aligned_and_says_why() {
        let expected = "\
NAMESPACE   POD    WANTED     STATE      SINCE                  REASON
bank        web    captured   captured   2026-01-02T03:04:05Z   because
shop        db-0   captured   failed     2026-01-02T03:04:05Z   because (kept off the network)
shop        web    captured   captured   2026-01-02T03:04:05Z   because
";
        assert_eq!(table(&pods()), expected);
        assert_eq!(table(&[]), "NAMESPACE   POD   WANTED   STATE   SINCE   REASON\n");
    }

    #[track_caller]
    fn check(asked: &[&str], namespace: Option<&str>, expected: &[&str], missing: &[&str]) {
        let mut pods = pods();
        let asked: Vec<String> = asked.iter().map(|&pod| pod.to_owned()).collect();
        assert_eq!(select(&mut pods, &asked, namespace), missing);
        let left: Vec<String> = pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
        assert_eq!(left, expected);
    }

    #[test]
    fn pods_are_selected_by_name_and_namespace() {
        check(&[], None, &["bank/web", "shop/db-0", "shop/web"], &[]);
        check(&[], Some("bank"), &["bank/web"], &[]);
        check(&["web"], None, &["bank/web", "shop/web"], &[]);
        check(&["web"], Some("shop"), &["shop/web"], &[]);
        check(&["shop/web", "ghost"], None, &["shop/web"], &["ghost"]);
        check(&["db-0"], Some("bank"), &[], &["db-0"]);
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

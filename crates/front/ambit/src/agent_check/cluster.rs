//! The cluster's API server: whether it answers, knows the node, and lets the agent do what it does.

use super::{Finding, Level, bad, fine};
use crate::cli;
use crate::kubeconfig::connect;
use ambit_api::core::v1::Node;
use anyhow::{Context as _, Result, anyhow};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::time::Duration;

/// Time for one answer of the API server.
const DEADLINE: Duration = Duration::from_secs(5);
const SUBJECT: &str = "API server";
/// Path of the question what one may do oneself.
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// Whatever the agent asks for: verb, resource, subresource, and what does not work without.
const NEEDED: [(&str, &str, &str, &str); 6] = [
    ("list", "pods", "", "no pod can be captured"),
    ("watch", "pods", "", "no pod can be captured"),
    ("list", "namespaces", "", "no pod can be captured"),
    ("watch", "namespaces", "", "no pod can be captured"),
    ("patch", "pods", "status", "the control plane does not learn which pods are captured"),
    ("create", "events", "", "nobody is told of pods that are not captured"),
];

/// Asks the API server, as the agent with these settings would.
pub(super) async fn check(args: &cli::Agent) -> Vec<Finding> {
    let given = args.connection.kubeconfig.is_some();
    let client = match connect(args.connection.kubeconfig.as_deref()).await {
        Ok(client) => client,
        // The check may run before the cluster is there.
        Err(error) => {
            let level = if given { Level::Fail } else { Level::Warn };
            return vec![bad(
                level,
                SUBJECT,
                format!("{error:#}"),
                "the agent needs a cluster: set --kubeconfig",
            )];
        }
    };
    match within(client.apiserver_version()).await {
        Ok(version) => {
            let mut findings = vec![fine(SUBJECT, format!("answers, version {}", version.git_version))];
            findings.extend(node(&client, args.node_name.as_deref()).await);
            findings.extend(permissions(&client).await);
            findings
        }
        Err(error) => {
            let remedy =
                "check the server's address in the kubeconfig, and the way to it from the node's network";
            vec![bad(Level::Fail, SUBJECT, format!("{error:#}"), remedy)]
        }
    }
}

async fn within<T>(answer: impl Future<Output = Result<T, kube::Error>>) -> Result<T> {
    let late = || anyhow!("it did not answer within {} s", DEADLINE.as_secs());
    tokio::time::timeout(DEADLINE, answer)
        .await
        .map_err(|_| late())?
        .context("it does not answer as it should")
}

/// Nothing where the agent's user may not ask: the agent itself does not.
async fn node(client: &Client, name: Option<&str>) -> Option<Finding> {
    const SUBJECT: &str = "node";
    let Some(name) = name else {
        return Some(bad(Level::Fail, SUBJECT, "its name is not known", "set --node-name or NODE_NAME"));
    };
    match within(Api::<Node>::all(client.clone()).get_opt(name)).await {
        Ok(Some(_)) => Some(fine(SUBJECT, format!("{name} is known"))),
        Ok(None) => {
            let found = format!("the cluster has no node {name}: the agent would see no pods");
            Some(bad(Level::Fail, SUBJECT, found, "set --node-name to its name (kubectl get nodes)"))
        }
        Err(_) => None,
    }
}

async fn permissions(client: &Client) -> Vec<Finding> {
    const SUBJECT: &str = "permissions";
    let mut findings = Vec::new();
    for (verb, resource, subresource, consequence) in NEEDED {
        let resource_and_part =
            if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
        match may(client, (verb, resource, subresource)).await {
            Ok(true) => {}
            Ok(false) => {
                let found = format!("may not {verb} {resource_and_part}: {consequence}");
                let remedy = "bind the agent's account to the rules of examples/agent/daemonset.yaml";
                findings.push(bad(Level::Fail, SUBJECT, found, remedy));
            }
            Err(error) => {
                let found = format!("whether it may {verb} {resource_and_part} is not known: {error:#}");
                findings.push(bad(Level::Warn, SUBJECT, found, "check the agent's roles by hand"));
            }
        }
    }
    if findings.is_empty() { vec![fine(SUBJECT, "all that the agent needs")] } else { findings }
}

async fn may(client: &Client, (verb, resource, subresource): (&str, &str, &str)) -> Result<bool> {
    let question = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": verb, "resource": resource, "subresource": subresource}},
    });
    let request = http::Request::post(REVIEWS).header("Content-Type", "application/json");
    let request = request.body(serde_json::to_vec(&question)?)?;
    let answer: Value = within(client.request(request)).await?;
    answer["status"]["allowed"].as_bool().context("its answer has no status.allowed")
}

//! The capture state of pods of any node, through the API server.

use super::DEADLINE;
use ambit_agent::{Annotated, NodeStatus, PODS_PATH, PodStatus};
use ambit_api::core::v1::{Event, Namespace, Pod};
use ambit_names::port;
use anyhow::{Context as _, Result, anyhow, bail};
use futures::{StreamExt, stream};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use serde::Serialize;
use std::collections::BTreeMap;

/// Agents asked at once. Each answer waits for a connection of the API server to a node.
const ASKED_AT_ONCE: usize = 8;
/// Objects per page of a list. Unit: objects. Source: the default of kubectl.
const PAGE: u32 = 500;
/// Label of agents' pods: the field's chart gives both, `ambit up` the second.
const AGENT_LABELS: [&str; 2] = ["k8s-app", "app"];
/// Its value.
const AGENT: &str = "istio-cni-node";
/// Component that writes the agents' events.
const REPORTER: &str = "ambit-agent";

/// The pods of one node.
#[derive(Debug, Serialize)]
pub(super) struct NodeReport {
    /// The node.
    pub(super) node: String,
    /// Who says so.
    #[serde(flatten)]
    pub(super) source: Source,
    /// Its pods.
    pub(super) pods: Vec<PodStatus>,
}

/// Who tells of the pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "source", rename_all = "lowercase")]
pub(super) enum Source {
    /// The node's agent.
    Agent,
    /// The pods' annotations and events: the agent could not be asked.
    Annotations {
        /// Why not.
        because: String,
    },
}

/// Asks for the pods of a node, or of all.
///
/// # Errors
/// The API server does not answer, or there is no such node with pods.
pub(super) async fn ask(client: &Client, node: Option<&str>) -> Result<Vec<NodeReport>> {
    let pods = list::<Pod>(Api::all(client.clone())).await.context("cannot list the pods")?;
    let namespaces =
        list::<Namespace>(Api::all(client.clone())).await.context("cannot list the namespaces")?;
    let mut nodes: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    for pod in pods {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        if let Some(name) = name.filter(|name| node.is_none_or(|node| node == name)) {
            nodes.entry(name).or_default().push(pod);
        }
    }
    if let Some(node) = node.filter(|_| nodes.is_empty()) {
        bail!("no pod runs on a node {node:?}: is that its name? (kubectl get nodes)");
    }
    let asking = nodes.into_iter().map(|(node, pods)| report(client, node, pods, &namespaces));
    Ok(stream::iter(asking).buffered(ASKED_AT_ONCE).collect().await)
}

async fn report(client: &Client, node: String, pods: Vec<Pod>, namespaces: &[Namespace]) -> NodeReport {
    let because = match ask_agent(client, &pods).await {
        Ok(status) if status.node == node => {
            return NodeReport { node, source: Source::Agent, pods: status.pods };
        }
        Ok(status) => format!("it answers for another node, {}", status.node),
        Err(error) => format!("{error:#}"),
    };
    let annotated = Annotated::default();
    let mut statuses = Vec::new();
    for pod in &pods {
        let namespace =
            namespaces.iter().find(|namespace| Some(&namespace.name_any()) == pod.namespace().as_ref());
        let mut status = annotated.status(pod, namespace);
        if status.is_amiss()
            && let Some(why) = last_event(client, &status).await
        {
            status.reason = why;
        }
        statuses.push(status);
    }
    statuses.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    NodeReport { node, source: Source::Annotations { because }, pods: statuses }
}

/// Asks the agent among these pods, through the API server's proxy.
async fn ask_agent(client: &Client, pods: &[Pod]) -> Result<NodeStatus> {
    let is_agent =
        |pod: &&Pod| AGENT_LABELS.iter().any(|label| pod.labels().get(*label).is_some_and(|v| v == AGENT));
    let agent = pods.iter().find(is_agent).ok_or_else(|| anyhow!("no pod of an agent runs there"))?;
    let (namespace, name) = (agent.namespace().unwrap_or_default(), agent.name_any());
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{}/proxy{PODS_PATH}", port::AGENT_HEALTH);
    let request = http::Request::get(path).body(Vec::new())?;
    match tokio::time::timeout(DEADLINE, client.request::<NodeStatus>(request)).await {
        Ok(answer) => answer.with_context(|| format!("the API server does not reach pod {namespace}/{name}")),
        Err(_) => bail!("pod {namespace}/{name} did not answer within {} s", DEADLINE.as_secs()),
    }
}

/// What the agent said last of a pod. Nothing depends on it, so that a failure is no answer.
async fn last_event(client: &Client, pod: &PodStatus) -> Option<String> {
    let of_pod = ListParams::default().limit(PAGE).fields(&format!("involvedObject.uid={}", pod.uid));
    let events = Api::<Event>::namespaced(client.clone(), &pod.namespace);
    let listed = tokio::time::timeout(DEADLINE, events.list(&of_pod)).await.ok()?.ok()?;
    let by_agent =
        listed.items.into_iter().filter(|event| event.reporting_component.as_deref() == Some(REPORTER));
    by_agent.max_by_key(|event| event.last_timestamp.clone()).and_then(|event| event.message)
}

/// All objects, page by page.
async fn list<K>(api: Api<K>) -> Result<Vec<K>>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let (mut objects, mut page) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let listed = api.list(&page).await?;
        objects.extend(listed.items);
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(objects),
        }
    }
}

//! Whether an agent that is asked to stop is replaced, or removed for good: its DaemonSet tells.
//!
//! In the first case everything stays in place, so that no pod starts past the mesh meanwhile. In the second the node must not be left with
//! a plugin that waits for an agent that never comes: no pod would start on it any more.

use crate::cli::SetName;
use ambit_api::apps::v1::DaemonSet;
use anyhow::{Result, anyhow};
use kube::{Api, Client};
use std::time::Duration;

/// Time for one answer, and for the pause before the second question. Both questions fit well into the time between SIGTERM and
/// SIGKILL.
const DEADLINE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(500);

/// What the API server says of the set.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    /// It is there.
    There,
    /// It is being deleted.
    Going,
    /// It is not there.
    Gone,
    /// The agent's account, or its rights, are not there any more.
    Refused(u16),
    /// Nothing that could be relied on.
    Unclear(String),
}

/// The set to which this agent belongs.
pub(crate) struct Watched {
    client: Client,
    set: SetName,
}

impl Watched {
    /// Takes note of the set, which must be there: what is not known at the start cannot be missed at the end.
    ///
    /// # Errors
    /// It is not there, or the agent may not read it.
    pub(crate) async fn new(client: Client, set: SetName) -> Result<Self> {
        let watched = Self { client, set };
        let SetName { namespace, name } = &watched.set;
        match watched.ask_twice().await {
            Answer::There | Answer::Going => Ok(watched),
            Answer::Gone => Err(anyhow!("--removed-with names no DaemonSet: there is no {namespace}/{name}")),
            Answer::Refused(_) => Err(anyhow!(
                "the agent may not read the DaemonSet {namespace}/{name} of --removed-with: give its role the verb get for it"
            )),
            Answer::Unclear(problem) => {
                Err(anyhow!("cannot read the DaemonSet {namespace}/{name} of --removed-with: {problem}"))
            }
        }
    }

    /// Whether the agent is removed for good. In doubt it is not: a plugin too many stops pods, one too few lets them pass by the
    /// mesh.
    pub(crate) async fn is_removed(&self) -> bool {
        let answer = self.ask_twice().await;
        let removed = is_removal(&answer);
        tracing::info!(namespace = %self.set.namespace, name = %self.set.name, ?answer, removed, "asked for the agent's DaemonSet");
        removed
    }

    async fn ask_twice(&self) -> Answer {
        match self.ask().await {
            Answer::Unclear(_) => {
                tokio::time::sleep(PAUSE).await;
                self.ask().await
            }
            answer => answer,
        }
    }

    async fn ask(&self) -> Answer {
        let sets = Api::<DaemonSet>::namespaced(self.client.clone(), &self.set.namespace);
        match tokio::time::timeout(DEADLINE, sets.get(&self.set.name)).await {
            Ok(Ok(set)) if set.metadata.deletion_timestamp.is_some() => Answer::Going,
            Ok(Ok(_)) => Answer::There,
            Ok(Err(kube::Error::Api(status))) => match status.code {
                // A server, or something before it, that does not know the path says 404 as well.
                404 if status.reason == "NotFound" && names(&status, &self.set.name) => Answer::Gone,
                code @ (401 | 403) => Answer::Refused(code),
                code => Answer::Unclear(format!("{code}: {}", status.message)),
            },
            Ok(Err(error)) => Answer::Unclear(format!("{:#}", anyhow::Error::from(error))),
            Err(_) => Answer::Unclear(format!("no answer within {} s", DEADLINE.as_secs())),
        }
    }
}

fn names(status: &kube::core::Status, name: &str) -> bool {
    status.details.as_ref().is_some_and(|details| details.name == name && details.kind == "daemonsets")
}

/// A package manager takes account and roles away together with the set, which then cannot be read any more.
fn is_removal(answer: &Answer) -> bool {
    match answer {
        Answer::Going | Answer::Gone | Answer::Refused(_) => true,
        Answer::There | Answer::Unclear(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// A client whose server gives these answers one after the other, and then none.
    async fn answering(answers: Vec<(u16, Value)>) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move {
            for (code, body) in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let body = body.to_string();
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap()
    }

    fn set() -> SetName {
        "istio-system/istio-cni-node".parse().unwrap()
    }

    fn found(deleted: bool) -> (u16, Value) {
        let metadata = match deleted {
            true => json!({"name": "istio-cni-node", "deletionTimestamp": "2026-01-01T00:00:00Z"}),
            false => json!({"name": "istio-cni-node"}),
        };
        (200, json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata}))
    }

    fn status(code: u16, reason: &str, details: Value) -> (u16, Value) {
        (
            code,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "m", "reason": reason,
            "code": code, "details": details}),
        )
    }

    #[track_caller]
    fn check(answers: Vec<(u16, Value)>, expected: bool) -> impl Future<Output = ()> {
        let shown = format!("{answers:?}");
        async move {
            let watched = Watched { client: answering(answers).await, set: set() };
            assert_eq!(watched.is_removed().await, expected, "{shown}");
        }
    }

    #[tokio::test]
    async fn only_a_set_that_is_gone_or_going_removes_its_agents() {
        let gone = || {
            status(404, "NotFound", json!({"name": "istio-cni-node", "kind": "daemonsets", "group": "apps"}))
        };
        check(vec![found(false)], false).await;
        check(vec![found(true)], true).await;
        check(vec![gone()], true).await;
        check(vec![status(401, "Unauthorized", json!({}))], true).await;
        check(vec![status(403, "Forbidden", json!({}))], true).await;
        // What says nothing of the set: asked again, and then left as it is.
        let path = || status(404, "NotFound", json!({}));
        check(vec![path(), path()], false).await;
        check(vec![status(500, "InternalError", json!({})), gone()], true).await;
        check(vec![status(503, "ServiceUnavailable", json!({})), found(false)], false).await;
        check(vec![], false).await;
    }

    #[tokio::test]
    async fn a_set_that_cannot_be_read_at_the_start_is_an_error() {
        let start = async |answer| {
            Watched::new(answering(vec![answer]).await, set()).await.err().map(|e| e.to_string())
        };
        assert_eq!(start(found(false)).await, None);
        let gone = status(404, "NotFound", json!({"name": "istio-cni-node", "kind": "daemonsets"}));
        assert!(start(gone).await.unwrap().contains("there is no istio-system/istio-cni-node"));
        let refused = start(status(403, "Forbidden", json!({}))).await.unwrap();
        assert!(refused.contains("give its role the verb get"), "{refused}");
    }
}

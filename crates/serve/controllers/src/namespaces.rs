//! Runs the namespace life-cycle.

use crate::claims;
use crate::error::{Attempt, Error, unless_gone};
use crate::namespace_contents;
use crate::views::Views;
use ambit_api::core::v1::{Namespace, NamespaceStatus};
use ambit_kube::{Change, Next, Queue};
use ambit_runtime::{Clock, Shutdown};
use ambit_workloads::namespace::{self, Step};
use kube::ResourceExt;
use kube::api::Api;
use std::time::Duration;

/// Name of this controller in field ownership.
const MANAGER: &str = "namespace-controller";
/// How soon to look again whether what is being deleted has gone.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub(crate) struct Namespaces {
    views: Views,
    /// Names of namespaces.
    queue: Queue<String>,
}

impl Namespaces {
    pub(crate) fn new(views: &Views, workers: usize) -> Self {
        let queue: Queue<String> = views.queue("namespaces", workers);
        views.namespaces.on_change({
            let queue = queue.clone();
            move |change: &Change<Namespace>| {
                if change.new.as_ref().is_some_and(|namespace| namespace::plan(namespace) == Step::Empty) {
                    queue.add(change.latest().name_any());
                }
            }
        });
        Self { views: views.clone(), queue }
    }

    pub(crate) async fn run(&self, stop: &Shutdown) {
        self.queue.run(|name| self.sync(name), stop).await;
    }

    async fn sync(&self, name: String) -> Result<Next, Error> {
        let api: Api<Namespace> = Api::all(self.views.client.clone());
        // Several writes follow one another: each builds on the answer to the one before.
        let Some(namespace) = api.get_opt(&name).await.attempt("read namespace", &name)? else {
            return Ok(Next::Done);
        };
        if namespace::plan(&namespace) == Step::Leave {
            return Ok(Next::Done);
        }
        let found = namespace_contents::delete(&self.views.client, &name).await;
        let conditions = namespace::conditions(&namespace, &found, Clock.timestamp());
        let status = NamespaceStatus { phase: Some("Terminating".to_owned()), conditions: Some(conditions) };
        let namespace = if namespace.status.as_ref() == Some(&status) {
            namespace
        } else {
            let updated = Namespace { status: Some(status), ..namespace };
            let answer = api.replace_status(&name, &claims::post(MANAGER), &updated).await;
            let Some(updated) = unless_gone(answer).attempt("write the status of namespace", &name)? else {
                return Ok(Next::Done);
            };
            updated
        };
        if !found.is_empty() {
            tracing::debug!(namespace = name, left = ?found.objects, failures = ?found.failures, "emptying a namespace");
            return Ok(Next::After(LOOK_AGAIN));
        }
        let finalized = namespace::finalized(&namespace);
        let answer = api.replace_subresource("finalize", &name, &claims::post(MANAGER), &finalized).await;
        unless_gone(answer).attempt("finalize namespace", &name)?;
        tracing::info!(namespace = name, "emptied a namespace and let it go");
        Ok(Next::Done)
    }
}

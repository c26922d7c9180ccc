//! Keeps the rules of cluster roles that take up others equal to those of their parts.

use crate::claims;
use crate::error::{Attempt, Error, unless_gone};
use crate::views::Views;
use ambit_api::rbac::v1::ClusterRole;
use ambit_kube::{Change, Next, Queue};
use ambit_runtime::Shutdown;
use ambit_workloads::cluster_role;
use kube::ResourceExt;
use kube::api::Api;
use std::sync::Arc;

pub(crate) struct ClusterRoles {
    views: Views,
    /// Names of roles that take up others.
    queue: Queue<String>,
}

impl ClusterRoles {
    pub(crate) fn new(views: &Views, workers: usize) -> Self {
        let queue: Queue<String> = views.queue("cluster roles", workers);
        views.cluster_roles.on_change({
            let (queue, roles) = (queue.clone(), views.cluster_roles.clone());
            move |_: &Change<ClusterRole>| {
                // Any role may be a part of any aggregate, by its old labels or its new ones.
                let aggregates = roles.list().into_iter().filter(|role| role.aggregation_rule.is_some());
                aggregates.for_each(|role| queue.add(role.name_any()));
            }
        });
        Self { views: views.clone(), queue }
    }

    pub(crate) async fn run(&self, stop: &Shutdown) {
        self.queue.run(|name| self.sync(name), stop).await;
    }

    async fn sync(&self, name: String) -> Result<Next, Error> {
        let all = self.views.cluster_roles.list();
        let Some(role) = self.views.cluster_roles.get(None, &name) else { return Ok(Next::Done) };
        if let Some(rules) = cluster_role::plan(&role, all.iter().map(Arc::as_ref)) {
            let role = ClusterRole { rules: Some(rules), ..(*role).clone() };
            let api: Api<ClusterRole> = Api::all(self.views.client.clone());
            let answer = api.replace(&name, &claims::post("clusterrole-aggregation-controller"), &role).await;
            unless_gone(answer).attempt("aggregate the rules of cluster role", &name)?;
        }
        Ok(Next::Done)
    }
}

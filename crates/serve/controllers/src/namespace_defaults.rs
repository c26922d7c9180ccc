//! Keeps the default ServiceAccount and the root certificate in every namespace.

use crate::claims;
use crate::error::{Attempt, Error, is_namespace_terminating, unless_exists, unless_gone};
use crate::views::Views;
use ambit_api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use ambit_kube::{Change, Next, Queue};
use ambit_runtime::Shutdown;
use ambit_workloads::{root_ca, service_account};
use kube::ResourceExt;
use kube::api::Api;

pub(crate) struct NamespaceDefaults {
    views: Views,
    root_ca_pem: String,
    /// Names of namespaces.
    queue: Queue<String>,
}

impl NamespaceDefaults {
    pub(crate) fn new(views: &Views, workers: usize, root_ca_pem: String) -> Self {
        let queue: Queue<String> = views.queue("namespace defaults", workers);
        views.namespaces.on_change({
            let queue = queue.clone();
            move |change: &Change<Namespace>| queue.add(change.latest().name_any())
        });
        views.service_accounts.on_change({
            let queue = queue.clone();
            move |change: &Change<ServiceAccount>| queue.add(change.latest().namespace().unwrap_or_default())
        });
        views.root_cas.on_change({
            let queue = queue.clone();
            move |change: &Change<ConfigMap>| queue.add(change.latest().namespace().unwrap_or_default())
        });
        Self { views: views.clone(), root_ca_pem, queue }
    }

    pub(crate) async fn run(&self, stop: &Shutdown) {
        self.queue.run(|name| self.sync(name), stop).await;
    }

    async fn sync(&self, name: String) -> Result<Next, Error> {
        let Some(namespace) = self.views.namespaces.get(None, &name) else { return Ok(Next::Done) };
        let account = self.views.service_accounts.get(Some(&name), service_account::NAME);
        if let Some(account) = service_account::plan(&namespace, account.as_deref()) {
            let api: Api<ServiceAccount> = Api::namespaced(self.views.client.clone(), &name);
            let answer = api.create(&claims::post("service-account-controller"), &account).await;
            created(answer).attempt("create the default service account of", &name)?;
        }
        let map = self.views.root_cas.get(Some(&name), root_ca::NAME);
        let api: Api<ConfigMap> = Api::namespaced(self.views.client.clone(), &name);
        let params = claims::post("root-ca-cert-publisher");
        match root_ca::plan(&namespace, map.as_deref(), &self.root_ca_pem) {
            Some(root_ca::Write::Create(map)) => {
                created(api.create(&params, &map).await).attempt("publish the root certificate to", &name)?;
            }
            Some(root_ca::Write::Replace(map)) => {
                let answer = api.replace(root_ca::NAME, &params, &map).await;
                unless_gone(answer).attempt("restore the root certificate of", &name)?;
            }
            None => {}
        }
        Ok(Next::Done)
    }
}

/// The view may lag: what exists already is as good, and a namespace that has gone or is going needs nothing.
fn created<T>(answer: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match unless_exists(answer) {
        Err(error) if is_namespace_terminating(&error) || ambit_kube::is_not_found(&error) => Ok(()),
        other => other.map(drop),
    }
}

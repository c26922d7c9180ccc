//! Deletes whatever is in a namespace, kind by kind, and counts what is left.

use crate::error::unless_gone;
use ambit_workloads::namespace::Contents;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, ResourceExt};
use kube::core::PartialObjectMeta;
use kube::discovery::{ApiCapabilities, ApiResource, Discovery, Scope, verbs};
use std::time::Duration;

/// Time for one request: the server holds a collection's delete until every object has been taken care of.
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

/// Deletes pods first and, once none is left, everything else: what a pod uses stays until it has stopped.
/// Source: upstream's ordered namespace deletion (KEP-5080).
pub(crate) async fn delete(client: &Client, namespace: &str) -> Contents {
    let mut found = Contents::default();
    let kinds = match within(Discovery::new(client.clone()).run()).await {
        Ok(discovery) => kinds(&discovery),
        Err(error) => {
            found.discovery_failure = Some(error);
            return found;
        }
    };
    let (pods, others): (Vec<_>, Vec<_>) =
        kinds.into_iter().partition(|(kind, _)| kind.group.is_empty() && kind.plural == "pods");
    for (kind, capabilities) in &pods {
        delete_kind(client, namespace, kind, capabilities, &mut found).await;
    }
    if found.is_empty() {
        for (kind, capabilities) in &others {
            delete_kind(client, namespace, kind, capabilities, &mut found).await;
        }
    }
    found
}

/// Namespaced kinds that can be listed and deleted.
fn kinds(discovery: &Discovery) -> Vec<(ApiResource, ApiCapabilities)> {
    let all = discovery.groups().flat_map(kube::discovery::ApiGroup::recommended_resources);
    let fits = |capabilities: &ApiCapabilities| {
        capabilities.scope == Scope::Namespaced
            && [verbs::LIST, verbs::DELETE].iter().all(|verb| capabilities.supports_operation(verb))
    };
    all.filter(|(_, capabilities)| fits(capabilities)).collect()
}

async fn delete_kind(
    client: &Client,
    namespace: &str,
    kind: &ApiResource,
    capabilities: &ApiCapabilities,
    found: &mut Contents,
) {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, kind);
    let name = format!("{}.{}", kind.plural, kind.group);
    let listed = |list: Result<kube::core::ObjectList<PartialObjectMeta<DynamicObject>>, String>| {
        list.map(|list| list.items)
    };
    let before = listed(within(api.list_metadata(&ListParams::default())).await);
    let outcome = match before {
        Ok(objects) if objects.is_empty() => return,
        Ok(objects) => delete_objects(&api, capabilities, &objects).await,
        Err(error) => Err(error),
    };
    if let Err(error) = outcome {
        found.failures.push(format!("{name}: {error}"));
    }
    match listed(within(api.list_metadata(&ListParams::default())).await) {
        Ok(left) => count(&name, &left, found),
        Err(error) => found.failures.push(format!("{name}: {error}")),
    }
}

async fn delete_objects(
    api: &Api<DynamicObject>,
    capabilities: &ApiCapabilities,
    objects: &[PartialObjectMeta<DynamicObject>],
) -> Result<(), String> {
    let params = DeleteParams::background();
    if capabilities.supports_operation(verbs::DELETE_COLLECTION) {
        return within(api.delete_collection(&params, &ListParams::default())).await.map(drop);
    }
    for object in objects.iter().filter(|object| object.metadata.deletion_timestamp.is_none()) {
        within(async { unless_gone(api.delete(&object.name_any(), &params).await) }).await?;
    }
    Ok(())
}

fn count(kind: &str, left: &[PartialObjectMeta<DynamicObject>], found: &mut Contents) {
    if left.is_empty() {
        return;
    }
    found.objects.insert(kind.to_owned(), left.len());
    for finalizer in left.iter().flat_map(ResourceExt::finalizers) {
        *found.finalizers.entry(finalizer.clone()).or_default() += 1;
    }
}

/// Bounds a request; errors become the text that the namespace's conditions show.
async fn within<T>(work: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match tokio::time::timeout(REQUEST_DEADLINE, work).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s", REQUEST_DEADLINE.as_secs())),
    }
}

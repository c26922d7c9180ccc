//! Admission: what the cluster adds to and refuses of objects that are well-formed in themselves.

mod address;
mod default_class;
mod definition;
mod job;
mod limit_range;
mod namespace;
mod node_port;
mod pod;
mod priority;
mod secret;
mod service_account;

use crate::cluster::Cluster;
use crate::etcd::Unchanged;
use crate::request::text;
use crate::status::{Answer, Failure};
use ambit_schema::ResourceType;
use serde_json::Value;
use tokio::sync::MutexGuard;

pub(crate) use definition::{CLEANUP, instances_of};

/// What must hold until the admitted object is written.
pub(crate) type Held<'a> = Option<Turn<'a>>;

/// A turn at choosing something that no two objects may have.
pub(crate) struct Turn<'a> {
    _lock: MutexGuard<'a, ()>,
    /// What the choice was made from.
    pub(crate) unchanged: Unchanged,
}

/// Admits a new object, completing it.
pub(crate) async fn create<'a>(
    cluster: &'a Cluster,
    kind: &ResourceType,
    value: &mut Value,
) -> Answer<Held<'a>> {
    if kind.is_namespaced() {
        namespace::check_open(cluster, kind, value)?;
    }
    match (&*kind.group, &*kind.kind) {
        ("", "Namespace") => namespace::complete_new(value),
        ("", "Pod") => {
            pod::request_limits(value);
            limit_range::admit_pod(cluster, kind, value)?;
            priority::resolve(cluster, kind, value)?;
            service_account::attach(cluster, value).await?;
            pod::complete_new(value);
        }
        ("", "Secret") => secret::fold_string_data(value),
        ("", "PersistentVolumeClaim") => {
            limit_range::check_claim(cluster, kind, value)?;
            default_class::of_claim(cluster, value);
        }
        ("networking.k8s.io", "Ingress") => default_class::of_ingress(cluster, value),
        ("batch", "Job") => job::complete_new(value),
        ("", "Service") => return address::allocate(cluster, kind, value, None).await,
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition::accept(cluster, kind, value)?,
        _ if kind.is_custom() => definition::check_open(cluster, kind, value)?,
        _ => {}
    }
    Ok(None)
}

/// Admits a changed object, completing it. `by_client`: the write is to the object itself, not to a part of it.
pub(crate) async fn update<'a>(
    cluster: &'a Cluster,
    kind: &ResourceType,
    new: &mut Value,
    old: &Value,
    by_client: bool,
) -> Answer<Held<'a>> {
    match (&*kind.group, &*kind.kind) {
        ("", "Namespace") => namespace::complete(new),
        ("", "Secret") => secret::fold_string_data(new),
        ("", "PersistentVolumeClaim") if by_client => limit_range::check_claim(cluster, kind, new)?,
        ("", "Service") if by_client => return address::allocate(cluster, kind, new, Some(old)).await,
        ("apiextensions.k8s.io", "CustomResourceDefinition") if by_client => {
            definition::complete_names(new);
            if new["spec"] != old["spec"] {
                definition::accept(cluster, kind, new)?;
            }
        }
        _ => {}
    }
    Ok(None)
}

/// The refusal of an object as such, with the words of upstream's admission plugins.
fn forbidden(kind: &ResourceType, value: &Value, why: &str) -> Failure {
    let name = match text(value, "/metadata/name") {
        "" => text(value, "/metadata/generateName"),
        name => name,
    };
    Failure::forbidden(format!("{} {name:?} is forbidden: {why}", kind.group_resource())).about(kind, name)
}

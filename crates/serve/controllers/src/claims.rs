//! Carries out which objects a controller takes and lets go of, and says in whose name it writes.

use crate::error::{Attempt, Error, unless_gone};
use ambit_api::meta::OwnerReference;
use ambit_workloads::ownership;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::fmt::Debug;
use std::sync::Arc;

/// Parameters of a create or replace by the controller of that name.
pub(crate) fn post(manager: &str) -> PostParams {
    PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() }
}

/// Parameters of a patch by the controller of that name.
pub(crate) fn patch(manager: &str) -> PatchParams {
    PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() }
}

/// A kind in namespaces, known at compile time.
pub(crate) trait Kind:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned
{
}

impl<K> Kind for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned
{
}

/// Takes and lets go of objects on behalf of their owner.
pub(crate) struct Claimant<'a, O> {
    pub(crate) client: &'a Client,
    pub(crate) manager: &'static str,
    pub(crate) owner: &'a O,
}

impl<O: Kind> Claimant<'_, O> {
    /// Takes these objects, unless the owner has gone.
    pub(crate) async fn adopt<K: Kind>(&self, objects: &[Arc<K>]) -> Result<(), Error> {
        if objects.is_empty() || !self.owner_still_exists().await? {
            return Ok(());
        }
        let kind = (O::api_version(&()), O::kind(&()));
        for object in objects {
            let mut owners = object.owner_references().to_vec();
            owners.push(ownership::controller_reference(&kind.0, &kind.1, self.owner.meta()));
            self.write_owners(object.as_ref(), owners).await.attempt("adopt", object.name_any())?;
        }
        Ok(())
    }

    /// Lets go of these objects.
    pub(crate) async fn release<K: Kind>(&self, objects: &[Arc<K>]) -> Result<(), Error> {
        for object in objects {
            let mut owners = object.owner_references().to_vec();
            owners.retain(|owner| Some(&owner.uid) != self.owner.meta().uid.as_ref());
            let answer = self.write_owners(object.as_ref(), owners).await;
            unless_gone(answer).attempt("release", object.name_any())?;
        }
        Ok(())
    }

    /// Nobody may adopt for an owner that has gone in the meantime: the objects would be deleted with it.
    async fn owner_still_exists(&self) -> Result<bool, Error> {
        let name = self.owner.name_any();
        let live = self.api::<O>().get_metadata_opt(&name).await.attempt("read", &name)?;
        Ok(live.is_some_and(|live| {
            live.metadata.uid == self.owner.meta().uid && live.metadata.deletion_timestamp.is_none()
        }))
    }

    /// Writes owner references if the object is still the one, and the version, that was decided about.
    async fn write_owners<K: Kind>(&self, object: &K, owners: Vec<OwnerReference>) -> Result<K, kube::Error> {
        let meta = object.meta();
        let change = json!({"metadata": {
            "uid": meta.uid, "resourceVersion": meta.resource_version, "ownerReferences": owners}});
        self.api::<K>().patch(&object.name_any(), &patch(self.manager), &Patch::Merge(change)).await
    }

    fn api<K: Kind>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.owner.namespace().unwrap_or_default())
    }
}

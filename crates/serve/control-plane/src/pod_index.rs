//! Which service accounts run on which node.

use ambit_api::slim::Pod;
use ambit_kube::{Change, Informer};
use ambit_names::spiffe::Identity;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A service account on a node: node, namespace, account.
type Place = (String, String, String);

/// Counts pods by node and service account. Clones share one state.
#[derive(Clone)]
pub(crate) struct PodIndex {
    pods: Informer<Pod>,
    places: Arc<Mutex<HashMap<Place, usize>>>,
}

impl PodIndex {
    /// Follows the informer from now on.
    pub(crate) fn follow(pods: Informer<Pod>) -> Self {
        let places = Arc::new(Mutex::new(HashMap::new()));
        let shared = places.clone();
        pods.on_change(move |change: &Change<Pod>| {
            let mut places = shared.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(place) = change.old.as_deref().and_then(place) {
                let count = places.get_mut(&place).map(|count| {
                    *count -= 1;
                    *count
                });
                if count == Some(0) {
                    places.remove(&place);
                }
            }
            if let Some(place) = change.new.as_deref().and_then(place) {
                *places.entry(place).or_insert(0) += 1;
            }
        });
        Self { pods, places }
    }

    /// The pod of that name.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods.get(Some(namespace), name)
    }

    /// Whether some pod of this identity's account is on the node.
    pub(crate) fn runs_on(&self, identity: &Identity, node: &str) -> bool {
        let place = (node.to_owned(), identity.namespace().to_owned(), identity.service_account().to_owned());
        self.places.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&place)
    }
}

/// Where a pod runs, unless it has failed or is not placed yet.
fn place(pod: &Pod) -> Option<Place> {
    let spec = pod.spec.as_ref()?;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let node = spec.node_name.clone().filter(|node| !node.is_empty() && phase != Some("Failed"))?;
    Some((node, pod.metadata.namespace.clone()?, account(pod).to_owned()))
}

/// The service account of a pod.
pub(crate) fn account(pod: &Pod) -> &str {
    let named = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    named.filter(|name| !name.is_empty()).unwrap_or("default")
}

//! The pod's annotation that tells everyone its capture state.

use crate::Error;
use ambit_api::core::v1::Pod;
use ambit_names::annotation::REDIRECTION;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use std::time::Duration;

/// Time for one write to the API server.
const DEADLINE: Duration = Duration::from_secs(5);

/// Writes the annotation (none removes it) to the pod with this UID. A pod that is gone needs none.
pub(crate) async fn annotate(
    client: &kube::Client,
    (namespace, name, uid): (&str, &str, &str),
    value: Option<&str>,
) -> Result<(), Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = || format!("{namespace}/{name}");
    // The UID makes the server refuse the write for a namesake that came later.
    let patch = json!({"metadata": {"uid": uid, "annotations": { REDIRECTION: value.map(Value::from) }}});
    let parameters = PatchParams::default();
    let patch = Patch::Merge(&patch);
    let write = pods.patch_status(name, &parameters, &patch);
    match tokio::time::timeout(DEADLINE, write).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(e)) if value.is_none() && is_other_pod(&e) => Ok(()),
        Ok(Err(source)) => Err(Error::Annotate { pod: pod(), source: Box::new(source) }),
        Err(_) => Err(Error::Deadline { what: format!("annotating pod {}", pod()), limit: DEADLINE }),
    }
}

/// Whether the pod is gone, or another one has its name.
fn is_other_pod(error: &kube::Error) -> bool {
    ambit_kube::is_not_found(error) || ambit_kube::is_conflict(error)
}

//! Priorities of pods: the number behind the name of a class. Source: kubernetes plugin/pkg/admission/priority.

use super::forbidden;
use crate::cluster::Cluster;
use crate::request::text;
use crate::status::Answer;
use ambit_schema::ResourceType;
use serde_json::Value;

const CLASSES: &str = "scheduling.k8s.io/priorityclasses";

/// Fills in priority and preemption of a new pod from its class, or from the default one.
pub(super) fn resolve(cluster: &Cluster, kind: &ResourceType, pod: &mut Value) -> Answer<()> {
    let name = text(pod, "/spec/priorityClassName").to_owned();
    let class = match name.as_str() {
        "" => {
            let defaults =
                cluster.values(CLASSES, None).into_iter().filter(|class| class["globalDefault"] == true);
            defaults.min_by_key(|class| class["value"].as_i64())
        }
        name => {
            let class = cluster.object(CLASSES, "", name).map(|class| class.value());
            let missing = || forbidden(kind, pod, &format!("no PriorityClass with name {name} was found"));
            Some(class.ok_or_else(missing)?)
        }
    };
    let value = class.as_ref().map_or(0, |class| class["value"].as_i64().unwrap_or_default());
    let given = pod["spec"]["priority"].as_i64();
    // The default of a pod without a class is what it gets anyway.
    if given.is_some_and(|given| given != value && !(name.is_empty() && given == 0)) {
        let why = format!(
            "the integer value of priority ({}) must not be provided in pod spec; priority admission controller computed \
             {value} from the given PriorityClass name",
            given.unwrap_or_default()
        );
        return Err(forbidden(kind, pod, &why));
    }
    let spec = &mut pod["spec"];
    if let Some(class) = &class {
        spec["priorityClassName"] = class["metadata"]["name"].clone();
        spec["preemptionPolicy"] = class["preemptionPolicy"].clone();
    }
    spec["priority"] = value.into();
    Ok(())
}

//! Pods: the status they begin with.

use serde_json::{Value, json};

/// A new pod.
pub(super) fn complete_new(value: &mut Value) {
    for list in ["containers", "initContainers"] {
        for container in containers_mut(value, list) {
            requests_from_limits(container);
        }
    }
    value["status"] = json!({"phase": "Pending", "qosClass": qos_class(&value["spec"])});
}

/// The containers of a list that may be absent (indexing would put a null there).
pub(super) fn containers_mut<'a>(pod: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

/// A limit without a request is a request too. Source: core/v1 SetDefaults_Pod.
fn requests_from_limits(container: &mut Value) {
    let Some(limits) = container["resources"]["limits"].as_object().cloned() else { return };
    for (resource, limit) in limits {
        if container["resources"]["requests"].get(&resource).is_none() {
            container["resources"]["requests"][resource] = limit;
        }
    }
}

/// Source: core/v1 helper/qos ComputePodQOS.
fn qos_class(spec: &Value) -> &'static str {
    let lists = [&spec["containers"], &spec["initContainers"]];
    let containers: Vec<&Value> = lists.into_iter().filter_map(Value::as_array).flatten().collect();
    let amount = |c: &Value, what: &str, resource: &str| c["resources"][what].get(resource).cloned();
    let any = |c: &&Value| {
        ["cpu", "memory"]
            .iter()
            .any(|r| amount(c, "limits", r).is_some() || amount(c, "requests", r).is_some())
    };
    let all = |c: &&Value| {
        ["cpu", "memory"].iter().all(|r| {
            let limit = amount(c, "limits", r);
            limit.is_some() && limit == amount(c, "requests", r)
        })
    };
    match containers {
        ref c if !c.iter().any(any) => "BestEffort",
        ref c if c.iter().all(all) => "Guaranteed",
        _ => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(resources: &[Value], expected: &str) {
        let containers: Vec<Value> = resources.iter().map(|r| json!({"resources": r})).collect();
        let mut pod = json!({"spec": {"containers": containers}});
        complete_new(&mut pod);
        assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": expected}));
    }

    #[test]
    fn the_quality_of_service_follows_requests_and_limits() {
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        check(&[json!({})], "BestEffort");
        check(std::slice::from_ref(&full), "Guaranteed");
        check(&[full, json!({})], "Burstable");
        check(&[json!({"requests": {"cpu": "1"}})], "Burstable");
        check(&[json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}})], "Burstable");
    }
}

//! Pods: what they are given beside what they ask for, and the status they begin with.

use serde_json::{Value, json};

/// Taints of a node that does not answer; how long a pod stays on one unless it says otherwise. Source: kubernetes
/// plugin/pkg/admission/defaulttolerationseconds.
const AWAY: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
const AWAY_SECONDS: u32 = 300;

/// A limit without a request is a request too.
pub(super) fn request_limits(value: &mut Value) {
    for list in ["containers", "initContainers"] {
        for container in containers_mut(value, list) {
            requests_from_limits(container);
        }
    }
}

/// A new pod whose resources are known.
pub(super) fn complete_new(value: &mut Value) {
    tolerate_absence(value);
    value["status"] = json!({"phase": "Pending", "qosClass": qos_class(&value["spec"])});
}

/// The containers of a list that may be absent (indexing would put a null there).
pub(super) fn containers_mut<'a>(pod: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

fn tolerate_absence(value: &mut Value) {
    let mut tolerations = value["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    let is = |field: &Value, text: &str| field.as_str().is_none_or(|own| own.is_empty() || own == text);
    for taint in AWAY {
        let is_tolerated = |own: &Value| is(&own["key"], taint) && is(&own["effect"], "NoExecute");
        if !tolerations.iter().any(is_tolerated) {
            tolerations.push(json!({
                "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": AWAY_SECONDS,
            }));
        }
    }
    value["spec"]["tolerations"] = tolerations.into();
}

/// Source: core/v1 SetDefaults_Pod.
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
        request_limits(&mut pod);
        complete_new(&mut pod);
        assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": expected}));
    }

    #[test]
    fn a_pod_stays_for_a_while_on_a_node_that_is_away() {
        let given = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
        let check = |own: Value, expected: &[Value]| {
            let mut pod = json!({"spec": {"tolerations": own.clone(), "containers": []}});
            complete_new(&mut pod);
            assert_eq!(pod["spec"]["tolerations"].as_array().unwrap(), expected, "{own}");
        };
        check(Value::Null, &AWAY.map(given));
        let all = json!({"operator": "Exists"});
        check(json!([all]), std::slice::from_ref(&all));
        let one =
            json!({"key": AWAY[0], "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5});
        check(json!([one]), &[one.clone(), given(AWAY[1])]);
        let other = json!({"key": AWAY[0], "operator": "Exists", "effect": "NoSchedule"});
        check(json!([other]), &[other.clone(), given(AWAY[0]), given(AWAY[1])]);
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

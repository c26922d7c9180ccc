use serde_json::{Value, json};

use super::*;

#[track_caller]
fn check_exceeded(item: &Value, resources: &Value, expected: &[&str]) {
    let mut wrong = Vec::new();
    let of = |what: &str| quantities(&resources[what]);
    exceeded(item, [&of("requests"), &of("limits")], &mut wrong);
    assert_eq!(wrong, expected, "{item} {resources}");
}

#[test]
fn containers_are_given_what_they_do_not_ask_for() {
    let item = json!({"default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "500m"}});
    let mut pod = json!({"spec": {
        "containers": [{"name": "a"}, {"name": "b", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2", "memory": "1Mi"}}}],
        "initContainers": [{"name": "i", "resources": {"limits": {"cpu": "3"}}}],
    }});
    let given = give(&item, &mut pod);
    assert_eq!(
        given,
        [
            "cpu request for container a",
            "cpu, memory limit for container a",
            "cpu request for init container i",
            "memory limit for init container i",
        ]
    );
    let resources = json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "1Gi"}});
    assert_eq!(pod["spec"]["containers"][0]["resources"], resources);
    let kept = json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2", "memory": "1Mi"}});
    assert_eq!(pod["spec"]["containers"][1]["resources"], kept);
}

#[test]
fn what_is_beyond_the_bounds_is_told() {
    let item = json!({"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "1"}});
    check_exceeded(&item, &json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1000m"}}), &[]);
    check_exceeded(
        &item,
        &json!({"requests": {"cpu": "99m"}, "limits": {"cpu": "2"}}),
        &[
            "minimum cpu usage per Container is 100m, but request is 99m",
            "maximum cpu usage per Container is 1, but limit is 2",
        ],
    );
    check_exceeded(
        &item,
        &json!({}),
        &[
            "minimum cpu usage per Container is 100m.  No request is specified",
            "maximum cpu usage per Container is 1.  No limit is specified",
        ],
    );
    let ratio = json!({"type": "Container", "maxLimitRequestRatio": {"memory": "2"}});
    let memory =
        |request: &str, limit: &str| json!({"requests": {"memory": request}, "limits": {"memory": limit}});
    check_exceeded(&ratio, &memory("1Gi", "2Gi"), &[]);
    check_exceeded(
        &ratio,
        &memory("1Gi", "3Gi"),
        &["memory max limit to request ratio per Container is 2, but provided ratio is 3.000000"],
    );
    check_exceeded(
        &ratio,
        &memory("0", "3Gi"),
        &[
            "memory max limit to request ratio per Container is 2, but no request is specified or request is 0",
        ],
    );
}

#[test]
fn a_pod_asks_for_what_it_needs_at_its_busiest() {
    let asks = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let pod = json!({"spec": {
        "containers": [{"resources": asks("1")}, {"resources": asks("1500m")}],
        "initContainers": [
            {"resources": asks("1"), "restartPolicy": "Always"},
            {"resources": asks("3")},
        ],
    }});
    let requests = of_pod(&pod, "requests");
    assert_eq!(requests["cpu"].to_string(), "4");
    assert_eq!(of_pod(&pod, "limits"), Amounts::new());
}

use serde_json::{Value, json};

use crate::{Catalog, FieldValidation, parse_yaml};

/// Applies the JSON merge patch to the object and validates the outcome as an update.
#[track_caller]
fn check((group, plural): (&str, &str), object: &str, patch: &Value, expected: &[&str]) {
    let catalog = Catalog::builtin();
    let of = catalog.resource(group, "v1", plural).unwrap();
    let mut old = of.decode(parse_yaml(object).unwrap(), FieldValidation::Strict).unwrap().object;
    of.default(&mut old);
    let mut new = old.clone();
    merge(&mut new, patch);
    of.default(&mut new);
    let faults: Vec<_> = of.validate_update(&new, &old).iter().map(ToString::to_string).collect();
    let first_lines: Vec<_> = faults.iter().map(|fault| fault.lines().next().unwrap_or_default()).collect();
    assert_eq!(first_lines, expected);
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let map = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key).or_insert(Value::Null), value);
        }
    }
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default, finalizers: [a/b]}
spec: {containers: [{name: a, image: a}], tolerations: [{key: k, operator: Exists}], activeDeadlineSeconds: 9}";

#[test]
fn pods() {
    const ALLOWED: &str = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
    let pods = ("", "pods");
    let container = |image: &str, name: &str| {
        json!([{"name": name, "image": image, "imagePullPolicy": "Always", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}])
    };
    check(pods, POD, &json!({"metadata": {"labels": {"a": "b"}}}), &[]);
    check(pods, POD, &json!({"spec": {"containers": container("b", "a")}}), &[]);
    check(pods, POD, &json!({"spec": {"containers": container("a", "z")}}), &[ALLOWED]);
    check(pods, POD, &json!({"spec": {"activeDeadlineSeconds": 8}}), &[]);
    let longer =
        "spec.activeDeadlineSeconds: Invalid value: 10: must be less than or equal to previous value";
    check(pods, POD, &json!({"spec": {"activeDeadlineSeconds": 10}}), &[longer]);
    check(pods, POD, &json!({"spec": {"nodeName": "n1"}}), &[ALLOWED]);
    check(
        pods,
        POD,
        &json!({"spec": {"tolerations": [{"key": "k", "operator": "Exists"}, {"key": "l", "operator": "Exists"}]}}),
        &[],
    );
    check(
        pods,
        POD,
        &json!({"spec": {"tolerations": []}}),
        &[
            "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds",
        ],
    );
    let more = json!([{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]);
    let counts = "spec.containers: Forbidden: pod updates may not add or remove containers";
    check(pods, POD, &json!({"spec": {"containers": more}}), &[counts]);
}

#[test]
fn metadata() {
    let pods = ("", "pods");
    check(
        pods,
        POD,
        &json!({"metadata": {"name": "other", "uid": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        &[
            "metadata.name: Invalid value: \"other\": field is immutable",
            "metadata.uid: Invalid value: \"x\": field is immutable",
            "metadata.deletionTimestamp: Invalid value: \"2026-01-01T00:00:00Z\": field is immutable; delete the object to set it",
        ],
    );
    let deleting = POD.replace("finalizers", "deletionTimestamp: \"2026-01-01T00:00:00Z\", finalizers");
    check(pods, &deleting, &json!({"metadata": {"finalizers": []}}), &[]);
    let added = "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers [\"c/d\"]";
    check(pods, &deleting, &json!({"metadata": {"finalizers": ["a/b", "c/d"]}}), &[added]);
    check(pods, POD, &json!({"metadata": {"finalizers": ["a/b", "c/d"]}}), &[]);
    let large = "x".repeat(256 * 1024);
    let too_long = "metadata.annotations: Too long: may not be more than 262144 bytes";
    check(pods, POD, &json!({"metadata": {"annotations": {"a": large}}}), &[too_long]);
}

#[test]
fn services() {
    let service = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{port: 80}]}";
    let services = ("", "services");
    check(services, service, &json!({"spec": {"selector": {"a": "b"}}}), &[]);
    check(
        services,
        service,
        &json!({"spec": {"clusterIP": "10.96.0.2", "clusterIPs": ["10.96.0.2"]}}),
        &["spec.clusterIPs[0]: Invalid value: [\"10.96.0.2\"]: may not change once set"],
    );
    let external = json!({"spec": {"type": "ExternalName", "externalName": "a.b", "clusterIP": null, "clusterIPs": null}});
    check(services, service, &external, &[]);
}

#[test]
fn workloads() {
    let deployment = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b, c: d}}, spec: {containers: [{name: a, image: a}]}}}";
    let of = ("apps", "deployments");
    check(of, deployment, &json!({"spec": {"replicas": 0, "paused": true}}), &[]);
    let immutable =
        "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\",\"c\":\"d\"}}: field is immutable";
    check(of, deployment, &json!({"spec": {"selector": {"matchLabels": {"c": "d"}}}}), &[immutable]);
    check(
        of,
        deployment,
        &json!({"spec": {"strategy": {"type": "Recreate"}}}),
        &["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"],
    );
}

#[test]
fn immutable_data() {
    let secret = "
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: default}
immutable: true
data: {a: eA==}";
    let secrets = ("", "secrets");
    check(secrets, secret, &json!({"metadata": {"labels": {"a": "b"}}}), &[]);
    check(
        secrets,
        secret,
        &json!({"data": {"a": "eQ=="}, "immutable": false, "type": "other"}),
        &[
            "type: Invalid value: \"other\": field is immutable",
            "immutable: Forbidden: field is immutable when `immutable` is set",
            "data: Forbidden: field is immutable when `immutable` is set",
        ],
    );
    let mutable = secret.replace("immutable: true\n", "");
    check(secrets, &mutable, &json!({"stringData": {"a": "z"}}), &[]);
}

#[test]
fn definitions() {
    let definition = include_str!("../../testdata/gadgets.crd.yaml");
    let of = ("apiextensions.k8s.io", "customresourcedefinitions");
    check(of, definition, &json!({"spec": {"scope": "Cluster"}}), &[]);
    let established = format!(
        "{definition}\nstatus: {{storedVersions: [v1, v0], conditions: [{{type: Established, status: \"True\"}}]}}"
    );
    check(
        of,
        &established,
        &json!({"spec": {"scope": "Cluster"}}),
        &[
            "spec.scope: Invalid value: \"Cluster\": field is immutable",
            "status.storedVersions: Invalid value: \"v0\": \"v0\" must remain in spec.versions while objects may be stored in it",
        ],
    );
}

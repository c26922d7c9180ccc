//! Every kind that discovery names is served: made, read in each form, changed and deleted.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod cluster;

use cluster::{TestCluster, object, refused};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::discovery::{Discovery, Scope, verbs};
use serde_json::{Value, json};

/// What a minimal object of a kind has beside its name.
fn minimal(kind: &str) -> Value {
    let pods =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let job = json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}});
    let selector = json!({"matchLabels": {"a": "b"}});
    match kind {
        "Namespace"
        | "ConfigMap"
        | "Secret"
        | "ServiceAccount"
        | "Endpoints"
        | "Node"
        | "Lease"
        | "Role"
        | "PodDisruptionBudget"
        | "ClusterRole" => json!({}),
        "Pod" => {
            json!({"spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}})
        }
        "Service" => json!({"spec": {"ports": [{"port": 80}]}}),
        "Event" => json!({"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}}),
        "PersistentVolume" => {
            json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/v"}}})
        }
        "PersistentVolumeClaim" => json!({"spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}),
        "PodTemplate" => json!({"template": pods}),
        "ReplicationController" => json!({"spec": {"selector": {"a": "b"}, "template": pods}}),
        "Deployment" | "ReplicaSet" | "DaemonSet" => {
            json!({"spec": {"selector": selector, "template": pods}})
        }
        "StatefulSet" => json!({"spec": {"serviceName": "s", "selector": selector, "template": pods}}),
        "ControllerRevision" => json!({"revision": 1, "data": {"a": 1}}),
        "HorizontalPodAutoscaler" => json!({"spec": {"maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}}),
        "Job" => json!({"spec": job}),
        "CronJob" => json!({"spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": job}}}),
        "Ingress" => json!({"spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}}),
        "IngressClass" => json!({"spec": {"controller": "example.com/c"}}),
        "NetworkPolicy" => json!({"spec": {"podSelector": {}}}),
        "EndpointSlice" => json!({"addressType": "IPv4", "endpoints": []}),
        "RoleBinding" | "ClusterRoleBinding" => json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole", "name": "view"}}),
        "LimitRange" => json!({"spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}}),
        "PriorityClass" => json!({"value": 7}),
        "RuntimeClass" => json!({"handler": "runc"}),
        "StorageClass" => json!({"provisioner": "example.com/p"}),
        "CSIDriver" | "DeviceClass" => json!({"spec": {}}),
        "CSINode" => json!({"spec": {"drivers": []}}),
        "CSIStorageCapacity" => json!({"storageClassName": "s"}),
        "VolumeAttachment" => {
            json!({"spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "v"}}})
        }
        "VolumeAttributesClass" => json!({"driverName": "example.com/d", "parameters": {"a": "b"}}),
        "FlowSchema" => json!({"spec": {"priorityLevelConfiguration": {"name": "p"}}}),
        "PriorityLevelConfiguration" => json!({"spec": {"type": "Exempt"}}),
        "ResourceClaim" => json!({"spec": {}}),
        "ResourceClaimTemplate" => json!({"spec": {"spec": {}}}),
        "ResourceSlice" => json!({"spec": {"driver": "d", "nodeName": "n",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}}),
        "CustomResourceDefinition" => json!({"spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "xs", "singular": "x", "kind": "X", "listKind": "XList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}}),
        other => panic!("no minimal object of {other} is given in this test"),
    }
}

async fn text(client: &kube::Client, path: &str, accept: &str) -> String {
    let request = http::Request::get(path).header(http::header::ACCEPT, accept).body(Vec::new()).unwrap();
    client.request_text(request).await.unwrap_or_else(|e| panic!("{path} as {accept}: {e}"))
}

#[tokio::test]
async fn every_kind_is_made_read_in_each_form_changed_and_deleted() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let account = json!({"metadata": {"name": "default"}});
    let accounts: Api<ambit_api::core::v1::ServiceAccount> = Api::default_namespaced(client.clone());
    accounts.create(&PostParams::default(), &object(account)).await.unwrap();
    let discovery = Discovery::new(client.clone()).run().await.unwrap();
    let mut served = 0;
    for group in discovery.groups() {
        for (of, capabilities) in group.recommended_resources() {
            // Reviews and bindings are answered, not kept.
            if !capabilities.supports_operation(verbs::LIST) {
                continue;
            }
            served += 1;
            let api: Api<DynamicObject> = match capabilities.scope {
                Scope::Namespaced => Api::default_namespaced_with(client.clone(), &of),
                Scope::Cluster => Api::all_with(client.clone(), &of),
            };
            let name = if of.kind == "CustomResourceDefinition" { "xs.example.com" } else { "minimal" };
            let mut wanted = minimal(&of.kind);
            wanted["apiVersion"] = of.api_version.clone().into();
            wanted["kind"] = of.kind.clone().into();
            wanted["metadata"] = json!({"name": name});
            if of.group == "events.k8s.io" {
                continue;
            }
            let kind = of.kind.as_str();
            let made = api
                .create(&PostParams::default(), &object(wanted))
                .await
                .unwrap_or_else(|e| panic!("{kind}: {e}"));
            assert_eq!(api.get(name).await.unwrap_or_else(|e| panic!("{kind}: {e}")), made, "{}", of.kind);
            let list = api.list(&ListParams::default()).await.unwrap_or_else(|e| panic!("{kind}: {e}"));
            assert!(list.items.iter().any(|of| of.metadata.name.as_deref() == Some(name)), "{}", of.kind);
            let namespace = matches!(capabilities.scope, Scope::Namespaced).then_some("default");
            let path = format!("{}/{name}", of_path(&of, namespace));
            let table = text(&client, &path, "application/json;as=Table;v=v1;g=meta.k8s.io").await;
            let table: Value = serde_json::from_str(&table).unwrap();
            let (columns, cells) = (&table["columnDefinitions"], &table["rows"][0]["cells"]);
            assert_eq!(
                columns.as_array().unwrap().len(),
                cells.as_array().unwrap().len(),
                "{}: {table}",
                of.kind
            );
            let yaml = text(&client, &path, "application/yaml").await;
            assert!(yaml.contains(&format!("kind: {}", of.kind)), "{yaml}");
            let labelled = json!({"metadata": {"labels": {"x": "y"}}});
            let patched = api
                .patch(name, &PatchParams::default(), &Patch::Merge(&labelled))
                .await
                .unwrap_or_else(|e| panic!("{kind}: {e}"));
            assert_ne!(patched.metadata.resource_version, made.metadata.resource_version, "{}", of.kind);
            let again = api
                .patch(name, &PatchParams::default(), &Patch::Merge(&labelled))
                .await
                .unwrap_or_else(|e| panic!("{kind}: {e}"));
            assert_eq!(
                again.metadata.resource_version, patched.metadata.resource_version,
                "{} of no change",
                of.kind
            );
            api.delete(name, &DeleteParams::default().grace_period(0))
                .await
                .unwrap_or_else(|e| panic!("{kind}: {e}"));
        }
    }
    assert!(served > 40, "{served} kinds are served");
}

fn of_path(of: &kube::api::ApiResource, namespace: Option<&str>) -> String {
    let root = if of.group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{}", of.api_version) };
    match namespace {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{}", of.plural),
        None => format!("{root}/{}", of.plural),
    }
}

#[tokio::test]
async fn an_eviction_takes_from_the_budget_of_its_pod_and_is_refused_without_one() {
    use ambit_api::core::v1::{Pod, ServiceAccount};
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    accounts.create(&PostParams::default(), &object(json!({"metadata": {"name": "default"}}))).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let merge = |patch: Value| Patch::Merge(patch);
    let params = PatchParams::default();
    for name in ["a", "b"] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": "x"}}, "spec": {
            "terminationGracePeriodSeconds": 0, "nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
        pods.create(&PostParams::default(), &object(pod)).await.unwrap();
        let ready =
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        pods.patch_status(name, &params, &merge(ready)).await.unwrap();
    }
    let kind = kube::api::ApiResource::from_gvk_with_plural(
        &kube::core::GroupVersionKind::gvk("policy", "v1", "PodDisruptionBudget"),
        "poddisruptionbudgets",
    );
    let budgets: Api<DynamicObject> = Api::default_namespaced_with(client, &kind);
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}});
    budgets.create(&PostParams::default(), &object(budget)).await.unwrap();
    // No controller has judged it yet.
    let told = refused(pods.evict("a", &kube::api::EvictParams::default()).await, 429);
    assert_eq!(told, "Cannot evict pod as it would violate the pod's disruption budget.");
    let judged = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}});
    budgets.patch_status("b", &params, &merge(judged)).await.unwrap();
    pods.evict("a", &kube::api::EvictParams::default()).await.unwrap();
    assert!(pods.get_opt("a").await.unwrap().is_none());
    let left = budgets.get("b").await.unwrap();
    assert_eq!(left.data["status"]["disruptionsAllowed"], 0);
    assert!(left.data["status"]["disruptedPods"]["a"].is_string());
    refused(pods.evict("b", &kube::api::EvictParams::default()).await, 429);
}

#[tokio::test]
async fn pods_get_their_priority_from_classes_and_jobs_their_selector() {
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let accounts: Api<ambit_api::core::v1::ServiceAccount> = Api::default_namespaced(client.clone());
    accounts.create(&PostParams::default(), &object(json!({"metadata": {"name": "default"}}))).await.unwrap();
    let pods: Api<DynamicObject> = Api::default_namespaced_with(
        client.clone(),
        &kube::api::ApiResource::erase::<ambit_api::core::v1::Pod>(&()),
    );
    let pod = |name: &str, class: Value| {
        object(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"priorityClassName": class, "containers": [{"name": "c", "image": "i"}]}}))
    };
    let create = PostParams::default();
    let critical = pods.create(&create, &pod("a", json!("system-node-critical"))).await.unwrap();
    assert_eq!(critical.data["spec"]["priority"], 2_000_001_000);
    let told = refused(pods.create(&create, &pod("b", json!("none"))).await, 403);
    assert!(told.ends_with("no PriorityClass with name none was found"), "{told}");
    let plain = pods.create(&create, &pod("c", Value::Null)).await.unwrap();
    assert_eq!(plain.data["spec"]["priority"], 0);
    let kind = kube::api::ApiResource::from_gvk_with_plural(
        &kube::core::GroupVersionKind::gvk("batch", "v1", "Job"),
        "jobs",
    );
    let jobs: Api<DynamicObject> = Api::default_namespaced_with(client, &kind);
    let mut job = minimal("Job");
    job["apiVersion"] = "batch/v1".into();
    job["kind"] = "Job".into();
    job["metadata"] = json!({"name": "j"});
    let made = jobs.create(&create, &object(job)).await.unwrap();
    let uid = made.metadata.uid.clone().unwrap();
    assert_eq!(made.data["spec"]["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"], uid);
    assert_eq!(made.data["spec"]["template"]["metadata"]["labels"]["job-name"], "j");
    assert_eq!(
        (&made.data["spec"]["completions"], &made.data["spec"]["backoffLimit"]),
        (&json!(1), &json!(6))
    );
    let another = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "other"}]}}}});
    let told = refused(jobs.patch("j", &PatchParams::default(), &Patch::Merge(another)).await, 422);
    assert!(told.contains("spec.template: Invalid value") && told.contains("field is immutable"), "{told}");
}

#[tokio::test]
async fn custom_resources_are_scaled_where_their_definition_says() {
    let cluster = TestCluster::in_memory().await;
    let erased = |group: &str, version: &str, kind: &str, plural: &str| {
        kube::api::ApiResource::from_gvk_with_plural(
            &kube::core::GroupVersionKind::gvk(group, version, kind),
            plural,
        )
    };
    let definitions: Api<DynamicObject> = Api::all_with(
        cluster.client(),
        &erased("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"),
    );
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "farms.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "farms", "singular": "farm", "kind": "Farm", "listKind": "FarmList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size.wanted",
                    "statusReplicasPath": ".status.size", "labelSelectorPath": ".status.selector"}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    });
    let create = PostParams::default();
    definitions.create(&create, &object(definition)).await.unwrap();
    let farms: Api<DynamicObject> =
        Api::default_namespaced_with(cluster.client(), &erased("example.com", "v1", "Farm", "farms"));
    let farm = json!({"apiVersion": "example.com/v1", "kind": "Farm", "metadata": {"name": "f"}});
    farms.create(&create, &object(farm)).await.unwrap();
    let status = json!({"status": {"size": 2, "selector": "app=farm"}});
    farms.patch_status("f", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let wanted = json!({"spec": {"replicas": 4}});
    farms.patch_scale("f", &PatchParams::default(), &Patch::Merge(wanted)).await.unwrap();
    let scale = farms.get_scale("f").await.unwrap();
    let (spec, status) = (scale.spec.unwrap(), scale.status.unwrap());
    assert_eq!((spec.replicas, status.replicas, status.selector.as_deref()), (Some(4), 2, Some("app=farm")));
    assert_eq!(farms.get("f").await.unwrap().data["spec"]["size"]["wanted"], 4);
}

#[tokio::test]
async fn node_ports_are_given_kept_and_given_up_with_the_type_of_the_service() {
    use ambit_api::core::v1::Service;
    let cluster = TestCluster::in_memory().await;
    let services: Api<Service> = Api::default_namespaced(cluster.client());
    let (create, params) = (PostParams::default(), PatchParams::default());
    let service = |name: &str, spec: Value| object(json!({"metadata": {"name": name}, "spec": spec}));
    let node_ports = |service: &Service| -> Vec<Option<i32>> {
        service.spec.as_ref().unwrap().ports.as_ref().unwrap().iter().map(|port| port.node_port).collect()
    };
    let ports = json!([{"name": "a", "port": 80}, {"name": "b", "port": 81, "nodePort": 30_100}]);
    let made =
        services.create(&create, &service("x", json!({"type": "NodePort", "ports": ports}))).await.unwrap();
    let given = node_ports(&made);
    assert!(
        given[0].is_some_and(|port| (30_000..=32_767).contains(&port)) && given[1] == Some(30_100),
        "{given:?}"
    );
    let taken = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_100}]});
    let told = refused(services.create(&create, &service("y", taken)).await, 422);
    assert!(
        told.contains("spec.ports[0].nodePort: Invalid value: 30100: provided port is already allocated"),
        "{told}"
    );
    let outside = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]});
    let told = refused(services.create(&create, &service("y", outside)).await, 422);
    assert!(told.contains("The range of valid ports is 30000-32767"), "{told}");
    // A change that does not name them keeps them; another type gives them up, for others to have.
    let patch = json!({"spec": {"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]}});
    let kept = services.patch("x", &params, &Patch::Merge(patch)).await.unwrap();
    assert_eq!(node_ports(&kept), given);
    let plain =
        services.patch("x", &params, &Patch::Merge(json!({"spec": {"type": "ClusterIP"}}))).await.unwrap();
    assert_eq!(node_ports(&plain), [None, None]);
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80, "nodePort": 30_100}]});
    let balanced = services.create(&create, &service("z", local)).await.unwrap();
    assert_eq!(node_ports(&balanced), [Some(30_100)]);
    assert!(balanced.spec.unwrap().health_check_node_port.is_some_and(|port| port != 30_100));
}

#[tokio::test]
async fn built_in_kinds_are_answered_in_protobuf_watches_included() {
    use ambit_schema::{GroupVersionKind, decode_protobuf};
    use http_body_util::BodyExt as _;
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let cluster = TestCluster::in_memory().await;
    let client = cluster.client();
    let path = "/api/v1/namespaces/default/configmaps";
    let send = |request: http::Request<kube::client::Body>| {
        let client = client.clone();
        async move { client.send(request).await.unwrap() }
    };
    let get = |path: &str| {
        http::Request::get(path).header("accept", PROTOBUF).body(kube::client::Body::empty()).unwrap()
    };
    let body = json!({"metadata": {"name": "m"}, "data": {"a": "b"}}).to_string().into_bytes();
    let create =
        http::Request::post(path).header("accept", PROTOBUF).header("content-type", "application/json");
    let made = send(create.body(body.into()).unwrap()).await;
    assert_eq!(
        (made.status().as_u16(), &made.headers()["content-type"]),
        (201, &http::HeaderValue::from_static(PROTOBUF))
    );
    let of = |kind: &str| GroupVersionKind::new("", "v1", kind);
    let bytes = made.into_body().collect().await.unwrap().to_bytes();
    let made = decode_protobuf(&bytes, &of("ConfigMap")).unwrap();
    let json: Value =
        serde_json::from_str(&text(&client, &format!("{path}/m"), "application/json").await).unwrap();
    assert_eq!(made, json);
    let list = send(get(path)).await.into_body().collect().await.unwrap().to_bytes();
    let list = decode_protobuf(&list, &of("ConfigMapList")).unwrap();
    assert_eq!((&list["kind"], &list["items"][0]["data"]), (&json!("ConfigMapList"), &json!({"a": "b"})));
    // A watch: frames of their length, each an event with the object's own form inside.
    let watch = send(get(&format!("{path}?watch=true&timeoutSeconds=1"))).await;
    assert_eq!(watch.headers()["content-type"], format!("{PROTOBUF};stream=watch"));
    let bytes = watch.into_body().collect().await.unwrap().to_bytes();
    let length = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
    let event = &bytes[4..4 + length];
    assert!(event.starts_with(b"\x0a\x05ADDED\x12"), "{event:?}");
    let inside = event.windows(4).position(|of| of == b"k8s\0").unwrap();
    assert_eq!(decode_protobuf(&event[inside..], &of("ConfigMap")).unwrap(), made);
    // Who takes nothing else is told what there is for custom resources and tables.
    let table = http::Request::get(path).header("accept", format!("{PROTOBUF};as=Table;v=v1;g=meta.k8s.io"));
    let refused = send(table.body(kube::client::Body::empty()).unwrap()).await;
    assert_eq!(refused.status().as_u16(), 406);
}

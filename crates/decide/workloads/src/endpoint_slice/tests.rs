use super::*;
use serde_json::{Value, json};

fn service(spec: Value) -> Service {
    let mut whole = json!({"selector": {"app": "web"}, "clusterIP": "10.96.0.9", "ipFamilies": ["IPv4"],
        "ports": [{"port": 80, "targetPort": 8080}]});
    for (key, value) in spec.as_object().expect("an object") {
        whole[key] = value.clone();
    }
    let service = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "svc",
        "labels": {"team": "x"}}, "spec": whole});
    serde_json::from_value(service).expect("a service")
}

fn pod(number: usize, ready: &str) -> Pod {
    let pod = json!({
        "metadata": {"name": format!("p{number}"), "namespace": "shop", "uid": format!("u{number}"),
                     "labels": {"app": "web"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "ports": [
            {"name": "http", "containerPort": 8000 + number % 2}]}]},
        "status": {"phase": "Running", "podIP": ip(number), "podIPs": [{"ip": ip(number)}],
                   "conditions": [{"type": "Ready", "status": ready}]},
    });
    serde_json::from_value(pod).expect("a pod")
}

fn ip(number: usize) -> String {
    format!("10.244.{}.{}", number / 200, number % 200 + 1)
}

fn nodes() -> Vec<Arc<Node>> {
    let node = json!({"metadata": {"name": "n", "labels": {ZONE_LABEL: "z1"}}});
    vec![Arc::new(serde_json::from_value(node).expect("a node"))]
}

fn plan_of(service: &Service, pods: &[Pod], slices: &[EndpointSlice]) -> Plan {
    let pods: Vec<Arc<Pod>> = pods.iter().cloned().map(Arc::new).collect();
    let slices: Vec<Arc<EndpointSlice>> = slices.iter().cloned().map(Arc::new).collect();
    plan(service, Surroundings { pods: &pods, nodes: &nodes(), slices: &slices })
}

/// Carries a plan out, as the server would.
fn applied(plan: Plan, slices: &[EndpointSlice]) -> Vec<EndpointSlice> {
    let name = |slice: &EndpointSlice| slice.metadata.name.clone();
    let gone: Vec<_> = plan.delete.iter().map(|slice| name(slice)).collect();
    let mut left: Vec<EndpointSlice> =
        slices.iter().filter(|slice| !gone.contains(&name(slice))).cloned().collect();
    for update in plan.update {
        let held = left.iter_mut().find(|slice| name(slice) == name(&update)).expect("it exists");
        *held = update;
    }
    for (index, mut created) in plan.create.into_iter().enumerate() {
        created.metadata.name =
            Some(format!("{}{}", created.metadata.generate_name.take().unwrap(), index + 1));
        left.push(created);
    }
    left
}

/// `expected`: per endpoint its address and which of ready, serving, terminating hold.
#[track_caller]
fn check(spec: Value, pods: &[Pod], expected: &[&str]) {
    let service = service(spec);
    let slices = applied(plan_of(&service, pods, &[]), &[]);
    let show = |endpoint: &Endpoint| {
        let conditions = endpoint.conditions.as_ref().expect("conditions");
        let flag = |set: Option<bool>, name: &str| {
            if set == Some(true) { format!(" {name}") } else { String::new() }
        };
        let flags = flag(conditions.ready, "ready") + &flag(conditions.serving, "serving");
        endpoint.addresses[0].clone() + &flags + &flag(conditions.terminating, "terminating")
    };
    let seen: Vec<String> = slices.iter().flat_map(|slice| slice.endpoints.iter().map(show)).collect();
    assert_eq!(seen, expected);
    assert!(plan_of(&service, pods, &slices).is_empty(), "a plan carried out leaves nothing to do");
}

#[test]
fn readiness_and_deletion_show_as_conditions() {
    check(json!({}), &[pod(0, "True"), pod(1, "False")], &["10.244.0.1 ready serving", "10.244.0.2"]);
    let mut leaving = pod(0, "True");
    leaving.metadata.deletion_timestamp = Some(ambit_api::meta::Time(jiff::Timestamp::UNIX_EPOCH));
    check(json!({}), &[leaving], &["10.244.0.1 serving terminating"]);
    check(json!({"publishNotReadyAddresses": true}), &[pod(1, "False")], &["10.244.0.2 ready"]);
    let mut ended = pod(0, "False");
    ended.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    let mut other = pod(1, "True");
    other.metadata.labels = None;
    let mut without_address = pod(2, "True");
    without_address.status = None;
    check(json!({}), &[ended, other, without_address], &[]);
}

#[test]
fn one_address_per_family() {
    let mut dual = pod(0, "True");
    let addresses = json!([{"ip": "10.244.0.1"}, {"ip": "fd00::1"}]);
    dual.status.as_mut().unwrap().pod_ips = Some(serde_json::from_value(addresses).unwrap());
    let both = json!({"ipFamilies": ["IPv4", "IPv6"]});
    check(both, std::slice::from_ref(&dual), &["10.244.0.1 ready serving", "fd00::1 ready serving"]);
    check(json!({"ipFamilies": ["IPv6"]}), &[dual], &["fd00::1 ready serving"]);
    check(json!({"ipFamilies": null, "clusterIP": "None"}), &[pod(0, "True")], &["10.244.0.1 ready serving"]);
}

#[test]
fn a_slice_names_its_service_owner_and_targets() {
    let slices = applied(plan_of(&service(json!({"clusterIP": "None"})), &[pod(0, "True")], &[]), &[]);
    let slice = serde_json::to_value(&slices[0]).unwrap();
    assert_eq!(
        slice["metadata"]["labels"],
        json!({"team": "x", "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": MANAGED_BY, HEADLESS_LABEL: ""})
    );
    assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "svc");
    assert_eq!(slice["ports"], json!([{"name": "", "protocol": "TCP", "port": 8080}]));
    let endpoint = &slice["endpoints"][0];
    assert_eq!((&endpoint["nodeName"], &endpoint["zone"]), (&json!("n"), &json!("z1")));
    let target = json!({"kind": "Pod", "namespace": "shop", "name": "p0", "uid": "u0"});
    assert_eq!(endpoint["targetRef"], target);
}

#[test]
fn a_pod_with_a_hostname_in_the_service_domain_shows_it() {
    let mut named = pod(0, "True");
    let spec = named.spec.as_mut().unwrap();
    (spec.hostname, spec.subdomain) = (Some("db-0".to_owned()), Some("web".to_owned()));
    let slices = applied(plan_of(&service(json!({})), std::slice::from_ref(&named), &[]), &[]);
    assert_eq!(slices[0].endpoints[0].hostname.as_deref(), Some("db-0"));
    named.spec.as_mut().unwrap().subdomain = Some("other".to_owned());
    let slices = applied(plan_of(&service(json!({})), &[named], &[]), &[]);
    assert_eq!(slices[0].endpoints[0].hostname, None);
}

#[test]
fn named_ports_are_resolved_per_pod_into_slices_of_their_own() {
    let service = service(json!({"ports": [{"name": "web", "port": 80, "targetPort": "http"}]}));
    let pods = [pod(0, "True"), pod(1, "True"), pod(2, "True")];
    let slices = applied(plan_of(&service, &pods, &[]), &[]);
    let mut seen: Vec<(i32, usize)> = slices
        .iter()
        .map(|slice| (slice.ports.as_ref().unwrap()[0].port.unwrap(), slice.endpoints.len()))
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, [(8000, 2), (8001, 1)]);
    assert!(plan_of(&service, &pods, &slices).is_empty());
}

#[test]
fn a_service_without_endpoints_shows_one_empty_slice() {
    let service = service(json!({}));
    let slices = applied(plan_of(&service, &[], &[]), &[]);
    assert_eq!((slices.len(), slices[0].endpoints.len()), (1, 0));
    assert!(plan_of(&service, &[], &slices).is_empty());
    // With the first endpoint it makes room, and it comes back with the last one gone.
    let slices = applied(plan_of(&service, &[pod(0, "True")], &slices), &slices);
    assert_eq!((slices.len(), slices[0].endpoints.len()), (1, 1));
    let slices = applied(plan_of(&service, &[], &slices), &slices);
    assert_eq!((slices.len(), slices[0].endpoints.len()), (1, 0));
}

#[test]
fn slices_stop_at_a_hundred_and_only_those_that_change_are_written() {
    let service = service(json!({}));
    let pods: Vec<Pod> = (0..250).map(|number| pod(number, "True")).collect();
    let slices = applied(plan_of(&service, &pods, &[]), &[]);
    assert_eq!(slices.iter().map(|slice| slice.endpoints.len()).collect::<Vec<_>>(), [100, 100, 50]);
    let plan = plan_of(&service, &pods[1..], &slices);
    assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));
    let plan = plan_of(&service, &pods[..50], &slices);
    let slices = applied(plan, &slices);
    assert_eq!(slices.iter().map(|slice| slice.endpoints.len()).sum::<usize>(), 50);
}

#[test]
fn slices_of_others_and_services_without_selector_are_left_alone() {
    let service = service(json!({}));
    let mut foreign = applied(plan_of(&service, &[], &[]), &[]).remove(0);
    foreign.metadata.labels.as_mut().unwrap().insert(label::SLICE_MANAGED_BY.to_owned(), "me".to_owned());
    let plan = plan_of(&service, &[], std::slice::from_ref(&foreign));
    assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (1, 0, 0));
    let mut manual = service.clone();
    manual.spec.as_mut().unwrap().selector = None;
    assert!(plan_of(&manual, &[pod(0, "True")], &[]).is_empty());
    let mut external = service;
    external.spec.as_mut().unwrap().type_ = Some("ExternalName".to_owned());
    assert!(plan_of(&external, &[pod(0, "True")], &[]).is_empty());
}

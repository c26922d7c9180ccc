use super::*;
use serde_json::{Value, json};

fn policy() -> Policy {
    Policy {
        system_namespace: "istio-system".into(),
        excluded_namespaces: BTreeSet::from(["kube-system".to_owned()]),
        selectors: None,
        dns: Dns::Captured,
        families: Families::Dual,
    }
}

fn pod(changes: Value) -> Pod {
    let mut pod = json!({"metadata": {"name": "p", "namespace": "shop"}});
    merge(&mut pod, changes);
    serde_json::from_value(pod).unwrap()
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

fn namespace(mode: Option<&str>) -> Namespace {
    let labels = mode.map(|mode| json!({ label::DATAPLANE_MODE: mode })).unwrap_or(json!({}));
    serde_json::from_value(json!({"metadata": {"name": "shop", "labels": labels}})).unwrap()
}

#[track_caller]
fn check(changes: Value, namespace: Option<&Namespace>, expected: Decision) {
    assert_eq!(decide(&pod(changes.clone()), namespace, &policy()), expected, "{changes}");
}

fn labelled(mode: &str) -> Value {
    json!({"metadata": {"labels": { label::DATAPLANE_MODE: mode }}})
}

#[test]
fn labels_decide_and_the_pod_s_goes_first() {
    let (plain, ambient, none) = (namespace(None), namespace(Some("ambient")), namespace(Some("none")));
    check(json!({}), Some(&plain), Decision::LeaveAlone(Reason::NotLabelled));
    check(json!({}), Some(&none), Decision::LeaveAlone(Reason::NotLabelled));
    check(json!({}), Some(&ambient), Decision::Capture(Reason::NamespaceLabel));
    check(labelled("ambient"), Some(&plain), Decision::Capture(Reason::PodLabel));
    check(labelled("ambient"), None, Decision::Capture(Reason::PodLabel));
    check(labelled("none"), Some(&ambient), Decision::LeaveAlone(Reason::PodLabelNone));
    check(labelled("none"), None, Decision::LeaveAlone(Reason::PodLabelNone));
    check(labelled("sidecar"), Some(&ambient), Decision::Capture(Reason::NamespaceLabel));
    check(labelled("sidecar"), Some(&plain), Decision::LeaveAlone(Reason::NotLabelled));
}

#[test]
fn an_unknown_namespace_decides_nothing() {
    check(json!({}), None, Decision::Unknown);
}

#[test]
fn some_pods_are_never_captured() {
    let ambient = namespace(Some("ambient"));
    let never = |changes: Value, reason| {
        let mut labelled = labelled("ambient");
        merge(&mut labelled, changes);
        check(labelled, Some(&ambient), Decision::LeaveAlone(reason));
    };
    never(json!({"spec": {"hostNetwork": true, "containers": []}}), Reason::HostNetwork);
    never(json!({"metadata": {"namespace": "kube-system"}}), Reason::ExcludedNamespace);
    never(json!({"metadata": {"annotations": { annotation::SIDECAR_STATUS: "" }}}), Reason::Sidecar);
    never(json!({"status": {"phase": "Succeeded"}}), Reason::Ended);
    never(json!({"status": {"phase": "Failed"}}), Reason::Ended);
    never(json!({"metadata": {"namespace": "istio-system", "labels": {"app": "ztunnel"}}}), Reason::Proxy);
    // A namesake elsewhere is an ordinary pod.
    let namesake = json!({"metadata": {"labels": {"app": "ztunnel"}}});
    check(namesake, Some(&ambient), Decision::Capture(Reason::NamespaceLabel));
    check(
        json!({"spec": {"hostNetwork": false, "containers": []}}),
        Some(&ambient),
        Decision::Capture(Reason::NamespaceLabel),
    );
}

#[test]
fn selectors_take_the_place_of_the_labels() {
    let list = json!([{"podSelector": {"matchLabels": {"mesh": "on"}}, "namespaceSelector": {"matchLabels": {"team": "a"}}}]);
    let policy = Policy { selectors: Some(Selectors::parse(&list).unwrap()), ..policy() };
    let team = |name: &str| -> Namespace {
        serde_json::from_value(json!({"metadata": {"name": "shop", "labels": {"team": name}}})).unwrap()
    };
    let (on, host) =
        (json!({"metadata": {"labels": {"mesh": "on"}}}), json!({"spec": {"hostNetwork": true}}));
    assert_eq!(decide(&pod(on.clone()), Some(&team("a")), &policy), Decision::Capture(Reason::Selected));
    assert_eq!(
        decide(&pod(on.clone()), Some(&team("b")), &policy),
        Decision::LeaveAlone(Reason::NotSelected)
    );
    assert_eq!(decide(&pod(on.clone()), None, &policy), Decision::Unknown);
    let unselected = decide(&pod(labelled("ambient")), Some(&team("a")), &policy);
    assert_eq!(unselected, Decision::LeaveAlone(Reason::NotSelected));
    let mut never = on;
    merge(&mut never, host);
    merge(&mut never, json!({"spec": {"containers": []}}));
    assert_eq!(decide(&pod(never), Some(&team("a")), &policy), Decision::LeaveAlone(Reason::HostNetwork));
}

#[test]
fn annotations_change_how_a_pod_is_captured() {
    let annotated =
        |annotations: Value| capture_of(&pod(json!({"metadata": {"annotations": annotations}})), &policy());
    assert_eq!(annotated(json!({})), (Capture::default(), vec![]));
    let (capture, faults) = annotated(json!({
        annotation::BYPASS_INBOUND: "T",
        annotation::DNS_CAPTURE: "false",
        annotation::REROUTE_INTERFACES: " tap0, ,tap1,",
    }));
    let expected = Capture {
        inbound: Inbound::Bypassed,
        dns: Dns::Untouched,
        families: Families::Dual,
        reroute_interfaces: vec!["tap0".into(), "tap1".into()],
        excluded: Excluded::default(),
    };
    assert_eq!((capture, faults), (expected, vec![]));
    let (capture, faults) =
        annotated(json!({ annotation::BYPASS_INBOUND: "yes", annotation::DNS_CAPTURE: "" }));
    assert_eq!((capture, faults.len()), (Capture::default(), 2));
    assert_eq!(
        faults[0],
        r#"annotation ambient.istio.io/bypass-inbound-capture is "yes": use "true" or "false""#
    );
}

#[test]
fn annotations_exclude_ports_and_networks_and_nothing_when_one_is_not_understood() {
    let annotated =
        |annotations: Value| capture_of(&pod(json!({"metadata": {"annotations": annotations}})), &policy());
    let (capture, faults) = annotated(json!({
        annotation::EXCLUDE_INBOUND_PORTS: "9090, 9091,",
        annotation::EXCLUDE_OUTBOUND_PORTS: "5432",
        annotation::EXCLUDE_OUTBOUND_RANGES: "192.0.2.0/24,2001:db8::1",
    }));
    let excluded = Excluded {
        inbound_ports: vec![9090, 9091],
        outbound_ports: vec![5432],
        outbound_nets: vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::1/128".parse().unwrap()],
    };
    assert_eq!((capture, faults), (Capture { excluded, ..Capture::default() }, vec![]));
    let many = vec!["1"; 101].join(",");
    for (name, text, told) in [
        (annotation::EXCLUDE_INBOUND_PORTS, "80,0", "\"0\": use ports from 1 to 65535"),
        (annotation::EXCLUDE_OUTBOUND_PORTS, "80-90", "\"80-90\": use ports"),
        (annotation::EXCLUDE_OUTBOUND_RANGES, "*", "\"*\": use networks such as 192.0.2.0/24"),
        (annotation::EXCLUDE_INBOUND_PORTS, &many, "101 entries: at most 100"),
    ] {
        let (capture, faults) = annotated(json!({ name: text }));
        assert_eq!(capture, Capture::default(), "{name}");
        assert!(faults.len() == 1 && faults[0].contains(name) && faults[0].contains(told), "{faults:?}");
    }
}

#[test]
fn addresses_are_canonical_and_single() {
    let status = json!({"status": {
        "podIP": "10.0.0.5",
        "podIPs": [{"ip": "10.0.0.5"}, {"ip": "::ffff:10.0.0.6"}, {"ip": "fd00::5"}, {"ip": "x"}],
    }});
    let expected: Vec<IpAddr> = ["10.0.0.5", "10.0.0.6", "fd00::5"].map(|text| text.parse().unwrap()).into();
    assert_eq!(addresses(&pod(status)), expected);
    assert!(addresses(&pod(json!({}))).is_empty());
}

const CAPTURE: Decision = Decision::Capture(Reason::PodLabel);
const LEAVE: Decision = Decision::LeaveAlone(Reason::NotLabelled);

#[track_caller]
fn check_plan(
    annotation: Option<&str>,
    address: Option<&str>,
    decision: Decision,
    known: Option<Known<'_>>,
    expected: Step,
) {
    let annotations = annotation.map(|value| json!({ annotation::REDIRECTION: value })).unwrap_or(json!({}));
    let pod = pod(json!({"metadata": {"annotations": annotations}, "status": {"podIP": address}}));
    assert_eq!(plan(&pod, decision, known), expected);
}

#[test]
fn only_differences_are_acted_on() {
    let address = Some("10.0.0.5");
    let here = ["10.0.0.5".parse().unwrap()];
    let elsewhere = ["10.0.0.6".parse().unwrap()];
    let known = |addresses, handed_over| Some(Known { addresses, handed_over });
    check_plan(None, address, CAPTURE, None, Step::Enroll);
    check_plan(Some("enabled"), address, CAPTURE, None, Step::Enroll);
    check_plan(Some("enabled"), address, CAPTURE, known(&here, true), Step::Rest);
    check_plan(Some("enabled"), address, CAPTURE, known(&here, false), Step::Enroll);
    check_plan(Some("enabled"), address, CAPTURE, known(&elsewhere, true), Step::Enroll);
    check_plan(Some("pending"), address, CAPTURE, known(&here, true), Step::Enroll);
    check_plan(None, address, CAPTURE, known(&here, true), Step::Enroll);
    check_plan(None, None, CAPTURE, None, Step::Rest);
    check_plan(None, address, LEAVE, None, Step::Rest);
    check_plan(Some("enabled"), address, LEAVE, None, Step::Release(Reason::NotLabelled));
    check_plan(Some("pending"), None, LEAVE, None, Step::Release(Reason::NotLabelled));
    check_plan(None, address, LEAVE, known(&here, false), Step::Release(Reason::NotLabelled));
    check_plan(Some("enabled"), address, Decision::Unknown, known(&here, true), Step::Rest);
    check_plan(Some("other"), address, CAPTURE, known(&here, true), Step::Enroll);
}

#[test]
fn a_static_pod_s_runtime_uid_is_the_hash_of_its_configuration() {
    let uid_of = |annotations: Value| {
        let pod = pod(json!({"metadata": {"uid": "u", "annotations": annotations}}));
        runtime_uid(&pod).to_owned()
    };
    assert_eq!(uid_of(json!({})), "u");
    assert_eq!(uid_of(json!({ annotation::MIRROR: "h", annotation::CONFIG_HASH: "h" })), "h");
    // Anybody may set the one annotation; only kubelet makes mirrors.
    assert_eq!(uid_of(json!({ annotation::CONFIG_HASH: "h" })), "u");
    assert_eq!(uid_of(json!({ annotation::MIRROR: "ambit" })), "u");
}

/// One row of the field's rules: whether the pod is to be captured, what happens to it while it is not, and while it is.
#[track_caller]
fn check_row(row: &str, changes: Value, mode: Option<&str>, expected: (Decision, Step, Step)) {
    let mut shown = json!({"status": {"podIP": "10.0.0.5"}});
    merge(&mut shown, changes);
    let decision = decide(&pod(shown.clone()), Some(&namespace(mode)), &policy());
    assert_eq!(decision, expected.0, "{row}");
    assert_eq!(plan(&pod(shown.clone()), decision, None), expected.1, "{row}, not captured yet");
    merge(
        &mut shown,
        json!({"metadata": {"annotations": { annotation::REDIRECTION: redirection::ENABLED }}}),
    );
    let addresses = ["10.0.0.5".parse().unwrap()];
    let known = Some(Known { addresses: &addresses, handed_over: true });
    assert_eq!(plan(&pod(shown), decision, known), expected.2, "{row}, captured");
}

#[test]
fn every_row_of_the_field_s_rules_decides_and_changes_what_is_captured() {
    let captured = |reason| (Decision::Capture(reason), Step::Enroll, Step::Rest);
    let left = |reason| (Decision::LeaveAlone(reason), Step::Rest, Step::Release(reason));
    let with = |more: Value| {
        let mut changes = labelled("ambient");
        merge(&mut changes, more);
        changes
    };
    let (ambient, spec) = (Some("ambient"), |more: Value| json!({ "spec": more }));
    let rows = [
        ("namespace labelled", json!({}), ambient, captured(Reason::NamespaceLabel)),
        ("neither labelled", json!({}), None, left(Reason::NotLabelled)),
        ("pod labelled", labelled("ambient"), None, captured(Reason::PodLabel)),
        ("pod objects", labelled("none"), ambient, left(Reason::PodLabelNone)),
        (
            "host network",
            with(spec(json!({"hostNetwork": true, "containers": []}))),
            ambient,
            left(Reason::HostNetwork),
        ),
        (
            "sidecar",
            with(json!({"metadata": {"annotations": { annotation::SIDECAR_STATUS: "{}" }}})),
            ambient,
            left(Reason::Sidecar),
        ),
        (
            "excluded namespace",
            with(json!({"metadata": {"namespace": "kube-system"}})),
            ambient,
            left(Reason::ExcludedNamespace),
        ),
        ("succeeded", with(json!({"status": {"phase": "Succeeded"}})), ambient, left(Reason::Ended)),
        ("failed", with(json!({"status": {"phase": "Failed"}})), ambient, left(Reason::Ended)),
        ("running", with(json!({"status": {"phase": "Running"}})), None, captured(Reason::PodLabel)),
        ("pending", with(json!({"status": {"phase": "Pending"}})), None, captured(Reason::PodLabel)),
        (
            "being deleted",
            with(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
            None,
            captured(Reason::PodLabel),
        ),
        (
            "node proxy",
            with(json!({"metadata": {"namespace": "istio-system", "labels": {"app": "ztunnel"}}})),
            ambient,
            left(Reason::Proxy),
        ),
        (
            "no address",
            with(json!({"status": {"podIP": null}})),
            None,
            (Decision::Capture(Reason::PodLabel), Step::Rest, Step::Rest),
        ),
        (
            "another address",
            with(json!({"status": {"podIP": "10.0.0.6"}})),
            None,
            (Decision::Capture(Reason::PodLabel), Step::Enroll, Step::Enroll),
        ),
        (
            "second address",
            with(json!({"status": {"podIPs": [{"ip": "fd00::5"}]}})),
            None,
            (Decision::Capture(Reason::PodLabel), Step::Enroll, Step::Enroll),
        ),
    ];
    for (row, changes, mode, expected) in rows {
        check_row(row, changes, mode, expected);
    }
}

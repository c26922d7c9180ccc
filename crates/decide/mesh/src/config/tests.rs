//! Faults with their places, layers by the rules, and what no document may do.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Faults, one a line.
#[track_caller]
fn check_faults(text: &str, expected: &[&str]) {
    let faults: Vec<String> =
        check_mesh("mesh", text.as_bytes()).faults.iter().map(ToString::to_string).collect();
    assert_eq!(faults, expected, "{text}");
}

#[test]
fn every_fault_names_its_place_its_field_and_the_remedy() {
    check_faults(
        "trustDomain: true\n",
        &["1:14: trustDomain: it is the boolean true, a text (write it in quotes) is expected"],
    );
    check_faults(
        "enableTracing: 'yes'\nproxyListenPort: 70000\nconnectTimeout: 10\n",
        &[
            "1:16: enableTracing: it is the text \"yes\", true or false is expected",
            "2:18: proxyListenPort: 70000 is no port, 1 to 65535 is expected",
            "3:17: connectTimeout: it is the number 10, a duration in seconds such as 10s or 0.5s is expected",
        ],
    );
    check_faults(
        "defaultConfig:\n  proxyMetadata:\n    A: 1\n  concurrency: many\n",
        &[
            "3:8: defaultConfig.proxyMetadata.A: it is the number 1, a text (write it in quotes) is expected",
            "4:16: defaultConfig.concurrency: it is the text \"many\", an integer from -2147483648 to 2147483647 is expected",
        ],
    );
    check_faults(
        "outboundTrafficPolicy: {mode: EVERYTHING}\n",
        &[
            "1:31: outboundTrafficPolicy.mode: it is the text \"EVERYTHING\", one of REGISTRY_ONLY, ALLOW_ANY, ALLOW_ANY_DYNAMIC_DNS is expected",
        ],
    );
    check_faults(
        "trustDomainAliases: a\n",
        &["1:21: trustDomainAliases: it is the text \"a\", a list is expected"],
    );
    check_faults("- a\n", &["1:1: it is a list, a mapping of fields is expected"]);
    check_faults(
        "extensionProviders:\n- {name: a, prometheus: {}, zipkin: {}}\n- {prometheus: {}}\n- name: a\n",
        &[
            "2:29: extensionProviders[0].zipkin: prometheus is set as well, only one of them is expected",
            "3:3: extensionProviders[1]: name is missing, every provider needs one",
            "4:3: extensionProviders[2]: \"a\" is there twice, first at 2:3: keep one of them",
        ],
    );
    check_faults(
        "discoverySelectors:\n- matchExpressions:\n  - {key: a, operator: Is, values: [b]}\n",
        &["3:5: discoverySelectors[0]: \"Is\" is no operator, In, NotIn, Exists or DoesNotExist is expected"],
    );
}

#[test]
fn an_enum_may_be_given_by_number_and_is_shown_by_name() {
    #[track_caller]
    fn check(mode: &str, expected: &str) {
        let text = format!("outboundTrafficPolicy: {{mode: {mode}}}");
        let checked = check_mesh("mesh", text.as_bytes());
        let shown = match checked.faults.first() {
            Some(fault) => fault.message.clone(),
            None => layer([&checked]).to_json()["outboundTrafficPolicy"]["mode"].to_string(),
        };
        assert!(shown.starts_with(expected), "{mode}: {shown}");
    }
    check("ALLOW_ANY", "\"ALLOW_ANY\"");
    check("1", "\"ALLOW_ANY\"");
    check("0", "\"REGISTRY_ONLY\"");
    // The number 2 is reserved.
    check("3", "\"ALLOW_ANY_DYNAMIC_DNS\"");
    check("2", "it is the number 2, one of REGISTRY_ONLY, ");
    check("-1", "it is the number -1, one of ");
    check("'1'", "it is the text \"1\", one of ");
    check("true", "it is the boolean true, one of ");
    let inherit = check_mesh("mesh", b"defaultConfig: {controlPlaneAuthPolicy: 1000}");
    assert_eq!(inherit.faults, []);
    assert_eq!(layer([&inherit]).to_json()["defaultConfig"]["controlPlaneAuthPolicy"], "INHERIT");
}

#[test]
fn a_key_that_is_there_twice_is_a_fault_under_either_of_its_names() {
    check_faults(
        "trustDomain: a\ntrustDomain: b\n",
        &["2:1: trustDomain: it is set twice, first at 1:1: keep one of them"],
    );
    check_faults(
        "trustDomain: a\ntrust_domain: b\n",
        &["2:1: trustDomain: it is set twice, first at 1:1: keep one of them"],
    );
    check_faults(
        "defaultConfig: {proxyMetadata: {A: x, A: y}}\n",
        &["1:39: defaultConfig.proxyMetadata.A: it is set twice, first at 1:33: keep one of them"],
    );
}

#[test]
fn what_is_no_text_or_no_yaml_is_told_with_its_place() {
    let fault = |bytes: &[u8]| check_mesh("mesh", bytes).faults[0].to_string();
    assert_eq!(fault(b"a: b\nc: \xff\n"), "2:4: byte 8 is not UTF-8: save the text in UTF-8");
    assert!(fault(b"a: [b\nc: d\n").contains("it is not YAML"), "{}", fault(b"a: [b\nc: d\n"));
    assert!(fault(&vec![b'a'; CONFIG_BYTES_MAX + 1]).contains("at most"));
    let bomb = (0..12)
        .map(|n| format!("l{}: &l{} [*l{n}, *l{n}, *l{n}, *l{n}, *l{n}, *l{n}, *l{n}]\n", n + 1, n + 1));
    let bomb = std::iter::once("l0: &l0 [x, x, x, x, x, x, x]\n".to_owned()).chain(bomb).collect::<String>();
    assert!(!check_mesh("mesh", bomb.as_bytes()).faults.is_empty());
}

#[test]
fn what_has_no_effect_is_noted_and_is_no_fault() {
    let text =
        "trustDomain: a\ntrustDomian: b\naccessLogFile: /dev/stdout\nlocality_lb_setting: {enabled: true}\n";
    let checked = check_mesh("mesh", text.as_bytes());
    assert_eq!(checked.faults, []);
    let notes: Vec<String> = checked.notes.iter().map(ToString::to_string).collect();
    let expected = [
        "2:1: trustDomian: there is no such field, it has no effect, did you mean trustDomain?",
        "3:16: accessLogFile: not used here",
        "4:22: localityLbSetting: not used here",
    ];
    assert_eq!(notes, expected);
    assert_eq!(check_mesh("mesh", b"").faults, [], "an empty document sets nothing");
    assert_eq!(check_mesh("mesh", b"trustDomain: null\n").fields.len(), 0, "nor does null");
}

#[test]
fn anchors_and_merge_keys_are_read() {
    let text = "defaultConfig: &c\n  proxyMetadata: &m {A: x}\nca: {address: &a 'b'}\nrootNamespace: *a\n";
    let checked = check_mesh("mesh", text.as_bytes());
    assert_eq!(checked.faults, []);
    assert_eq!(layer([&checked]).root_namespace, "b");
}

#[test]
fn a_document_of_a_mebibyte_is_read() {
    let entries: String = (0..20_000).map(|n| format!("    KEY_{n:05}: {:>38}\n", "value")).collect();
    let text = format!("defaultConfig:\n  proxyMetadata:\n{entries}");
    assert!(text.len() > 1 << 20, "{}", text.len());
    let checked = check_mesh("mesh", text.as_bytes());
    assert_eq!(checked.faults, []);
    assert_eq!(
        layer([&checked]).to_json()["defaultConfig"]["proxyMetadata"].as_object().unwrap().len(),
        20_000
    );
}

#[track_caller]
fn check_layers(shared: &str, primary: &str, pointer: &str, expected: &Value) {
    let documents = [check_mesh("shared", shared.as_bytes()), check_mesh("istio", primary.as_bytes())];
    assert!(documents.iter().all(|document| document.faults.is_empty()), "{documents:?}");
    assert_eq!(layer(&documents).to_json().pointer(pointer), Some(expected), "{shared} {primary}");
}

#[test]
fn layers_follow_the_rules_of_their_fields() {
    check_layers("", "", "/trustDomain", &json!("cluster.local"));
    check_layers("trustDomain: a", "", "/trustDomain", &json!("a"));
    check_layers("trustDomain: a", "trust_domain: b", "/trustDomain", &json!("b"));
    let metadata = |text: &str| format!("defaultConfig: {{proxyMetadata: {text}}}");
    let (a, b) = (metadata("{A: '1', B: '1'}"), metadata("{B: '2', C: '2'}"));
    check_layers(&a, &b, "/defaultConfig/proxyMetadata", &json!({"A": "1", "B": "2", "C": "2"}));
    check_layers(&a, "defaultConfig: {statusPort: 1}", "/defaultConfig/statusPort", &json!(1));
    check_layers(&a, "defaultConfig: {statusPort: 1}", "/defaultConfig/drainDuration", &json!("45s"));
    check_layers(
        "trustDomainAliases: [c, a]",
        "trustDomainAliases: [b, a]",
        "/trustDomainAliases",
        &json!(["a", "b", "c"]),
    );
    let provider =
        |name: &str, service: &str| format!("{{name: {name}, zipkin: {{service: {service}, port: 1}}}}");
    let shared = format!("extensionProviders: [{}, {}]", provider("p", "one"), provider("q", "one"));
    let primary = format!("extensionProviders: [{}]", provider("q", "two"));
    check_layers(&shared, &primary, "/extensionProviders/3/zipkin/service", &json!("one"));
    check_layers(&shared, &primary, "/extensionProviders/4/zipkin/service", &json!("two"));
    check_layers(
        "defaultProviders: {tracing: [a], metrics: [m]}",
        "defaultProviders: {tracing: [b]}",
        "/defaultProviders",
        &json!({"tracing": ["b"], "metrics": ["m"]}),
    );
    // Other messages and lists are replaced as a whole.
    check_layers(
        "defaultServiceExportTo: [a]",
        "defaultServiceExportTo: [b]",
        "/defaultServiceExportTo",
        &json!(["b"]),
    );
    check_layers("ca: {address: a, istiodSide: true}", "ca: {address: b}", "/ca", &json!({"address": "b"}));
}

#[test]
fn a_namespace_is_seen_if_a_selector_takes_it() {
    let sees = |selectors: &str, labels: &[(&str, &str)]| {
        let checked = check_mesh("mesh", format!("discoverySelectors: {selectors}").as_bytes());
        assert_eq!(checked.faults, []);
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        layer([&checked]).sees(Some(&labels))
    };
    assert!(layer([]).sees(None) && sees("[]", &[]));
    assert!(
        sees("[{matchLabels: {a: b}}]", &[("a", "b"), ("c", "d")])
            && !sees("[{matchLabels: {a: b}}]", &[("a", "c")])
    );
    let either = "[{matchLabels: {a: b}}, {matchExpressions: [{key: c, operator: In, values: [d, e]}]}]";
    assert!(sees(either, &[("a", "b")]) && sees(either, &[("c", "e")]) && !sees(either, &[("c", "f")]));
    for (operator, with, without) in [("Exists", true, false), ("DoesNotExist", false, true)] {
        let selector = format!("[{{matchExpressions: [{{key: a, operator: {operator}}}]}}]");
        assert_eq!((sees(&selector, &[("a", "")]), sees(&selector, &[])), (with, without), "{operator}");
    }
    let not_in = "[{matchExpressions: [{key: a, operator: NotIn, values: [b]}]}]";
    assert!(sees(not_in, &[]) && sees(not_in, &[("a", "c")]) && !sees(not_in, &[("a", "b")]));
}

#[test]
fn every_value_knows_where_it_comes_from() {
    let documents = [
        check_mesh("shared", b"defaultConfig:\n  proxyMetadata: {X: '1'}\n"),
        check_mesh("istio", b"trustDomain: b\n"),
    ];
    let config = layer(&documents);
    let origin =
        |path: &str| config.origins().iter().find(|(p, _)| p == path).map(|(_, e)| e.origin.to_string());
    assert_eq!(origin("defaultConfig.proxyMetadata.X").as_deref(), Some("shared:2:22"));
    assert_eq!(origin("trustDomain").as_deref(), Some("istio:1:14"));
    assert!(origin("connectTimeout").unwrap().starts_with(DEFAULTS_SOURCE));
}

#[test]
fn the_defaults_have_no_fault() {
    let config = layer([]);
    assert_eq!(
        (config.trust_domain.as_str(), config.root_namespace.as_str()),
        ("cluster.local", "istio-system")
    );
    assert_eq!(config.to_json()["defaultConfig"]["statusPort"], 15020);
}

proptest! {
    /// INV-08: no bytes panic.
    #[test]
    fn inv_08_no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_mesh("mesh", &bytes);
        check_networks("networks", &bytes);
    }

    #[test]
    fn inv_08_no_text_panics(text in "(trustDomain|defaultConfig|extensionProviders|[a-z&*!<|>-]{0,3}|[:{},\\[\\] \n]){0,40}") {
        check_mesh("mesh", text.as_bytes());
    }

    /// The same document twice is the same as once, and the last one always wins on a scalar.
    #[test]
    fn layers_are_idempotent_and_the_last_wins(names in prop::collection::vec("[a-c]", 1..4), last in "[a-z]{1,8}") {
        let one = format!("trustDomainAliases: {names:?}\ntrustDomain: x\nextensionProviders: [{{name: {}, prometheus: {{}}}}]", names[0]);
        let one = check_mesh("one", one.as_bytes());
        prop_assert_eq!(layer([&one]).to_json()["extensionProviders"].clone(), layer([&one, &one]).to_json()["extensionProviders"].clone());
        let two = check_mesh("two", format!("trustDomain: {last:?}").as_bytes());
        prop_assert_eq!(layer([&one, &two]).trust_domain, last);
        let aliases = layer([&one, &one]).to_json()["trustDomainAliases"].clone();
        let mut expected: Vec<String> = names.clone();
        expected.sort();
        expected.dedup();
        prop_assert_eq!(aliases, json!(expected));
    }
}

use super::*;
use proptest::prelude::*;

fn rule(verbs: &[&str], group: &str, resources: &[&str]) -> Rule {
    Rule::of(group, resources, verbs)
}

fn request(verb: &str, group: &str, resource: &str, name: &str) -> Request {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    Request {
        verb: verb.into(),
        group: group.into(),
        resource: resource.into(),
        subresource: subresource.into(),
        name: name.into(),
        ..Request::default()
    }
}

#[track_caller]
fn check(rule: &Rule, verb: &str, (group, resource, name): (&str, &str, &str), expected: bool) {
    assert_eq!(rule.allows(&request(verb, group, resource, name)), expected);
}

#[test]
fn rules_allow_what_they_list() {
    let pods = rule(&["get", "list"], "", &["pods", "pods/log"]);
    check(&pods, "get", ("", "pods", "a"), true);
    check(&pods, "get", ("", "pods/log", "a"), true);
    check(&pods, "get", ("", "pods/exec", "a"), false);
    check(&pods, "delete", ("", "pods", "a"), false);
    check(&pods, "get", ("apps", "pods", "a"), false);
    let all = rule(&["*"], "*", &["*"]);
    check(&all, "anything", ("apps", "deployments/scale", ""), true);
    let scales = rule(&["update"], "*", &["*/scale"]);
    check(&scales, "update", ("apps", "deployments/scale", "x"), true);
    check(&scales, "update", ("apps", "deployments", "x"), false);
    let named = rule(&["get", "list"], "", &["secrets"]).named(&["a", "b"]);
    check(&named, "get", ("", "secrets", "a"), true);
    check(&named, "get", ("", "secrets", "c"), false);
    check(&named, "list", ("", "secrets", ""), false);
}

#[track_caller]
fn check_path(patterns: &[&str], path: &str, expected: bool) {
    let request = Request { verb: "get".into(), path: path.into(), ..Request::default() };
    assert_eq!(Rule::of_paths(patterns, &["get"]).allows(&request), expected, "{patterns:?} {path}");
}

#[test]
fn paths_are_equal_or_begin_alike() {
    check_path(&["/healthz"], "/healthz", true);
    check_path(&["/healthz"], "/healthz/ping", false);
    check_path(&["/healthz/*"], "/healthz/ping", true);
    check_path(&["/healthz/*"], "/healthz", false);
    check_path(&["*"], "/metrics", true);
    check_path(&[], "/metrics", false);
    // A rule about resources says nothing about paths, nor the other way round.
    let request = Request { verb: "get".into(), path: "/metrics".into(), ..Request::default() };
    assert!(!rule(&["*"], "*", &["*"]).allows(&request));
    assert!(!Rule::of_paths(&["*"], &["*"]).allows(&super::tests::request("get", "", "pods", "")));
}

#[track_caller]
fn check_uncovered(held: &[&Rule], wanted: &Rule, expected: &[&Rule]) {
    let held: Vec<Rule> = held.iter().map(|rule| (*rule).clone()).collect();
    let missing = uncovered(&held, std::slice::from_ref(wanted));
    assert_eq!(missing.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn what_is_not_held_is_named() {
    let read = rule(&["get", "list"], "", &["pods"]);
    let (get, list) = (rule(&["get"], "", &["pods"]), rule(&["list"], "", &["pods"]));
    check_uncovered(&[&rule(&["*"], "*", &["*"])], &read, &[]);
    check_uncovered(&[&get, &list], &read, &[]);
    check_uncovered(&[&get], &read, &[&list]);
    // One name does not cover all, all covers one.
    let all = rule(&["get"], "", &["secrets"]);
    let one = all.clone().named(&["a"]);
    check_uncovered(&[&one], &all, &[&all]);
    check_uncovered(&[&all], &one, &[]);
    check_uncovered(&[&one], &one, &[]);
    // Subresources.
    let scale = rule(&["update"], "apps", &["deployments/scale"]);
    let (scales, deployments) =
        (rule(&["update"], "apps", &["*/scale"]), rule(&["update"], "apps", &["deployments"]));
    check_uncovered(&[&scales], &scale, &[]);
    check_uncovered(&[&deployments], &scale, &[&scale]);
    let every = rule(&["update"], "apps", &["*"]);
    check_uncovered(&[&scales, &deployments], &every, &[&every]);
    // Paths.
    let path = Rule::of_paths(&["/healthz/*"], &["get"]);
    check_uncovered(&[&Rule::of_paths(&["/health*"], &["get"])], &path, &[]);
    check_uncovered(&[&Rule::of_paths(&["/healthz/ping"], &["get"])], &path, &[&path]);
}

#[test]
fn null_lists_are_empty() {
    let rule: Rule =
        serde_json::from_str(r#"{"verbs":["get"],"apiGroups":null,"nonResourceURLs":["/x"]}"#).unwrap();
    assert_eq!(rule, Rule::of_paths(&["/x"], &["get"]));
    assert_eq!(serde_json::to_string(&rule).unwrap(), r#"{"verbs":["get"],"nonResourceURLs":["/x"]}"#);
}

fn some(of: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    proptest::sample::subsequence(of, 1..=of.len())
        .prop_map(|texts| texts.into_iter().map(str::to_owned).collect())
}

fn rules() -> impl Strategy<Value = Rule> {
    let names = proptest::sample::subsequence(&["x", "y"], 0..=2);
    let parts = (
        some(&["get", "list", "*"]),
        some(&["", "apps", "*"]),
        some(&["pods", "pods/log", "*/log", "*"]),
        names,
    );
    parts.prop_map(|(verbs, api_groups, resources, names)| {
        Rule { verbs, api_groups, resources, ..Rule::default() }.named(&names)
    })
}

proptest! {
    /// Nobody may pass on what they may not do themselves.
    #[test]
    fn what_is_covered_is_allowed(
        held in proptest::collection::vec(rules(), 0..3),
        wanted in rules(),
        verb in proptest::sample::select(vec!["get", "list", "watch"]),
        group in proptest::sample::select(vec!["", "apps", "batch"]),
        resource in proptest::sample::select(vec!["pods", "pods/log", "jobs"]),
        name in proptest::sample::select(vec!["", "x", "z"]),
    ) {
        let request = request(verb, group, resource, name);
        if uncovered(&held, std::slice::from_ref(&wanted)).is_empty() && wanted.allows(&request) {
            prop_assert!(held.iter().any(|rule| rule.allows(&request)));
        }
    }
}

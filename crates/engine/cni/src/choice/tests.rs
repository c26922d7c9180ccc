use super::*;
use proptest::prelude::*;
use serde_json::json;

fn wanted() -> Wanted {
    let entry = Entry {
        run_dir: "/run/x".into(),
        exclude_namespaces: Vec::new(),
        pod_namespace: "istio-system".into(),
    };
    Wanted { entry, place: Place::Primary, name: None }
}

fn file(name: &str, text: &str) -> File {
    File { name: name.into(), bytes: text.into() }
}

const LIST: &str = "{\"name\": \"n\", \"cniVersion\": \"1.0.0\", \"plugins\": [{\"type\": \"bridge\"}]}\n";
const SINGLE: &str = "{\n\t\"name\": \"s\", \"type\": \"bridge\", \"mtu\": 1.5e3 }\n\n";

/// Files as `name=kind`; the expected primary one, and the name that is written with the one that it replaces.
#[track_caller]
fn check(
    files: &[(&str, &str)],
    wanted: &Wanted,
    primary: Option<&str>,
    writes: Option<(&str, Option<&str>)>,
) {
    let files: Vec<File> = files.iter().map(|(name, text)| file(name, text)).collect();
    let plan = plan(&files, wanted).unwrap();
    assert_eq!(plan.primary.as_deref(), primary);
    let step = match &plan.step {
        Step::Write { name, replaces, .. } => Some((name.as_str(), replaces.as_deref())),
        _ => None,
    };
    assert_eq!(step, writes);
}

#[test]
fn the_first_valid_file_in_the_order_of_bytes_is_chosen() {
    let w = &wanted();
    check(&[], w, None, None);
    check(&[("README", LIST), ("10-x.conflist.bak", LIST)], w, None, None);
    check(
        &[("20-b.conflist", LIST), ("10-a.conflist", LIST)],
        w,
        Some("10-a.conflist"),
        Some(("10-a.conflist", None)),
    );
    check(&[("a.conflist", LIST), ("Z.conflist", LIST)], w, Some("Z.conflist"), Some(("Z.conflist", None)));
    check(
        &[("10-a.conf", SINGLE), ("10-b.conflist", LIST)],
        w,
        Some("10-a.conf"),
        Some(("10-a.conflist", Some("10-a.conf"))),
    );
    check(&[("10-a.json", SINGLE)], w, Some("10-a.json"), Some(("10-a.conflist", Some("10-a.json"))));
}

#[test]
fn a_foreign_list_with_the_name_of_a_converted_file_is_not_overwritten() {
    let both = [("10-a.conf", SINGLE), ("10-a.conflist", LIST)];
    check(&both, &wanted(), Some("10-a.conf"), Some(("10-a.conf.conflist", Some("10-a.conf"))));
    let mut before = both.map(|(name, text)| file(name, text)).to_vec();
    let named = Wanted { name: Some("10-a.conf".into()), ..wanted() };
    let edited = after(&before, &named);
    assert_eq!(plan(&edited, &named).unwrap().primary.as_deref(), Some("10-a.conf.conflist"));
    let mut back = undone(&edited, &Place::Primary);
    back.sort_by(|a, b| a.name.cmp(&b.name));
    before.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(back, before);
}

#[test]
fn what_a_runtime_cannot_read_is_passed_over_and_named() {
    for (name, text) in [
        ("10-a.conflist", "{"),
        ("10-a.conflist", ""),
        ("10-a.conflist", SINGLE),
        ("10-a.conflist", r#"{"name":"n","plugins":[]}"#),
        ("10-a.conflist", r#"{"plugins":[{"type":"bridge"}]}"#),
        ("10-a.conflist", r#"{"name":"n","plugins":[{"type":""}]}"#),
        ("10-a.conflist", r#"{"name":"n","cniVersion":1,"plugins":[{"type":"a"}]}"#),
        ("10-a.conf", LIST),
        ("10-a.json", LIST),
        ("10-a.conf", r#"{"type":3}"#),
        ("10-a.conf", "[]"),
    ] {
        let files = [file(name, text), file("20-b.conflist", LIST)];
        let plan = plan(&files, &wanted()).unwrap();
        assert_eq!(plan.primary.as_deref(), Some("20-b.conflist"), "{name} {text}");
        assert_eq!(plan.ignored.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), [name]);
    }
    let bytes = File { name: "10-a.conf".into(), bytes: vec![0xff, 0xfe] };
    assert_eq!(plan(&[bytes], &wanted()).unwrap().step, Step::Wait);
}

#[test]
fn a_configured_name_is_used_and_what_sorts_before_it_is_named() {
    let w = &Wanted { name: Some("20-b.conf".into()), ..wanted() };
    check(&[("10-a.conflist", LIST)], w, None, None);
    let two = [("10-a.conflist", LIST), ("20-b.conflist", LIST)];
    check(&two, w, Some("20-b.conflist"), Some(("20-b.conflist", None)));
    let files = two.map(|(name, text)| file(name, text));
    assert_eq!(plan(&files, w).unwrap().preempted_by.as_deref(), Some("10-a.conflist"));
    assert_eq!(plan(&files, &wanted()).unwrap().preempted_by, None);
}

#[test]
fn a_file_of_ones_own_is_made_from_the_primary_one_which_stays() {
    let w = &Wanted { place: Place::OwnFile("02-ambit.conflist".into()), ..wanted() };
    check(&[("10-a.conflist", LIST)], w, Some("10-a.conflist"), Some(("02-ambit.conflist", None)));
    check(&[("10-a.conf", SINGLE)], w, Some("10-a.conf"), Some(("02-ambit.conflist", None)));
    check(&[("02-ambit.conflist", LIST)], w, None, None);
    let derived = after(&[file("10-a.conf", SINGLE)], w);
    assert_eq!(plan(&derived, w).unwrap().step, Step::Rest);
    let early = plan(&[file("01-a.conflist", LIST)], w).unwrap();
    assert_eq!(early.preempted_by.as_deref(), Some("01-a.conflist"));
    let own = derived.iter().find(|f| f.name == "02-ambit.conflist").unwrap();
    assert_eq!(plan_undo(own, &w.place), Some(Undo::Delete));
}

/// The files after the plan was carried out.
fn after(files: &[File], wanted: &Wanted) -> Vec<File> {
    let mut files = files.to_vec();
    if let Step::Write { name, text, replaces } = plan(&files, wanted).unwrap().step {
        files.retain(|f| f.name != name && Some(&f.name) != replaces.as_ref());
        files.push(File { name, bytes: text.into() });
    }
    files
}

/// The files after every edit was undone.
fn undone(files: &[File], place: &Place) -> Vec<File> {
    let each = files.iter().filter_map(|f| match plan_undo(f, place) {
        None => Some(f.clone()),
        Some(Undo::Write(text)) => Some(file(&f.name, &text)),
        Some(Undo::Restore { name, text }) => Some(file(&name, &text)),
        Some(Undo::Delete) => None,
    });
    each.collect()
}

#[test]
fn a_single_plugin_becomes_a_list_of_the_same_network_and_comes_back() {
    let before = vec![file("10-a.conf", SINGLE)];
    let list = after(&before, &wanted());
    let value: Value = serde_json::from_slice(&list[0].bytes).unwrap();
    assert_eq!((&value["name"], &value["cniVersion"]), (&json!("s"), &json!("0.3.1")));
    assert_eq!(value["plugins"][0], serde_json::from_str::<Value>(SINGLE).unwrap());
    assert_eq!(plan(&list, &wanted()).unwrap().step, Step::Rest);
    assert_eq!(undone(&list, &Place::Primary), before);
}

#[test]
fn a_converted_list_that_others_extended_stays_a_list() {
    let list = after(&[file("10-a.conf", SINGLE)], &wanted());
    let text = String::from_utf8(list[0].bytes.clone()).unwrap();
    let more = text
        .replace("},\n    {\"cni_agent", "},{\"type\":\"portmap\"},{\"cni_agent")
        .replace(" }\n\n,", " },{\"type\":\"portmap\"},");
    let Some(Undo::Write(without)) = plan_undo(&file("10-a.conflist", &more), &Place::Primary) else {
        panic!("{more}")
    };
    assert_eq!(list::plugin_types(&without), ["bridge", "portmap"]);
}

#[test]
fn foreign_files_are_not_undone() {
    for text in [LIST, SINGLE, "", "{", r#"{"ambit.io/made-from":"x","plugins":[{"type":"a"}]}"#] {
        assert_eq!(plan_undo(&file("10-a.conflist", text), &Place::Primary), None, "{text}");
    }
    let only_ours = r#"{"name":"n","plugins":[{"type":"ambit-cni"}]}"#;
    assert_eq!(plan_undo(&file("10-a.conflist", only_ours), &Place::Primary), Some(Undo::Delete));
    let outside = LIST.replace("\"name\"", "\"ambit.io/made-from\": \"../x\", \"name\"");
    let edited = after(&[file("10-a.conflist", &outside)], &wanted());
    assert_eq!(undone(&edited, &Place::Primary), [file("10-a.conflist", &outside)]);
}

fn extra() -> impl Strategy<Value = serde_json::Map<String, Value>> {
    let value = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        "[ -~\u{e9}]{0,8}".prop_map(Value::from)
    ];
    prop::collection::btree_map("x[a-z\"{}\\[\\]]{0,4}", value, 0..5)
        .prop_map(|map| map.into_iter().collect())
}

proptest! {
    #[test]
    fn every_edit_is_undone_to_the_byte(
        mut single in extra(), mut list in extra(), has_single in any::<bool>(), compact in any::<bool>(), own in any::<bool>(),
        blank in "[ \n\t]{0,3}",
    ) {
        single.insert("type".into(), json!("bridge"));
        list.insert("plugins".into(), json!([single.clone()]));
        list.insert("name".into(), json!("n"));
        let show = |map: &serde_json::Map<String, Value>| {
            let text = if compact { Value::Object(map.clone()).to_string() } else { format!("{:#}", Value::Object(map.clone())) };
            format!("{blank}{text}{blank}")
        };
        let mut before = vec![file("20-b.conflist", &show(&list))];
        if has_single {
            before.push(file("10-a.conf", &show(&single)));
        }
        let place = if own { Place::OwnFile("00-own.conflist".into()) } else { Place::Primary };
        let wanted = Wanted { place, ..wanted() };
        let edited = after(&before, &wanted);
        prop_assert_eq!(&after(&edited, &wanted), &edited, "a second time changes nothing");
        let mut back = undone(&edited, &wanted.place);
        back.sort_by(|a, b| b.name.cmp(&a.name));
        prop_assert_eq!(back, before);
    }
}

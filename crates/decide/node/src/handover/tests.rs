use super::*;

fn add(uid: &str, generation: Generation) -> Request {
    Request::Add { uid: uid.into(), generation }
}

#[test]
fn the_snapshot_names_every_pod() {
    let mut roster = Roster::default();
    roster.insert("a");
    roster.insert_unknown("b");
    let (_, snapshot) = roster.connect();
    assert_eq!(snapshot, [add("a", 1), Request::Keep { uid: "b".into() }, Request::SnapshotSent]);
    // A pod that was only kept is found later.
    let generation = roster.insert("b");
    assert_eq!(roster.plan_add("b"), AddPlan::Send(1, generation));
    // And one that was found is not forgotten by a later look.
    roster.insert_unknown("b");
    assert_eq!(roster.plan_add("b"), AddPlan::Send(1, generation));
}

#[test]
fn the_newest_proxy_gets_additions_and_all_get_removals() {
    let mut roster = Roster::default();
    assert_eq!(roster.plan_add("a"), AddPlan::NoProxy);
    let generation = roster.insert("a");
    assert_eq!(roster.plan_add("a"), AddPlan::NoProxy);
    let (old, _) = roster.connect();
    let (new, _) = roster.connect();
    assert_eq!(roster.proxies(), 2);
    assert_eq!(roster.plan_add("a"), AddPlan::Send(new, generation));
    assert!(roster.acknowledge(new, "a", generation));
    assert_eq!(roster.plan_add("a"), AddPlan::Acknowledged);
    assert_eq!(roster.remove("a"), [old, new]);
    assert!(roster.remove("a").is_empty(), "nobody has it any more");
    assert_eq!(roster.plan_add("a"), AddPlan::NoProxy);
}

#[test]
fn a_new_namespace_is_sent_again_and_late_acknowledgements_do_not_count() {
    let mut roster = Roster::default();
    let (id, _) = roster.connect();
    let first = roster.insert("a");
    let second = roster.insert("a");
    assert!(!roster.acknowledge(id, "a", first));
    assert_eq!(roster.plan_add("a"), AddPlan::Send(id, second));
    assert!(roster.acknowledge(id, "a", second));
    roster.remove("a");
    assert!(!roster.acknowledge(id, "a", second));
    assert!(!roster.acknowledge(99, "b", 1));
}

#[test]
fn what_only_a_lost_newest_proxy_had_goes_to_the_one_before() {
    let mut roster = Roster::default();
    let both = roster.insert("both");
    let (old, _) = roster.connect();
    roster.acknowledge(old, "both", both);
    let (new, _) = roster.connect();
    let only = roster.insert("only-new");
    roster.acknowledge(new, "only-new", only);
    roster.insert_unknown("unknown");
    assert_eq!(roster.disconnect(new), Some((old, vec![add("only-new", only)])));
    assert_eq!(roster.disconnect(new), None);
    assert_eq!(roster.disconnect(old), None);
    assert_eq!(roster.plan_add("both"), AddPlan::NoProxy);
}

#[test]
fn losing_an_older_proxy_changes_nothing() {
    let mut roster = Roster::default();
    roster.insert("a");
    let (old, _) = roster.connect();
    let (new, _) = roster.connect();
    assert_eq!(roster.disconnect(old), None);
    assert_eq!(roster.plan_add("a"), AddPlan::Send(new, 1));
}

use super::*;
use proptest::prelude::{Strategy, any, prop, prop_oneof, proptest};

type Objects = BTreeMap<(String, String), (Revision, u32)>;

fn key(n: u8) -> Key {
    Key::new(
        ["pods", "apps/deployments"][usize::from(n) % 2],
        ["a", "b"][usize::from(n / 2) % 2],
        format!("{n}"),
    )
}

fn state(store: &Store<u32>, collection: &str, at: Option<Revision>) -> Result<Objects, Compacted> {
    let page = store.list(&Range::new(collection, None), at)?;
    let object =
        |((ns, name), v): (Place, Version<u32>)| ((ns.to_string(), name.to_string()), (v.revision, v.value));
    Ok(page.items.into_iter().map(object).collect())
}

fn replay(mut objects: Objects, events: &[Arc<Event<u32>>]) -> Objects {
    for event in events {
        let place = (event.key.namespace.to_string(), event.key.name.to_string());
        let before = objects.remove(&place).map(|(revision, value)| Version { revision, value });
        assert_eq!(before, event.old, "what the event replaced at {}", event.revision);
        if let Some(value) = event.new {
            objects.insert(place, (event.revision, value));
        }
    }
    objects
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8, u32),
    Delete(u8),
    Publish(u8),
    Compact(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u8..8, any::<u32>()).prop_map(|(k, v)| Step::Put(k, v)),
        3 => (0u8..8).prop_map(Step::Delete),
        3 => (0u8..6).prop_map(Step::Publish),
        1 => (0u8..20).prop_map(Step::Compact),
    ];
    prop::collection::vec(step, 0..120)
}

/// Applies steps; also keeps what a persister would: current objects and the undo records.
fn run(steps: &[Step], history_max: usize) -> (Store<u32>, Vec<Arc<Event<u32>>>) {
    let mut store = Store::new(history_max);
    let mut all = Vec::new();
    for step in steps {
        match *step {
            Step::Put(k, v) => {
                let expect = match store.head(&key(k)) {
                    Some(old) => Expect::Revision(old.revision),
                    None => Expect::Absent,
                };
                all.push(store.put(key(k), expect, |_| v).expect("expectation was read just before"));
            }
            Step::Delete(k) => all.extend(store.delete(key(k), Expect::Present)),
            Step::Publish(n) => store.publish(store.revision() + u64::from(n)),
            Step::Compact(n) => store.compact(store.revision().saturating_sub(u64::from(n))),
        }
    }
    (store, all)
}

proptest! {
    /// INV-04, the store's part: a watch resumed anywhere in the window misses and repeats nothing.
    #[test]
    fn inv_04_watch_resumed_at_any_revision_misses_and_repeats_nothing(steps in steps(), max in 5usize..200) {
        let (store, all) = run(&steps, max);
        for collection in ["pods", "apps/deployments"] {
            let now = state(&store, collection, None).expect("the present is readable");
            for from in 0..=store.revision() {
                let events = store.events(collection, from, usize::MAX);
                if from < store.compacted() {
                    assert_eq!(events.expect_err("compacted"), Compacted { wanted: from, oldest: store.compacted() });
                    assert!(state(&store, collection, Some(from)).is_err());
                    continue;
                }
                let events = events.expect("in the window");
                let wanted: Vec<_> = all.iter()
                    .filter(|e| &*e.key.collection == collection && e.revision > from && e.revision <= store.revision())
                    .map(|e| e.revision).collect();
                assert_eq!(events.iter().map(|e| e.revision).collect::<Vec<_>>(), wanted);
                let then = state(&store, collection, Some(from)).expect("in the window");
                assert_eq!(replay(then, &events), now);
            }
        }
    }

    /// The state at any revision of the window equals the one computed anew from all writes.
    #[test]
    fn history_equals_the_writes_from_scratch(steps in steps(), max in 5usize..200) {
        let (store, all) = run(&steps, max);
        for at in store.compacted()..=store.revision() {
            for collection in ["pods", "apps/deployments"] {
                let until: Vec<_> = all.iter()
                    .filter(|e| e.revision <= at && &*e.key.collection == collection).cloned().collect();
                assert_eq!(state(&store, collection, Some(at)).expect("in the window"), replay(Objects::new(), &until));
            }
        }
    }

    /// A store restored from what was persisted is the same store, history included.
    #[test]
    fn a_restored_store_equals_the_one_that_was_saved(steps in steps(), max in 5usize..200) {
        let (mut store, all) = run(&steps, max);
        store.publish(store.head_revision());
        let mut objects = Vec::new();
        for collection in ["pods", "apps/deployments"] {
            for ((ns, name), version) in store.list(&Range::new(collection, None), None).expect("now").items {
                objects.push((Key::new(collection, ns, name), version));
            }
        }
        let undo = |e: &Arc<Event<u32>>| Undo { revision: e.revision, key: e.key.clone(), old: e.old.clone() };
        let history = all.iter().filter(|e| e.revision > store.compacted()).map(undo).collect();
        let saved = Saved { revision: store.revision(), compacted: store.compacted(), objects, history };
        let restored = Store::<u32>::restore(max, saved).expect("a consistent save");
        assert_eq!((restored.revision(), restored.compacted()), (store.revision(), store.compacted()));
        for collection in ["pods", "apps/deployments"] {
            for at in store.compacted()..=store.revision() {
                assert_eq!(state(&restored, collection, Some(at)), state(&store, collection, Some(at)));
                let shape = |s: &Store<u32>| s.events(collection, at, usize::MAX).expect("in the window").iter()
                    .map(|e| (e.revision, e.key.clone(), e.old.clone(), e.new)).collect::<Vec<_>>();
                assert_eq!(shape(&restored), shape(&store));
            }
        }
    }
}

#[test]
fn writes_are_hidden_from_readers_until_published_but_conflict_at_once() {
    let mut store = Store::<u32>::new(10);
    store.put(key(0), Expect::Absent, |_| 1).expect("new");
    assert_eq!(store.get(&key(0)), None);
    assert_eq!(store.head(&key(0)), Some(Version { revision: 1, value: 1 }));
    assert_eq!(store.put(key(0), Expect::Absent, |_| 2).err(), Some(Conflict::Exists { key: key(0) }));
    store.publish(1);
    assert_eq!(store.get(&key(0)), Some(Version { revision: 1, value: 1 }));
}

#[track_caller]
fn check_conflict(expect: Expect, exists: bool, expected: Option<Conflict>) {
    let mut store = Store::<u32>::new(10);
    if exists {
        store.put(key(0), Expect::Absent, |_| 1).expect("new");
    }
    assert_eq!(store.put(key(0), expect, |_| 2).err(), expected);
}

#[test]
fn a_write_that_expected_something_else_changes_nothing() {
    check_conflict(Expect::Absent, false, None);
    check_conflict(Expect::Absent, true, Some(Conflict::Exists { key: key(0) }));
    check_conflict(Expect::Present, false, Some(Conflict::Missing { key: key(0) }));
    check_conflict(Expect::Present, true, None);
    check_conflict(Expect::Revision(1), true, None);
    check_conflict(Expect::Revision(1), false, Some(Conflict::Missing { key: key(0) }));
    let changed = Conflict::Changed { key: key(0), expected: 7, found: 1 };
    check_conflict(Expect::Revision(7), true, Some(changed));
}

#[test]
fn deleting_what_is_absent_is_a_conflict_whatever_is_expected() {
    let mut store = Store::<u32>::new(10);
    assert_eq!(store.delete(key(0), Expect::Absent).err(), Some(Conflict::Missing { key: key(0) }));
    assert_eq!(store.head_revision(), 0);
}

#[test]
fn lists_stay_in_their_namespace_and_resume_after_a_key() {
    let mut store = Store::<u32>::new(100);
    for n in 0..8 {
        store.put(key(n), Expect::Absent, |_| u32::from(n)).expect("new");
    }
    store.publish(8);
    let names = |range: &Range| -> Vec<String> {
        store
            .list(range, None)
            .expect("now")
            .items
            .into_iter()
            .map(|((_, name), _)| name.to_string())
            .collect()
    };
    assert_eq!(names(&Range::new("pods", None)), ["0", "4", "2", "6"]);
    assert_eq!(names(&Range::new("pods", Some("b"))), ["2", "6"]);
    assert_eq!(names(&Range::new("secrets", None)), Vec::<String>::new());
    let after = Some((Arc::from("a"), Arc::from("4")));
    assert_eq!(names(&Range { after: after.clone(), ..Range::new("pods", None) }), ["2", "6"]);
    assert_eq!(names(&Range { after, ..Range::new("pods", Some("a")) }), Vec::<String>::new());
}

#[test]
fn contradictions_in_what_was_saved_are_found() {
    let version = |revision| Version { revision, value: 1 };
    let future = Saved { revision: 1, compacted: 1, objects: vec![(key(0), version(2))], history: vec![] };
    let error = Store::<u32>::restore(10, future).expect_err("newer than the store");
    assert_eq!(error, RestoreError::FromTheFuture { key: key(0), found: 2, last: 1 });
    let undo = |revision| Undo { revision, key: key(0), old: None };
    let cut = Saved { revision: 5, compacted: 2, objects: vec![], history: vec![undo(3), undo(4)] };
    let error = Store::<u32>::restore(10, cut).expect_err("revision 5 is missing");
    assert_eq!(error, RestoreError::Gap { expected: 5, found: 6 });
    let gap = Saved { revision: 5, compacted: 2, objects: vec![], history: vec![undo(3), undo(5)] };
    let error = Store::<u32>::restore(10, gap).expect_err("revision 4 is missing");
    assert_eq!(error, RestoreError::Gap { expected: 4, found: 5 });
}

//! One suite for every place where objects are kept.

use super::*;
use crate::etcd::EtcdSettings;
use ambit_runtime::{Clock, Entropy};
use etcd_member::EtcdMember;
use rand::Rng as _;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

#[path = "../../tests/etcd_member/mod.rs"]
mod etcd_member;

/// Long enough for anything that will happen at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// A kind of store, under test.
enum Backing {
    Memory,
    Disk(tempfile::TempDir),
    Etcd(EtcdMember),
}

impl Backing {
    fn all() -> [Self; 3] {
        [Self::Memory, Self::Disk(tempfile::tempdir().unwrap()), Self::Etcd(EtcdMember::start())]
    }

    /// Opens what is kept; memory is always empty.
    async fn open(&self) -> Database {
        match self {
            Self::Memory => Database::in_memory(),
            Self::Disk(dir) => Database::open(&dir.path().join("objects.redb")).unwrap(),
            Self::Etcd(member) => Database::connect(&settings(member)).await.unwrap(),
        }
    }
}

fn settings(member: &EtcdMember) -> EtcdSettings {
    EtcdSettings { members: vec![member.address()], prefix: "/ambit-test".into(), tls: None }
}

fn key(name: &str) -> Key {
    Key::new("configmaps", "default", name)
}

fn object(name: &str, value: u64) -> impl FnOnce(Revision) -> Arc<Object> {
    let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"},
        "data": {"value": value.to_string()}});
    move |revision| Object::written(value, revision)
}

fn number(object: &Object) -> u64 {
    object.value()["data"]["value"].as_str().unwrap().parse().unwrap()
}

/// Name → (revision, value) of all objects, at a revision or now.
fn state(db: &Database, at: Option<Revision>) -> BTreeMap<String, (Revision, u64)> {
    let page = db.list(&Range::new("configmaps", None), at).unwrap();
    let entry =
        |((_, name), v): (ambit_store::Place, Stored)| (name.to_string(), (v.revision, number(&v.value)));
    page.items.into_iter().map(entry).collect()
}

/// All writes after a revision, as far as they are visible.
fn writes(db: &Database, after: Revision) -> Result<Vec<Arc<Event>>, Compacted> {
    db.events("configmaps", after, usize::MAX).map(|(events, _)| events)
}

fn replay(state: &mut BTreeMap<String, (Revision, u64)>, event: &Event) {
    let name = event.key.name.to_string();
    let before = state.get(&name).map(|(revision, _)| *revision);
    assert_eq!(event.old.as_ref().map(|old| old.revision), before, "{name} at {}", event.revision);
    match &event.new {
        Some(new) => {
            assert_eq!(new.value()["metadata"]["resourceVersion"], event.revision.to_string());
            state.insert(name, (event.revision, number(new)))
        }
        None => state.remove(&name),
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn every_store_writes_only_what_is_as_expected() {
    for backing in Backing::all() {
        let db = backing.open().await;
        let first = db.put(key("a"), Expect::Absent, object("a", 1)).await.unwrap();
        assert!(first.old.is_none());
        assert_eq!(db.get(&key("a")).unwrap().revision, first.revision, "an answered write is visible");
        let again = db.put(key("a"), Expect::Absent, object("a", 2)).await.unwrap_err();
        assert!(matches!(again, WriteError::Conflict(Conflict::Exists { .. })), "{again}");
        let second = db.put(key("a"), Expect::Revision(first.revision), object("a", 2)).await.unwrap();
        assert!(second.revision > first.revision);
        assert_eq!(second.old.as_ref().map(|old| old.revision), Some(first.revision));
        let stale = db.put(key("a"), Expect::Revision(first.revision), object("a", 3)).await.unwrap_err();
        let Conflict::Changed { found, .. } = conflict(stale) else { panic!("another conflict") };
        assert_eq!(found, second.revision);
        let absent = db.delete(key("b"), Expect::Present).await.unwrap_err();
        assert!(matches!(conflict(absent), Conflict::Missing { .. }));
        let gone = db.delete(key("a"), Expect::Revision(second.revision)).await.unwrap();
        assert!(gone.revision > second.revision && gone.new.is_none());
        assert!(db.get(&key("a")).is_none());
        assert_eq!(state(&db, Some(second.revision))["a"], (second.revision, 2), "history is readable");
        let all: Vec<Revision> =
            writes(&db, first.revision - 1).unwrap().iter().map(|e| e.revision).collect();
        assert_eq!(all, [first.revision, second.revision, gone.revision]);
    }
}

fn conflict(error: WriteError) -> Conflict {
    match error {
        WriteError::Conflict(conflict) => conflict,
        other => panic!("{other}"),
    }
}

/// Adds one to a counter, however often it takes.
async fn count_up(db: &Database, name: &str) {
    loop {
        let head = db.head(&key(name)).unwrap();
        let next = object(name, number(&head.value) + 1);
        match db.put(key(name), Expect::Revision(head.revision), next).await {
            Ok(_) => return,
            Err(WriteError::Conflict(Conflict::Changed { .. })) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_store_loses_no_update_of_writers_at_the_same_time() {
    const WRITERS: u64 = 8;
    const UPDATES: u64 = 15;
    for backing in Backing::all() {
        let first = backing.open().await;
        // Two servers over the same etcd; elsewhere there is but one.
        let second = match &backing {
            Backing::Etcd(_) => Some(backing.open().await),
            _ => None,
        };
        let made = first.put(key("n"), Expect::Absent, object("n", 0)).await.unwrap();
        if let Some(second) = &second {
            second.fresh().await.unwrap();
        }
        let writer = |w: u64| {
            let db = second.as_ref().filter(|_| w % 2 == 1).unwrap_or(&first);
            async move {
                for _ in 0..UPDATES {
                    count_up(db, "n").await;
                }
            }
        };
        futures::future::join_all((0..WRITERS).map(writer)).await;
        for db in std::iter::once(&first).chain(&second) {
            db.fresh().await.unwrap();
            assert_eq!(state(db, None)["n"].1, WRITERS * UPDATES);
            let steps: Vec<u64> =
                writes(db, made.revision).unwrap().iter().map(|e| number(e.new.as_ref().unwrap())).collect();
            assert_eq!(
                steps,
                (1..=WRITERS * UPDATES).collect::<Vec<_>>(),
                "each update is told once, in order"
            );
        }
    }
}

/// Random writes, some of which conflict.
async fn churn(db: &Database, rounds: usize) {
    for i in 0..rounds {
        let name = format!("m{}", Entropy.rng().random_range(0..12));
        let head = db.head(&key(&name));
        let outcome = match (head, i % 3) {
            (None, _) => db.put(key(&name), Expect::Absent, object(&name, i as u64)).await,
            (Some(head), 0) => db.delete(key(&name), Expect::Revision(head.revision)).await,
            (Some(_), _) => db.put(key(&name), Expect::Present, object(&name, i as u64)).await,
        };
        match outcome {
            Ok(_) | Err(WriteError::Conflict(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// A watch equals the list it began with and the events since, at every revision; also after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn every_store_tells_history_that_adds_up_to_its_state_at_every_revision() {
    for backing in Backing::all() {
        let mut db = backing.open().await;
        churn(&db, 10).await;
        let (start, mut replayed) = (db.revision(), state(&db, None));
        futures::future::join_all((0..4).map(|_| churn(&db, 25))).await;
        if !matches!(backing, Backing::Memory) {
            let (revision, before) = (db.revision(), state(&db, None));
            drop(db);
            db = backing.open().await;
            assert_eq!((db.revision(), state(&db, None)), (revision, before), "a restart changes nothing");
        }
        let mut last = start;
        for event in writes(&db, start).unwrap() {
            assert!(event.revision > last);
            last = event.revision;
            replay(&mut replayed, &event);
            assert_eq!(replayed, state(&db, Some(event.revision)));
        }
        assert_eq!(replayed, state(&db, None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_store_forgets_history_when_told_to_and_says_so() {
    for backing in Backing::all() {
        let db = backing.open().await;
        churn(&db, 20).await;
        let middle = db.revision();
        churn(&db, 20).await;
        let then = state(&db, Some(middle));
        let upto = middle;
        db.compact(upto);
        assert_eq!(state(&db, Some(upto)), then);
        assert!(writes(&db, upto).is_ok());
        assert!(writes(&db, upto - 1).is_err());
        assert!(db.list(&Range::new("configmaps", None), Some(upto - 1)).is_err());
        let now = state(&db, None);
        churn(&db, 1).await;
        if !matches!(backing, Backing::Memory) {
            drop(db);
            let again = backing.open().await;
            assert!(writes(&again, upto).is_ok());
            assert_eq!(
                again.list(&Range::new("configmaps", None), Some(again.revision() - 1)).unwrap().items.len(),
                now.len()
            );
        }
    }
}

/// Returns once `holds` does.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Clock.now() + PATIENCE;
    while !holds() {
        assert!(Clock.now() < end, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_goes_refuses_writes_and_is_followed_again_when_it_comes_back() {
    let mut member = EtcdMember::start();
    let db = Database::connect(&settings(&member)).await.unwrap();
    let first = db.put(key("a"), Expect::Absent, object("a", 1)).await.unwrap();
    member.kill();
    let refused = db.put(key("b"), Expect::Absent, object("b", 1)).await.unwrap_err();
    assert!(matches!(refused, WriteError::Uncertain(_)), "{refused}");
    let blind = db.fresh().await.unwrap_err();
    assert!(matches!(blind, WriteError::Unreachable(_)), "{blind}");
    until("the lost watch is noticed", || db.healthy().is_err()).await;
    assert_eq!(db.get(&key("a")).unwrap().revision, first.revision, "what was seen can still be read");
    member.resume();
    until("etcd is followed again", || db.healthy().is_ok()).await;
    let second = db.put(key("a"), Expect::Revision(first.revision), object("a", 2)).await.unwrap();
    let seen = writes(&db, first.revision).unwrap();
    assert_eq!(seen.last().map(|e| e.revision), Some(second.revision));
}

/// A way to etcd that can be cut.
struct Way {
    address: std::net::SocketAddr,
    open: tokio::sync::watch::Sender<bool>,
}

impl Way {
    async fn to(member: &EtcdMember) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, target) = (listener.local_addr().unwrap(), member.address());
        let open = tokio::sync::watch::Sender::new(true);
        let state = open.subscribe();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (mut state, target) = (state.clone(), target.clone());
                tokio::spawn(async move {
                    if *state.borrow() {
                        let mut server = tokio::net::TcpStream::connect(target).await.unwrap();
                        tokio::select! {
                            _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                            _ = state.wait_for(|open| !open) => {}
                        }
                    }
                });
            }
        });
        Self { address, open }
    }
}

/// Writes that etcd forgot before they were seen: everything is read anew, and who was behind is told that its
/// history is gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_etcd_forgot_while_it_was_out_of_reach_is_read_anew() {
    let member = EtcdMember::start();
    let way = Way::to(&member).await;
    let cut = EtcdSettings { members: vec![way.address.to_string()], ..settings(&member) };
    let behind = Database::connect(&cut).await.unwrap();
    behind.put(key("a"), Expect::Absent, object("a", 1)).await.unwrap();
    let before = behind.revision();
    way.open.send_replace(false);
    until("the lost watch is noticed", || behind.healthy().is_err()).await;
    let mut news = behind.subscribe(&Arc::from("configmaps"));
    news.mark_unchanged();
    let other = Database::connect(&settings(&member)).await.unwrap();
    other.put(key("b"), Expect::Absent, object("b", 1)).await.unwrap();
    let last = other.delete(key("a"), Expect::Present).await.unwrap();
    other.compact(last.revision);
    // Etcd has forgotten once a new follower cannot begin before.
    let end = Clock.now() + PATIENCE;
    while Database::connect(&settings(&member)).await.unwrap().events("configmaps", before, 1).is_ok() {
        assert!(Clock.now() < end, "etcd has not compacted");
    }
    way.open.send_replace(true);
    until("etcd is followed again", || behind.healthy().is_ok()).await;
    behind.fresh().await.unwrap();
    assert_eq!(state(&behind, None), state(&other, None));
    assert_eq!(state(&behind, None).into_keys().collect::<Vec<_>>(), ["b"]);
    assert!(news.has_changed().unwrap(), "watchers are woken");
    assert!(writes(&behind, before).is_err(), "and told that their history is gone");
    behind.put(key("c"), Expect::Absent, object("c", 1)).await.unwrap();
    other.fresh().await.unwrap();
    assert_eq!(state(&behind, None), state(&other, None));
}

#[tokio::test]
async fn an_etcd_that_is_not_there_or_holds_something_else_is_named() {
    let nobody = EtcdSettings { members: vec!["127.0.0.1:1".into()], prefix: "/x".into(), tls: None };
    let refused = Database::connect(&nobody).await.err().unwrap().to_string();
    assert!(refused.contains("127.0.0.1:1") && refused.contains("refused"), "{refused}");
    let unnamed = EtcdSettings { members: vec!["localhost".into()], ..nobody };
    let fault = Database::connect(&unnamed).await.err().unwrap().to_string();
    assert!(fault.contains("HOST:PORT"), "{fault}");
}

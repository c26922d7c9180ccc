//! Acknowledged means durable: a server that is killed comes back with every answered write.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use ambit_api::core::v1::ConfigMap;
use ambit_apiserver::{ApiServer, DiskError, Error, Settings, Storage};
use ambit_runtime::{Clock, Entropy};
use ambit_trust::pki::ClusterPki;
use futures::TryStreamExt as _;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams};
use rand::Rng as _;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Set in the child that is killed: the state directory it writes to.
const CHILD_DIR: &str = "AMBIT_TEST_CHILD_DIR";
/// Set in the child that fills a disk: its state directory.
const SMALL_DISK: &str = "AMBIT_TEST_SMALL_DISK";
/// Size of that disk, and of what the child frees on it.
const DISK_BYTES: usize = 16 << 20;
const BALLAST_BYTES: usize = 6 << 20;
/// Long enough for anything that will happen at all.
const PATIENCE: Duration = Duration::from_secs(60);
/// Set in the same child: makes its objects' names its own.
const CHILD_ROUND: &str = "AMBIT_TEST_CHILD_ROUND";
/// How often the child is killed, if told.
const KILLS: &str = "AMBIT_TEST_KILLS";
const KILLS_AT_LEAST: usize = 5;
/// It is killed after fewer acknowledgements than this.
const ACKNOWLEDGED: usize = 200;
/// Clients of the child at once, so that commits hold several writes.
const WRITERS: usize = 4;

async fn open(dir: &Path) -> Result<ApiServer, Error> {
    ApiServer::open(Settings {
        storage: Storage::Disk(dir.to_owned()),
        listen: None,
        advertise: None,
        pki: ClusterPki::in_memory(&[]).unwrap(),
        service_cidr: "10.96.0.0/16".parse().unwrap(),
        cluster_domain: "cluster.local".into(),
    })
    .await
}

fn maps(server: &ApiServer) -> Api<ConfigMap> {
    Api::default_namespaced(server.client("admin", &["system:masters"]))
}

fn map(name: String) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name), ..ObjectMeta::default() };
    ConfigMap {
        metadata,
        data: Some(BTreeMap::from([("k".into(), "v".repeat(200))])),
        ..ConfigMap::default()
    }
}

/// Not a test of its own: the process that the test below kills. Prints each write once it is acknowledged.
#[tokio::test]
async fn child_that_writes_until_it_is_killed() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let round = std::env::var(CHILD_ROUND).unwrap();
    let server = reopen(Path::new(&dir)).await;
    let writer = |w: usize| {
        let (maps, round) = (maps(&server), round.clone());
        async move {
            for i in 0.. {
                let name = format!("m-{round}-{w}-{i}");
                let made = maps.create(&PostParams::default(), &map(name.clone())).await.unwrap();
                let mut last = made.resource_version().unwrap();
                if i % 3 == 0 {
                    let mut changed = made;
                    changed.data = None;
                    last = maps
                        .replace(&name, &PostParams::default(), &changed)
                        .await
                        .unwrap()
                        .resource_version()
                        .unwrap();
                } else if i % 3 == 1 {
                    maps.delete(&name, &DeleteParams::default()).await.unwrap();
                }
                // One write call per line, so that no line is torn by the kill.
                eprint!("{}", format_args!("ack {name} {last} {}\n", i % 3));
            }
        }
    };
    futures::future::join_all((0..WRITERS).map(writer)).await;
}

/// A write that was answered: object, revision, and what became of the object by number: changed, deleted, kept.
type Acknowledged = (String, u64, String);

/// Lets a child write on the directory and kills it after so many acknowledgements; returns all of them.
fn killed_after(dir: &Path, round: usize, enough: usize) -> Vec<Acknowledged> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_writes_until_it_is_killed", "--nocapture", "--test-threads=1"])
        .env(CHILD_DIR, dir)
        .env(CHILD_ROUND, round.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut acknowledged = Vec::new();
    for line in lines.map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["ack", name, revision, fate] = words[..] {
            acknowledged.push((name.to_owned(), revision.parse::<u64>().unwrap(), fate.to_owned()));
        }
        if acknowledged.len() == enough {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(acknowledged.len() >= enough, "the child ended by itself after {}", acknowledged.len());
    acknowledged
}

/// INV-04: every write that the API server has answered survives `kill -9`; revisions never go back; a watch resumed
/// at a revision from before misses and repeats nothing. `AMBIT_TEST_KILLS=1000` kills that often.
#[tokio::test]
async fn inv_04_acknowledged_writes_survive_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let kills = std::env::var(KILLS).map_or(KILLS_AT_LEAST, |kills| kills.parse().unwrap());
    let mut before = 0;
    for round in 0..kills {
        let enough = Entropy.rng().random_range(1..ACKNOWLEDGED);
        let path = dir.path().to_owned();
        // Not on this thread: what the server before left to do must be done, or the child waits for it.
        let acknowledged =
            tokio::task::spawn_blocking(move || killed_after(&path, round, enough)).await.unwrap();
        let server = reopen(dir.path()).await;
        let maps = maps(&server);
        let list = maps.list(&ListParams::default()).await.unwrap();
        let now: u64 = list.metadata.resource_version.clone().unwrap().parse().unwrap();
        assert!(now > before, "revision {now} is not after {before}, which was read before kill {round}");
        let found: BTreeMap<String, &ConfigMap> = list.iter().map(|m| (m.name_any(), m)).collect();
        for (name, revision, fate) in &acknowledged {
            assert!(now >= *revision, "revision {revision} of {name} is after the newest one, {now}");
            match (fate.as_str(), found.get(name)) {
                ("1", kept) => assert!(kept.is_none(), "{name} was deleted"),
                ("0", Some(kept)) => assert_eq!(kept.data, None, "{name} was changed"),
                (_, Some(kept)) => assert_eq!(kept.resource_version(), Some(revision.to_string()), "{name}"),
                (_, None) => panic!("{name} is lost"),
            }
        }
        let made = maps.create(&PostParams::default(), &map(format!("after-{round}"))).await.unwrap();
        before = made.resource_version().unwrap().parse().unwrap();
        assert_eq!(before, now + 1, "revisions go on where they were");
        let from = acknowledged[acknowledged.len() / 2].1;
        replay_equals_list(&maps, from, before).await;
        // So that the next round is not slower than this one.
        maps.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    }
}

/// Watches from a revision of the killed server on, and applies the events to the state of that revision.
async fn replay_equals_list(maps: &Api<ConfigMap>, from: u64, upto: u64) {
    let exact = ListParams::default().at(&from.to_string()).matching(kube::api::VersionMatch::Exact);
    let mut state: BTreeMap<String, String> = names(&maps.list(&exact).await.unwrap());
    let stream = maps.watch(&WatchParams::default().timeout(30), &from.to_string()).await.unwrap();
    let mut stream = std::pin::pin!(stream);
    let mut last = from;
    while last < upto {
        let (object, kept) = match stream.try_next().await.unwrap().expect("the watch goes on") {
            WatchEvent::Added(o) | WatchEvent::Modified(o) => (o, true),
            WatchEvent::Deleted(o) => (o, false),
            other => panic!("{other:?}"),
        };
        let revision = object.resource_version().unwrap();
        let number: u64 = revision.parse().unwrap();
        assert!(number > last, "{number} comes after {last}");
        last = number;
        match kept {
            true => state.insert(object.name_any(), revision),
            false => state.remove(&object.name_any()),
        };
    }
    assert_eq!(state, names(&maps.list(&ListParams::default()).await.unwrap()));
}

fn names(list: &kube::core::ObjectList<ConfigMap>) -> BTreeMap<String, String> {
    list.iter().map(|m| (m.name_any(), m.resource_version().unwrap_or_default())).collect()
}

/// Not a test of its own: runs where its state directory has little space, a part of which it can set free.
#[tokio::test]
async fn child_that_fills_a_small_disk() {
    let Ok(dir) = std::env::var(SMALL_DISK) else { return };
    let dir = Path::new(&dir);
    std::fs::write(dir.join("ballast"), vec![7; BALLAST_BYTES]).unwrap();
    let server = open(dir).await.unwrap();
    let maps = maps(&server);
    let large = |i: usize| {
        let data = Some(BTreeMap::from([("k".into(), "v".repeat(100_000))]));
        ConfigMap { data, ..map(format!("m-{i}")) }
    };
    let mut made = Vec::new();
    let refused = loop {
        assert!(made.len() < 1000, "the disk never fills");
        match maps.create(&PostParams::default(), &large(made.len())).await {
            Ok(one) => made.push(one.name_any()),
            Err(kube::Error::Api(status)) => break status,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(refused.code, 507, "{refused:?}");
    assert!(refused.message.contains("no space is left to store objects"), "{refused:?}");
    let seen = |list: kube::core::ObjectList<ConfigMap>| {
        let mut names: Vec<String> = list.iter().map(kube::ResourceExt::name_any).collect();
        names.sort();
        names
    };
    made.sort();
    assert_eq!(seen(maps.list(&ListParams::default()).await.unwrap()), made, "what was answered can be read");
    let again = maps.create(&PostParams::default(), &map("small".into())).await.unwrap_err();
    assert!(matches!(&again, kube::Error::Api(status) if status.code == 507), "{again}");
    std::fs::remove_file(dir.join("ballast")).unwrap();
    let end = Clock.now() + PATIENCE;
    while let Err(error) = maps.create(&PostParams::default(), &map("after".into())).await {
        assert!(Clock.now() < end, "there is space, yet: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The write that waited when the space ran out has taken effect, as it was said that it might.
    made.push("after".into());
    made.push(format!("m-{}", made.len() - 1));
    made.sort();
    assert_eq!(seen(maps.list(&ListParams::default()).await.unwrap()), made);
    drop((maps, server));
    let server = reopen(dir).await;
    assert_eq!(seen(self::maps(&server).list(&ListParams::default()).await.unwrap()), made);
}

/// The server on a state directory whose last one has been dropped, and lets it go once its clients' tasks have ended.
async fn reopen(dir: &Path) -> ApiServer {
    let end = Clock.now() + PATIENCE;
    loop {
        match open(dir).await {
            Err(Error::Disk(DiskError::Locked { .. })) if Clock.now() < end => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            opened => return opened.unwrap(),
        }
    }
}

/// A full disk refuses writes with 507, loses nothing that was answered, and takes writes again when there is space.
#[test]
fn inv_04_a_full_disk_refuses_writes_and_loses_none() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size={DISK_BYTES} none {0} && exec {1} --exact child_that_fills_a_small_disk --nocapture",
        dir.path().display(),
        std::env::current_exe().unwrap().display(),
    );
    // The mount ends with the namespace.
    let ran =
        Command::new("unshare").args(["--mount", "sh", "-c", &script]).env(SMALL_DISK, dir.path()).output();
    let ran = ran.unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
async fn a_database_in_use_or_damaged_is_refused_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await.unwrap();
    let file = dir.path().join("objects.redb");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "secrets are in there");
    let second = open(dir.path()).await.unwrap_err();
    assert!(matches!(second, Error::Disk(DiskError::Locked { ref path }) if *path == file), "{second}");
    drop(server);
    let absent = open(&dir.path().join("absent")).await.unwrap_err().to_string();
    assert!(absent.contains("cannot create") && absent.contains("absent/objects.redb"), "{absent}");
    std::fs::write(&file, "this is not a database, whatever its name says").unwrap();
    let damaged = open(dir.path()).await.unwrap_err();
    assert!(
        matches!(damaged, Error::Disk(DiskError::Damaged { ref path, .. }) if *path == file),
        "{damaged}"
    );
}

#[tokio::test]
async fn an_address_in_use_is_refused_before_the_database_is_touched() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings {
        storage: Storage::Disk(dir.path().to_owned()),
        listen: Some(taken.local_addr().unwrap()),
        advertise: None,
        pki: ClusterPki::in_memory(&[]).unwrap(),
        service_cidr: "10.96.0.0/16".parse().unwrap(),
        cluster_domain: "cluster.local".into(),
    };
    let error = ApiServer::open(settings).await.unwrap_err();
    assert!(error.to_string().contains(&taken.local_addr().unwrap().to_string()), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

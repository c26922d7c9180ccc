//! Informers under a transport that fails: whatever happens on the way, a view ends as the server's list, and what is
//! told of each object is an unbroken chain of real changes, each to a newer revision.

use crate::cluster::{Cluster, PATIENCE, eventually};
use ambit_api::core::v1::ConfigMap;
use ambit_kube::{Change, Informer, Informers, ObjectKey, Query, Selection};
use ambit_runtime::Shutdown;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Client, Resource};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Histories, all at once, each in a namespace of its own.
const HISTORIES: u64 = 32;
/// Writes of one history at least; it goes on until every fault has struck.
const WRITES: usize = 40;
/// Faults of one history; afterwards the transport is whole, so that the view can settle.
const FAULTS: usize = 10;
/// Faults of one history that make an object vanish where no watch sees it.
const VANISHING: usize = 2;
/// Bytes after which an answer breaks: most often after an event, as delays grow until something is learnt.
const BYTES: std::ops::Range<usize> = 300..2000;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Frames = BoxStream<'static, Result<Frame<Bytes>, Failure>>;
type Answer = Response<StreamBody<Frames>>;

/// What goes wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// It never reaches the server.
    Unsent,
    /// The server does it, and the answer is lost.
    Unanswered,
    Status(u16),
    /// The answer comes late, and a watch ends after so many bytes.
    Late(usize),
    /// The answer breaks after so many bytes, most likely within a line.
    Broken(usize),
    /// The answer ends in order after so many bytes.
    Ended(usize),
    /// A line that is no document comes first.
    Garbage,
    /// An event comes first that says that the revision has expired; meanwhile an object has vanished.
    Expired,
}

impl Fault {
    fn name(self) -> String {
        format!("{self:?}").split('(').next().unwrap_or_default().to_owned()
    }

    fn random(rng: &mut StdRng) -> Self {
        match rng.random_range(0..10) {
            0 => Self::Unsent,
            1 => Self::Unanswered,
            2 => Self::Status([401, 410, 429, 500, 503][rng.random_range(0..5)]),
            3 | 4 => Self::Late(rng.random_range(BYTES)),
            5 | 6 => Self::Broken(rng.random_range(BYTES)),
            7 | 8 => Self::Ended(rng.random_range(BYTES)),
            _ => Self::Garbage,
        }
    }

    /// Whether it only strikes watches.
    fn is_of_watches(self) -> bool {
        matches!(self, Self::Late(_) | Self::Broken(_) | Self::Ended(_) | Self::Garbage | Self::Expired)
    }
}

/// What is to go wrong, and what did.
struct Plan {
    faults: Vec<Fault>,
    /// Objects that vanish with [`Fault::Expired`].
    victims: Vec<String>,
    struck: Vec<Fault>,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut faults: Vec<Fault> = (VANISHING..FAULTS).map(|_| Fault::random(&mut rng)).collect();
        for _ in 0..VANISHING {
            faults.insert(rng.random_range(0..=faults.len()), Fault::Expired);
        }
        let victims = (0..VANISHING).map(|number| format!("victim-{number}")).collect();
        Self { faults, victims, struck: Vec::new() }
    }

    /// The next fault that can strike a request of this kind.
    fn next(&mut self, is_watch: bool) -> Option<Fault> {
        let at = self.faults.iter().position(|fault| is_watch || !fault.is_of_watches())?;
        Some(self.faults.remove(at))
    }

    fn is_spent(&self) -> bool {
        self.struck.len() == FAULTS
    }
}

type SharedPlan = Arc<Mutex<Plan>>;

fn note(plan: &SharedPlan, fault: Fault) {
    plan.lock().expect("no request panics").struck.push(fault);
}

/// A client whose requests meet faults, on a server that does not stream its state if it is an old one.
fn faulty(inner: Client, api: Api<ConfigMap>, plan: SharedPlan, is_old: bool) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let asks = |what: &str| request.uri().query().is_some_and(|query| query.contains(what));
        let is_refused = is_old && asks("sendInitialEvents=");
        let next = |is_watch| plan.lock().expect("no request panics").next(is_watch);
        let fault = if is_refused { None } else { next(asks("watch=")) };
        let (client, api, plan) = (inner.clone(), api.clone(), plan.clone());
        async move {
            match fault {
                _ if is_refused => Ok(refusal(422)),
                Some(fault) => struck(fault, (client, api), request, plan).await,
                None => Ok(client.send(request).await?.map(|body| StreamBody::new(frames(body)))),
            }
        }
    });
    Client::new(service, "default")
}

/// The answer to a request that a fault strikes.
async fn struck(
    fault: Fault,
    (client, api): (Client, Api<ConfigMap>),
    request: Request<Body>,
    plan: SharedPlan,
) -> Result<Answer, Failure> {
    let cut_later = matches!(fault, Fault::Late(_) | Fault::Broken(_) | Fault::Ended(_));
    if !cut_later {
        note(&plan, fault);
    }
    match fault {
        Fault::Unsent => return Err("no route to the server".into()),
        Fault::Status(code) => return Ok(refusal(code)),
        Fault::Late(_) => tokio::time::sleep(Duration::from_millis(30)).await,
        Fault::Expired => {
            let victim =
                plan.lock().expect("no request panics").victims.pop().expect("as many as such faults");
            api.delete(&victim, &DeleteParams::default()).await?;
        }
        _ => {}
    }
    let response = client.send(request).await?.map(frames);
    Ok(match fault {
        Fault::Unanswered => return Err("connection reset".into()),
        Fault::Late(bytes) | Fault::Broken(bytes) | Fault::Ended(bytes) => {
            cut(response, bytes, move || note(&plan, fault), matches!(fault, Fault::Broken(_)))
        }
        Fault::Garbage => preceded(response, "{\"type\":\"ADDED\",\n"),
        Fault::Expired => {
            let status = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired",
                "message": "too old resource version"}});
            preceded(response, &format!("{status}\n"))
        }
        Fault::Unsent | Fault::Status(_) => unreachable!("answered above"),
    })
}

fn frames(body: Body) -> Frames {
    body.into_data_stream().map(|chunk| chunk.map(Frame::data).map_err(Failure::from)).boxed()
}

fn line(text: &str) -> Frames {
    let frame = Frame::data(Bytes::copy_from_slice(text.as_bytes()));
    stream::iter([Ok(frame)]).boxed()
}

fn refusal(code: u16) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Injected",
        "message": "injected"});
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(StreamBody::new(line(&status.to_string()))).expect("a response")
}

/// The answer up to so many bytes, then an error or the end.
fn cut(
    response: Response<Frames>,
    bytes: usize,
    done: impl FnOnce() + Send + 'static,
    breaks: bool,
) -> Answer {
    response.map(|frames| {
        let short = stream::unfold((frames, bytes), |(mut frames, left)| async move {
            if left == 0 {
                return None;
            }
            let frame = frames.next().await?;
            let mut data = frame.ok()?.into_data().ok()?;
            data.truncate(left);
            let left = left - data.len();
            Some((Ok(Frame::data(data)), (frames, left)))
        });
        let end = stream::once(async move {
            done();
            breaks.then(|| Err::<Frame<Bytes>, Failure>("connection reset".into()))
        });
        StreamBody::new(short.chain(end.filter_map(futures::future::ready)).boxed())
    })
}

fn preceded(response: Response<Frames>, first: &str) -> Answer {
    response.map(|frames| StreamBody::new(line(first).chain(frames).boxed()))
}

/// UID and revision.
type Version = (String, u64);

fn version(map: &ConfigMap) -> Version {
    let meta = map.meta();
    let revision = meta.resource_version.as_deref().and_then(|text| text.parse().ok());
    (meta.uid.clone().unwrap_or_default(), revision.expect("the server's revisions are numbers"))
}

/// Checks that changes make a chain; keeps the last version of each object.
#[derive(Default)]
struct Chain {
    last: BTreeMap<String, Version>,
    /// The newest revision that was ever told of a name.
    newest: BTreeMap<String, u64>,
    broken: Vec<String>,
    changes: usize,
}

type SharedChain = Arc<Mutex<Chain>>;

impl Chain {
    /// One that is told what an informer tells.
    fn of(informer: &Informer<ConfigMap>) -> SharedChain {
        let chain = SharedChain::default();
        let told = chain.clone();
        informer.on_change(move |change| told.lock().expect("no handler panics").take(change));
        chain
    }

    fn take(&mut self, change: &Change<ConfigMap>) {
        self.changes += 1;
        let name = ObjectKey::of(change.latest().as_ref()).name;
        let (old, new) = (change.old.as_deref().map(version), change.new.as_deref().map(version));
        if self.last.get(&name) != old.as_ref() {
            self.broken.push(format!("{name}: {old:?} follows {:?}", self.last.get(&name)));
        }
        if let (Some(old), Some(new)) = (&old, &new)
            && (old.0 != new.0 || old.1 >= new.1)
        {
            self.broken.push(format!("{name}: {old:?} to {new:?} is no change of one object"));
        }
        match new {
            Some(new) => {
                let newest = self.newest.entry(name.clone()).or_default();
                if *newest > new.1 {
                    self.broken.push(format!("{name}: {new:?} was told after revision {newest}"));
                }
                *newest = new.1;
                self.last.insert(name, new)
            }
            None => self.last.remove(&name),
        };
    }
}

async fn write(api: &Api<ConfigMap>, rng: &mut StdRng) {
    let name = format!("m{}", rng.random_range(0..4));
    let team = if rng.random_bool(0.6) { "x" } else { "y" };
    let body = json!({"metadata": {"name": name, "labels": {"team": team}}, "data": {"n": rng.random::<u32>().to_string()}});
    if rng.random_bool(0.3) {
        // It may not be there.
        let _ = api.delete(&name, &DeleteParams::default()).await;
    } else if api.patch(&name, &PatchParams::default(), &Patch::Merge(&body)).await.is_err() {
        let map = serde_json::from_value(body).expect("a ConfigMap");
        api.create(&PostParams::default(), &map).await.expect("it is created");
    }
}

/// Of what a selection shows, told by data that every write changes.
fn is_even(map: &ConfigMap) -> bool {
    let number = map.data.as_ref().and_then(|data| data.get("n")?.parse::<u32>().ok());
    number.is_some_and(|number| number % 2 == 0)
}

/// Writes until there have been enough and every fault has struck.
async fn live(api: &Api<ConfigMap>, rng: &mut StdRng, plan: &SharedPlan, selection: &Selection<ConfigMap>) {
    let mut written = 0;
    while written < WRITES || !plan.lock().expect("no request panics").is_spent() {
        write(api, rng).await;
        written += 1;
        // A pause now and then lets watches begin and break in the middle of a history.
        if written > WRITES || rng.random_bool(0.3) {
            tokio::time::sleep(Duration::from_millis(rng.random_range(1..40))).await;
        }
        match rng.random_range(0..12) {
            0 => selection.choose(|map| !is_even(map)),
            1 => selection.choose(is_even),
            2 => selection.refresh(),
            _ => {}
        }
    }
    selection.choose(is_even);
}

/// Lives through one history; returns the faults that struck and how many changes were told.
async fn history(client: Client, seed: u64) -> (Vec<Fault>, usize) {
    let namespace = format!("history-{seed}");
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let mut rng = StdRng::seed_from_u64(seed);
    let plan = Arc::new(Mutex::new(Plan::new(seed + 1000)));
    let victims = plan.lock().expect("nothing panics").victims.clone();
    for name in &victims {
        let map = json!({"metadata": {"name": name, "labels": {"team": "x"}}, "data": {"n": "2"}});
        let map = serde_json::from_value(map).expect("a ConfigMap");
        api.create(&PostParams::default(), &map).await.expect("it is created");
    }
    let informers = Informers::new(faulty(client, api.clone(), plan.clone(), seed % 2 == 1));
    let view = informers.informer::<ConfigMap>(Query::all().namespace(&namespace).labels("team=x"));
    let (part, selection) = view.select(is_even);
    let chains = [Chain::of(&view), Chain::of(&part)];
    let stop = Shutdown::new();
    let lived =
        async { tokio::join!(informers.run_and_wait(&stop), live(&api, &mut rng, &plan, &selection)) };
    let (synced, ()) = tokio::time::timeout(PATIENCE, lived).await.expect("every fault strikes in time");
    synced.expect("it syncs");
    // What comes after the last fault comes, too.
    write(&api, &mut rng).await;
    let params = ListParams::default().labels("team=x");
    eventually(&format!("the view of history {seed} is the server's list"), async || {
        let list = api.list(&params).await.ok()?.items;
        let versions = |maps: &mut dyn Iterator<Item = &ConfigMap>| -> BTreeMap<String, Version> {
            maps.map(|map| (ObjectKey::of(map).name, version(map))).collect()
        };
        let wanted = [versions(&mut list.iter()), versions(&mut list.iter().filter(|map| is_even(map)))];
        let shown = [view.list(), part.list()].map(|maps| versions(&mut maps.iter().map(AsRef::as_ref)));
        let told = chains.each_ref().map(|chain| {
            let chain = chain.lock().expect("no handler panics");
            assert!(chain.broken.is_empty(), "history {seed}: {:?}", chain.broken);
            chain.last.clone()
        });
        (wanted == shown && wanted == told).then_some(())
    })
    .await;
    stop.cancel();
    informers.join().await.expect("no informer panics");
    assert!(
        victims.iter().all(|name| view.get(Some(&namespace), name).is_none()),
        "history {seed}: {victims:?}"
    );
    let struck = std::mem::take(&mut plan.lock().expect("no request panics").struck);
    assert_eq!(struck.len(), FAULTS, "history {seed}");
    let changes = chains[0].lock().expect("no handler panics").changes;
    (struck, changes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_recover_from_every_fault_without_missing_or_doubling_a_change() {
    let cluster = Cluster::bare().await;
    for seed in 0..HISTORIES {
        cluster.create_namespace(&format!("history-{seed}")).await;
    }
    let all = (0..HISTORIES).map(|seed| history(cluster.client.clone(), seed));
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let mut changes = 0;
    for (struck, told) in futures::future::join_all(all).await {
        changes += told;
        for fault in struck {
            *kinds.entry(fault.name()).or_default() += 1;
        }
    }
    // Every kind of fault was met, else the test would prove less than it says.
    assert_eq!(kinds.len(), 8, "{kinds:?}");
    assert!(changes > WRITES, "{changes} changes");
    cluster.stop().await;
}

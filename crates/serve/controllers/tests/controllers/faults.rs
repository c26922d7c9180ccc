//! Informers under a transport that fails: whatever happens on the way, a view ends as the server's list, and what is
//! told of each object is an unbroken chain of real changes.

use crate::cluster::{Cluster, eventually};
use ambit_api::core::v1::ConfigMap;
use ambit_kube::{Change, Informers, ObjectKey, Query};
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
/// Writes of one history.
const WRITES: usize = 40;
/// Faults of one history; afterwards the transport is whole, so that the view can settle.
const FAULTS: u32 = 10;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Frames = BoxStream<'static, Result<Frame<Bytes>, Failure>>;
type Answer = Response<StreamBody<Frames>>;

/// What goes wrong with one request.
#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    /// It never reaches the server.
    Unsent,
    /// The server does it, and the answer is lost.
    Unanswered,
    Status(u16),
    Late,
    /// The answer breaks after so many bytes, most likely within a line.
    Broken(usize),
    /// The answer ends in order after so many bytes.
    Ended(usize),
    /// A line that is no event comes first.
    Garbage,
    /// An event comes first that says that the revision has expired.
    Expired,
}

struct Transport {
    inner: Client,
    rng: StdRng,
    left: u32,
    injected: BTreeMap<String, u32>,
}

impl Transport {
    fn next(&mut self) -> Fault {
        if self.left == 0 || self.rng.random_bool(0.4) {
            return Fault::None;
        }
        self.left -= 1;
        let bytes = self.rng.random_range(0..1500);
        let fault = match self.rng.random_range(0..10) {
            0 => Fault::Unsent,
            1 => Fault::Unanswered,
            2 => Fault::Status([401, 410, 429, 500, 503][self.rng.random_range(0..5)]),
            3 => Fault::Late,
            4 | 5 => Fault::Broken(bytes),
            6 | 7 => Fault::Ended(bytes),
            8 => Fault::Garbage,
            _ => Fault::Expired,
        };
        let name = format!("{fault:?}").split('(').next().unwrap_or_default().to_owned();
        *self.injected.entry(name).or_default() += 1;
        fault
    }
}

/// A client whose requests meet faults.
fn faulty(transport: Arc<Mutex<Transport>>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, fault) = {
            let mut transport = transport.lock().expect("no request panics");
            (transport.inner.clone(), transport.next())
        };
        async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
            match fault {
                Fault::Unsent => return Err("no route to the server".into()),
                Fault::Status(code) => return Ok(refusal(code)),
                Fault::Late => tokio::time::sleep(Duration::from_millis(30)).await,
                _ => {}
            }
            let response = client.send(request).await?.map(frames);
            Ok::<_, Failure>(match fault {
                Fault::Unanswered => return Err("connection reset".into()),
                Fault::Broken(bytes) => cut(response, bytes, true),
                Fault::Ended(bytes) if is_watch => cut(response, bytes, false),
                Fault::Garbage if is_watch => preceded(response, "{\"type\":\"ADDED\",\"object\":7}\n"),
                Fault::Expired if is_watch => {
                    let status = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired",
                        "message": "too old resource version"}});
                    preceded(response, &format!("{status}\n"))
                }
                _ => response.map(StreamBody::new),
            })
        }
    });
    Client::new(service, "default")
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
fn cut(response: Response<Frames>, bytes: usize, breaks: bool) -> Answer {
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
        let end = stream::iter(breaks.then(|| Err::<Frame<Bytes>, Failure>("connection reset".into())));
        StreamBody::new(short.chain(end).boxed())
    })
}

fn preceded(response: Response<Frames>, first: &str) -> Answer {
    response.map(|frames| StreamBody::new(line(first).chain(frames).boxed()))
}

/// UID and revision.
type Version = (String, String);

fn version(map: &ConfigMap) -> Version {
    let meta = map.meta();
    (meta.uid.clone().unwrap_or_default(), meta.resource_version.clone().unwrap_or_default())
}

/// Checks that changes make a chain; keeps the last version of each object.
#[derive(Default)]
struct Chain {
    last: BTreeMap<String, Version>,
    broken: Vec<String>,
    changes: usize,
}

impl Chain {
    fn take(&mut self, change: &Change<ConfigMap>) {
        self.changes += 1;
        let name = ObjectKey::of(change.latest().as_ref()).name;
        let (old, new) = (change.old.as_deref().map(version), change.new.as_deref().map(version));
        if self.last.get(&name) != old.as_ref() {
            self.broken.push(format!("{name}: {old:?} follows {:?}", self.last.get(&name)));
        }
        if let (Some(old), Some(new)) = (&old, &new)
            && (old.0 != new.0 || old.1 == new.1)
        {
            self.broken.push(format!("{name}: {old:?} to {new:?} is no change of one object"));
        }
        match new {
            Some(new) => self.last.insert(name, new),
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

/// Lives through one history; returns the faults that were injected and the changes that were told.
async fn history(client: Client, seed: u64) -> (BTreeMap<String, u32>, usize) {
    let namespace = format!("history-{seed}");
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let mut rng = StdRng::seed_from_u64(seed);
    write(&api, &mut rng).await;
    let transport = Transport {
        inner: client,
        rng: StdRng::seed_from_u64(seed + 1000),
        left: FAULTS,
        injected: BTreeMap::new(),
    };
    let transport = Arc::new(Mutex::new(transport));
    let informers = Informers::new(faulty(transport.clone()));
    let chain: Arc<Mutex<Chain>> = Arc::default();
    let view = informers.informer::<ConfigMap>(Query::all().namespace(&namespace).labels("team=x"));
    let told = chain.clone();
    view.on_change(move |change| told.lock().expect("no handler panics").take(change));
    let stop = Shutdown::new();
    let writes = async {
        for _ in 0..WRITES {
            write(&api, &mut rng).await;
            // A pause now and then lets watches begin and break in the middle of a history.
            if rng.random_bool(0.3) {
                tokio::time::sleep(Duration::from_millis(rng.random_range(1..40))).await;
            }
        }
    };
    let (synced, ()) = tokio::join!(informers.run_and_wait(&stop), writes);
    synced.expect("it syncs");
    let params = ListParams::default().labels("team=x");
    eventually(&format!("the view of history {seed} is the server's list"), async || {
        let list = api.list(&params).await.ok()?;
        let wanted: BTreeMap<String, Version> =
            list.items.iter().map(|map| (ObjectKey::of(map).name, version(map))).collect();
        let shown = view.list().iter().map(|map| (ObjectKey::of(map.as_ref()).name, version(map))).collect();
        let chain = chain.lock().expect("no handler panics");
        assert!(chain.broken.is_empty(), "history {seed}: {:?}", chain.broken);
        (wanted == shown && chain.last == wanted).then_some(())
    })
    .await;
    stop.cancel();
    informers.join().await.expect("no informer panics");
    let injected = transport.lock().expect("no request panics").injected.clone();
    let changes = chain.lock().expect("no handler panics").changes;
    (injected, changes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_recover_from_every_fault_without_missing_or_doubling_a_change() {
    let cluster = Cluster::bare().await;
    for seed in 0..HISTORIES {
        cluster.create_namespace(&format!("history-{seed}")).await;
    }
    let all = (0..HISTORIES).map(|seed| history(cluster.client.clone(), seed));
    let mut injected: BTreeMap<String, u32> = BTreeMap::new();
    let mut changes = 0;
    for (faults, told) in futures::future::join_all(all).await {
        changes += told;
        for (fault, count) in faults {
            *injected.entry(fault).or_default() += count;
        }
    }
    // Every kind of fault was met, else the test would prove less than it says.
    assert_eq!(injected.len(), 8, "{injected:?}");
    assert!(changes > WRITES, "{changes} changes");
    cluster.stop().await;
}

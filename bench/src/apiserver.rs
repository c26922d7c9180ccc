//! The API server as a process of its own, over TLS with a client certificate: start, durable writes, reads, watches,
//! memory. Server and driver share the machine.

use crate::measure::Suite;
use crate::pods;
use crate::server::Server;
use ambit_runtime::Clock;
use anyhow::{Context as _, Result, ensure};
use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const READY: &str = "apiserver/start to ready, empty";
const READY_FULL: &str = "apiserver/start to ready, 100,000 objects";
const IDLE: &str = "apiserver/memory, idle and empty";
const PER_OBJECT: &str = "apiserver/memory of an object of 1 KiB";
/// Writes a second while all watch.
const FAN_OUTS: [(&str, u32); 2] =
    [("apiserver/watch, 1,000 watchers × 100/s", 100), ("apiserver/watch, 1,000 watchers × 50/s", 50)];
const FAN_OUT_CPU: &str = "apiserver/watch, processor time of an event";
const PODS: &str = "apiserver/list of 10,000 pods";
const PAGES: &str = "apiserver/list of 10,000 pods, pages of 500";
/// Kinds of requests, measured at each number of clients.
const VERBS: [Verb; 5] = [Verb::Create, Verb::Get, Verb::Merge, Verb::Apply, Verb::Delete];
/// Clients at once.
const CLIENTS: [usize; 3] = [1, 16, 64];
/// Requests of a kind: for one client, for many.
const REQUESTS: [usize; 2] = [1_000, 10_000];
/// Starts of an empty server.
const STARTS: usize = 15;
/// Objects of the server that starts full, and starts of it.
const FULL: (usize, usize) = (100_000, 5);
const LISTED_PODS: usize = 10_000;
const LISTS: usize = 10;
const WATCHERS: usize = 1_000;
/// Seconds of writes while all watch.
const FAN_OUT_SECONDS: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Create,
    Get,
    Merge,
    Apply,
    Delete,
}

impl Verb {
    fn name(self, clients: usize) -> String {
        let verb = match self {
            Self::Create => "create",
            Self::Get => "get",
            Self::Merge => "merge patch",
            Self::Apply => "server-side apply",
            Self::Delete => "delete",
        };
        match clients {
            1 => format!("apiserver/{verb}, 1 KiB, 1 client"),
            many => format!("apiserver/{verb}, 1 KiB, {many} clients"),
        }
    }
}

pub(crate) fn run(suite: &mut Suite, programs: &Path) -> Result<()> {
    let verbs = VERBS.iter().flat_map(|verb| CLIENTS.map(|clients| verb.name(clients)));
    let mut names: Vec<String> =
        [READY, IDLE, READY_FULL, PER_OBJECT, PODS, PAGES, FAN_OUT_CPU].map(String::from).into();
    names.extend(FAN_OUTS.map(|(name, _)| name.to_owned()));
    names.extend(verbs);
    if !names.iter().any(|name| suite.wants(name)) {
        return Ok(());
    }
    let Some(program) = suite.program(programs.join("ambit"), &names) else { return Ok(()) };
    let runtime = Runtime::new()?;
    starts(suite, &runtime, &program)?;
    runtime.block_on(requests(suite, &program))?;
    runtime.block_on(full(suite, &program))?;
    runtime.block_on(lists(suite, &program))?;
    for (name, rate) in FAN_OUTS {
        if suite.wants(name) || suite.wants(FAN_OUT_CPU) {
            runtime.block_on(fan_out(suite, &program, (name, rate)))?;
        }
    }
    Ok(())
}

fn starts(suite: &mut Suite, runtime: &Runtime, program: &Path) -> Result<()> {
    if ![READY, IDLE].iter().any(|name| suite.wants(name)) {
        return Ok(());
    }
    let mut samples = Vec::new();
    let mut idle = 0;
    for _ in 0..STARTS {
        let state = tempfile::tempdir()?;
        let server = runtime.block_on(Server::start(program, state.path()))?;
        samples.push(server.ready_after);
        idle = server.memory()?;
    }
    if suite.wants(READY) {
        suite.record(READY, samples);
    }
    suite.record_bytes(IDLE, idle);
    Ok(())
}

/// A ConfigMap of about 1 KiB.
fn map(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": "bench"}},
        "data": {"text": text, "more": "x".repeat(800)}})
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// One request of a kind about the object of a number.
fn request(verb: Verb, number: usize) -> Result<Request<Vec<u8>>> {
    let name = format!("map-{number:06}");
    let object = format!("{MAPS}/{name}");
    let (method, uri, content, body) = match verb {
        Verb::Create => (Method::POST, MAPS.to_owned(), "application/json", map(&name, "created")),
        Verb::Get => (Method::GET, object, "application/json", Value::Null),
        Verb::Merge => {
            (Method::PATCH, object, "application/merge-patch+json", json!({"data": {"text": "merged"}}))
        }
        Verb::Apply => (
            Method::PATCH,
            format!("{object}?fieldManager=bench&force=true"),
            "application/apply-patch+yaml",
            map(&name, "applied"),
        ),
        Verb::Delete => (Method::DELETE, object, "application/json", Value::Null),
    };
    let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(&body)? };
    Ok(Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, content).body(body)?)
}

/// Does `count` requests of a kind with `clients` at once; their times, and how long all took.
async fn drive(
    client: &Client,
    verb: Verb,
    (clients, count): (usize, usize),
) -> Result<(Vec<Duration>, Duration)> {
    let next = AtomicU64::new(0);
    let begun = Clock.now();
    let one = |_: usize| async {
        let mut samples = Vec::new();
        loop {
            let number = usize::try_from(next.fetch_add(1, Ordering::Relaxed))?;
            if number >= count {
                return Ok::<_, anyhow::Error>(samples);
            }
            let request = request(verb, number)?;
            let begun = Clock.now();
            client.request_text(request).await?;
            samples.push(Clock.now() - begun);
        }
    };
    let all = futures::future::try_join_all((0..clients).map(one)).await?;
    Ok((all.concat(), Clock.now() - begun))
}

/// Each kind of request at each number of clients, on a server that has no other objects.
async fn requests(suite: &mut Suite, program: &Path) -> Result<()> {
    for clients in CLIENTS {
        if !VERBS.iter().any(|verb| suite.wants(&verb.name(clients))) {
            continue;
        }
        let state = tempfile::tempdir()?;
        let server = Server::start(program, state.path()).await?;
        let count = if clients == 1 { REQUESTS[0] } else { REQUESTS[1] };
        for verb in VERBS {
            let (samples, took) = drive(&server.client, verb, (clients, count)).await?;
            if suite.wants(&verb.name(clients)) {
                suite.record_rate(&verb.name(clients), samples, took);
            }
        }
    }
    Ok(())
}

async fn full(suite: &mut Suite, program: &Path) -> Result<()> {
    if ![READY_FULL, PER_OBJECT].iter().any(|name| suite.wants(name)) {
        return Ok(());
    }
    let state = tempfile::tempdir()?;
    let server = Server::start(program, state.path()).await?;
    let empty = server.memory()?;
    drive(&server.client, Verb::Create, (64, FULL.0)).await?;
    drop(server);
    let (mut samples, mut memory) = (Vec::new(), 0);
    for _ in 0..FULL.1 {
        let server = Server::start(program, state.path()).await?;
        samples.push(server.ready_after);
        memory = server.memory()?;
    }
    if suite.wants(READY_FULL) {
        suite.record(READY_FULL, samples);
    }
    suite.record_bytes(PER_OBJECT, memory.saturating_sub(empty) / FULL.0 as u64);
    Ok(())
}

async fn lists(suite: &mut Suite, program: &Path) -> Result<()> {
    if ![PODS, PAGES].iter().any(|name| suite.wants(name)) {
        return Ok(());
    }
    let state = tempfile::tempdir()?;
    let server = Server::start(program, state.path()).await?;
    let client = &server.client;
    let path = pods::PATH;
    pods::make(client, LISTED_PODS).await?;
    let get = |uri: String| async move {
        Ok::<_, anyhow::Error>(client.request_text(Request::get(uri).body(Vec::new())?).await?)
    };
    let (mut whole, mut paged) = (Vec::new(), Vec::new());
    for _ in 0..LISTS {
        let begun = Clock.now();
        let text = get(path.to_owned()).await?;
        whole.push(Clock.now() - begun);
        ensure!(text.matches("\"pod-").count() >= LISTED_PODS, "the list lacks pods");
        let begun = Clock.now();
        let (mut token, mut found) = (String::new(), 0);
        loop {
            let page: Value =
                serde_json::from_str(&get(format!("{path}?limit=500&continue={token}")).await?)?;
            found += page["items"].as_array().map_or(0, Vec::len);
            match page["metadata"]["continue"].as_str() {
                Some(next) => next.clone_into(&mut token),
                None => break,
            }
        }
        paged.push(Clock.now() - begun);
        ensure!(found == LISTED_PODS, "pages lack pods");
    }
    for (name, samples) in [(PODS, whole), (PAGES, paged)] {
        if suite.wants(name) {
            suite.record(name, samples);
        }
    }
    Ok(())
}

/// Time from the intended start of a write to its receipt by a watcher, over all watchers.
async fn fan_out(suite: &mut Suite, program: &Path, (name, rate): (&str, u32)) -> Result<()> {
    let state = tempfile::tempdir()?;
    let server = Server::start(program, state.path()).await?;
    let client = &server.client;
    let writes = usize::try_from(rate * FAN_OUT_SECONDS)?;
    client.request_text(request(Verb::Create, 0)?).await?;
    let created: Value = serde_json::from_str(&client.request_text(request(Verb::Get, 0)?).await?)?;
    let from = created["metadata"]["resourceVersion"].as_str().context("no revision")?;
    let watching = (0..WATCHERS).map(|_| async {
        let request = Request::get(format!("{MAPS}?watch=true&resourceVersion={from}")).body(Body::empty())?;
        let response = client.send(request).await?;
        ensure!(response.status().is_success(), "a watch was answered with {}", response.status());
        Ok(response.into_body())
    });
    let streams = futures::future::try_join_all(watching).await?;
    let (begun, cpu_before) = (Clock.now(), server.cpu_time()?);
    let received = streams.into_iter().map(|mut stream| async move {
        let (mut latencies, mut rest) = (Vec::with_capacity(writes), Vec::new());
        while latencies.len() < writes {
            let frame = stream.frame().await.context("a watch has ended")??;
            let Ok(data) = frame.into_data() else { continue };
            rest.extend_from_slice(&data);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let number = number_of(&rest[..end])?;
                ensure!(number as usize == latencies.len(), "an event is missing, doubled or out of order");
                latencies.push(Clock.now().saturating_duration_since(due(begun, rate, number)));
                rest.drain(..=end);
            }
        }
        Ok(latencies)
    });
    let received: Vec<_> = received.map(tokio::spawn).collect();
    for number in 0..u32::try_from(writes)? {
        tokio::time::sleep_until(due(begun, rate, number).into()).await;
        let body = serde_json::to_vec(&json!({"data": {"text": number.to_string()}}))?;
        let patch = Request::patch(format!("{MAPS}/map-000000"))
            .header(header::CONTENT_TYPE, "application/merge-patch+json")
            .body(body)?;
        client.request_text(patch).await?;
    }
    let mut samples = Vec::new();
    for one in received {
        samples.append(&mut one.await??);
    }
    if suite.wants(name) {
        suite.record(name, samples);
    }
    if rate == FAN_OUTS[0].1 {
        suite.record_each(FAN_OUT_CPU, server.cpu_time()? - cpu_before, WATCHERS * writes);
    }
    Ok(())
}

/// The number that a write put into an object, found without reading the whole of it: the driver shares the machine.
fn number_of(line: &[u8]) -> Result<u32> {
    const BEFORE: &[u8] = b"\"text\":\"";
    let at =
        line.windows(BEFORE.len()).position(|window| window == BEFORE).context("an event without number")?;
    let digits = line[at + BEFORE.len()..].split(|byte| *byte == b'"').next().unwrap_or_default();
    Ok(std::str::from_utf8(digits)?.parse()?)
}

/// When a write is to be done, whatever became late before it.
fn due(begun: Instant, rate: u32, number: u32) -> Instant {
    begun + Duration::from_secs(1) * number / rate
}

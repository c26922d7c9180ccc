use super::*;
use ambit_collect::Batch;
use ambit_mesh::{Mesh, MeshSettings, ObjectName};
use serde_json::{Value, json};

/// A mesh whose snapshots a session is shown.
struct World {
    mesh: Mesh,
    snapshot: Arc<Snapshot>,
}

/// A pod on a node, labelled `app: web` and captured or not.
fn pod(name: &str, node: &str, captured: bool) -> Value {
    let state = if captured { "enabled" } else { "pending" };
    let last = name.bytes().last().unwrap_or_default();
    json!({"kind": "Pod",
        "metadata": {"name": name, "namespace": "demo", "labels": {"app": "web"},
                     "annotations": {"ambient.istio.io/redirection": state}},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "podIP": format!("10.0.0.{last}")}})
}

fn service() -> Value {
    json!({"kind": "Service", "metadata": {"name": "web", "namespace": "demo"},
        "spec": {"selector": {"app": "web"}, "clusterIP": "10.96.0.1", "ports": [{"port": 80}]}})
}

fn policy(name: &str) -> Value {
    json!({"kind": "AuthorizationPolicy", "metadata": {"name": name, "namespace": "demo"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "rules": [{}]}})
}

impl World {
    fn new(objects: &[Value]) -> Self {
        let mut world =
            Self { mesh: Mesh::new(MeshSettings::default()), snapshot: Arc::new(Snapshot::default()) };
        world.change(objects, &[]);
        world
    }

    /// Writes and removes objects as one batch.
    fn change(&mut self, written: &[Value], removed: &[Value]) {
        let mut batch = Batch::new();
        for (object, present) in written.iter().map(|o| (o, true)).chain(removed.iter().map(|o| (o, false))) {
            let text = |field: &str| object["metadata"][field].as_str().unwrap();
            let name = ObjectName::new(text("namespace"), text("name"));
            macro_rules! put {
                ($input:expr) => {
                    match present {
                        true => {
                            batch.set($input, name, Arc::new(serde_json::from_value(object.clone()).unwrap()))
                        }
                        false => batch.remove($input, name),
                    }
                };
            }
            match object["kind"].as_str().unwrap() {
                "Pod" => put!(self.mesh.inputs.pods),
                "Service" => put!(self.mesh.inputs.services),
                _ => put!(self.mesh.inputs.authorization_policies),
            }
        }
        let outputs = self.mesh.outputs;
        let commit = self.mesh.graph.apply(batch);
        if let Some(next) = self.snapshot.next(&commit, &outputs) {
            self.snapshot = Arc::new(next);
        }
    }
}

/// One response as text: type, `+name` for what it brings and `-name` for what it takes away.
fn text(response: &DeltaDiscoveryResponse) -> String {
    let kind = response.type_url.rsplit('.').next().unwrap_or_default();
    let brings = response.resources.iter().map(|r| format!(" +{}", short(&r.name)));
    let mut removed: Vec<_> = response.removed_resources.iter().map(|n| format!(" -{}", short(n))).collect();
    removed.sort();
    format!("{kind}:{}{}", brings.collect::<String>(), removed.concat())
}

fn short(name: &str) -> String {
    name.replace("Kubernetes//Pod/demo/", "pod:").replace("demo/web.demo.svc.cluster.local", "svc")
}

fn session() -> Session {
    Session::new("test".into(), "n1".into())
}

fn ask(kind: &str, subscribe: &[&str], unsubscribe: &[&str]) -> DeltaDiscoveryRequest {
    let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
    DeltaDiscoveryRequest {
        type_url: kind.to_owned(),
        resource_names_subscribe: owned(subscribe),
        resource_names_unsubscribe: owned(unsubscribe),
        ..Default::default()
    }
}

#[track_caller]
fn check_request(
    session: &mut Session,
    world: &World,
    request: &DeltaDiscoveryRequest,
    expected: Option<&str>,
) {
    let answer = session.on_request(request, &world.snapshot).unwrap();
    assert_eq!(answer.as_ref().map(text).as_deref(), expected);
}

#[track_caller]
fn check_push(session: &mut Session, world: &World, expected: &[&str]) {
    let pushed: Vec<_> = session.on_snapshot(&world.snapshot).iter().map(text).collect();
    assert_eq!(pushed, expected);
}

#[test]
fn wildcard_streams_get_everything_then_only_differences() {
    let mut world = World::new(&[pod("a", "n1", true), service()]);
    let mut session = session();
    check_request(&mut session, &world, &ask(type_url::ADDRESS, &[], &[]), Some("Address: +pod:a +svc"));
    check_request(&mut session, &world, &ask(type_url::AUTHORIZATION, &["*"], &[]), Some("Authorization:"));
    let mut ack = ask(type_url::ADDRESS, &[], &[]);
    ack.response_nonce = "1".into();
    check_request(&mut session, &world, &ack, None);
    check_push(&mut session, &world, &[]);
    world.change(&[pod("b", "n2", true)], &[]);
    check_push(&mut session, &world, &["Address: +pod:b"]);
    world.change(&[pod("b", "n2", false)], &[pod("a", "n1", true)]);
    check_push(&mut session, &world, &["Address: +pod:b -pod:a"]);
    // A client that was slow for several snapshots finds only what they come to.
    world.change(&[pod("c", "n1", true)], &[]);
    world.change(&[], &[pod("c", "n1", true), pod("b", "n2", true)]);
    check_push(&mut session, &world, &["Address: -pod:b"]);
    check_push(&mut session, &world, &[]);
}

#[test]
fn policies_come_before_the_workloads_that_name_them_and_go_after() {
    let mut world = World::new(&[pod("a", "n1", true)]);
    let mut session = session();
    check_request(&mut session, &world, &ask(type_url::ADDRESS, &[], &[]), Some("Address: +pod:a"));
    check_request(&mut session, &world, &ask(type_url::AUTHORIZATION, &[], &[]), Some("Authorization:"));
    world.change(&[policy("p")], &[]);
    check_push(&mut session, &world, &["Authorization: +demo/p", "Address: +pod:a"]);
    world.change(&[policy("q")], &[policy("p")]);
    check_push(
        &mut session,
        &world,
        &["Authorization: +demo/q", "Address: +pod:a", "Authorization: -demo/p"],
    );
}

#[test]
fn a_reconnecting_client_is_sent_only_what_it_lacks() {
    let mut world = World::new(&[pod("a", "n1", true), pod("b", "n1", true), service()]);
    let all = session().on_request(&ask(type_url::ADDRESS, &[], &[]), &world.snapshot).unwrap().unwrap();
    let known: HashMap<String, String> = all.resources.into_iter().map(|r| (r.name, r.version)).collect();
    let mut again = ask(type_url::ADDRESS, &[], &[]);
    again.initial_resource_versions = known;
    check_request(&mut session(), &world, &again, Some("Address:"));
    world.change(&[pod("a", "n1", false)], &[pod("b", "n1", true)]);
    check_request(&mut session(), &world, &again, Some("Address: +pod:a -pod:b"));
}

#[test]
fn clients_on_demand_get_what_they_ask_for_and_what_is_on_their_node() {
    let mut world =
        World::new(&[pod("a", "n1", true), pod("b", "n2", true), pod("c", "n2", false), service()]);
    let mut session = session();
    let nothing = ask(type_url::ADDRESS, &["*"], &["*"]);
    check_request(&mut session, &world, &nothing, Some("Address: +pod:a"));
    let by_address = |ip: &str| ask(type_url::ADDRESS, &[ip], &[]);
    // `b` is 98 in ASCII.
    check_request(&mut session, &world, &by_address("/10.0.0.98"), Some("Address: +pod:b"));
    check_request(&mut session, &world, &by_address("/10.9.9.9"), Some("Address: -/10.9.9.9"));
    check_request(
        &mut session,
        &world,
        &by_address("/10.96.0.1"),
        Some("Address: +pod:a +pod:b +pod:c +svc"),
    );
    // A new endpoint of a service that was asked for comes by itself; so does what was missing before.
    let mut late = pod("d", "n2", true);
    late["status"]["podIP"] = json!("10.9.9.9");
    world.change(&[late], &[pod("c", "n2", false)]);
    check_push(&mut session, &world, &["Address: +pod:d -pod:c"]);
    check_request(&mut session, &world, &ask(type_url::ADDRESS, &[], &["/10.96.0.1", "/10.9.9.9"]), None);
    world.change(&[pod("d", "n2", false), pod("b", "n2", false)], &[]);
    check_push(&mut session, &world, &["Address: +pod:b"]);
    let answer = session.on_request(&by_address("demo/web.demo.svc.cluster.local"), &world.snapshot);
    let resources = answer.unwrap().unwrap().resources;
    let service = resources.iter().find(|r| short(&r.name) == "svc").unwrap();
    assert_eq!(service.aliases, ["/10.96.0.1"]);
}

#[test]
fn bare_workloads_are_their_own_type() {
    let mut world = World::new(&[pod("a", "n1", true), service()]);
    let mut session = session();
    let request = ask(type_url::WORKLOAD, &[], &[]);
    let answer = session.on_request(&request, &world.snapshot).unwrap().unwrap();
    assert_eq!(text(&answer), "Workload: +pod:a");
    let any = answer.resources[0].resource.clone().unwrap();
    let workload: ambit_proto::workload::Workload = prost::Message::decode(&any.value[..]).unwrap();
    assert_eq!((any.type_url.as_str(), workload.name.as_str()), (type_url::WORKLOAD, "a"));
    world.change(&[], &[service()]);
    // Without the service the workload differs; the service itself is not of this type.
    check_push(&mut session, &world, &["Workload: +pod:a"]);
}

#[test]
fn other_types_are_answered_empty_and_complaints_change_nothing() {
    let world = World::new(&[pod("a", "n1", true)]);
    let mut session = session();
    let mut other = ask("type.googleapis.com/envoy.config.cluster.v3.Cluster", &[], &[]);
    check_request(&mut session, &world, &other, Some("Cluster:"));
    other.response_nonce = "1".into();
    check_request(&mut session, &world, &other, None);
    check_request(&mut session, &world, &ask(type_url::ADDRESS, &[], &[]), Some("Address: +pod:a"));
    let mut nack = ask(type_url::ADDRESS, &[], &[]);
    nack.response_nonce = "2".into();
    nack.error_detail =
        Some(ambit_proto::rpc::Status { code: 0, message: "\u{e9}".repeat(COMPLAINT_CHARS * 2) });
    check_request(&mut session, &world, &nack, None);
    check_push(&mut session, &world, &[]);
}

#[test]
fn names_on_one_stream_are_bounded() {
    let world = World::new(&[]);
    let mut session = session();
    let names: Vec<String> = (0..=NAMES_MAX).map(|i| format!("/n{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let refused = session.on_request(&ask(type_url::ADDRESS, &names, &[]), &world.snapshot);
    assert_eq!(refused.unwrap_err().code(), tonic::Code::ResourceExhausted);
}

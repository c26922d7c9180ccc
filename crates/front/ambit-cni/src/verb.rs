//! The verbs of the CNI specification.

use crate::post::post;
use ambit_cni_conf::event::{ADD_PATH, Answer, Event};
use ambit_cni_conf::{Arguments, ErrorObject, NetConf, Version, code, result};
use ambit_names::path;
use std::path::Path;
use std::time::Duration;

/// Time for the agent's answer: it waits up to 5 s for the proxy's acknowledgement itself.
const DEADLINE: Duration = Duration::from_secs(10);
/// Beginnings of the names of the mesh's own pods, which must start without an agent.
const OWN_POD_PREFIXES: [&str; 2] = ["istio-cni-node-", "ztunnel-"];

/// What the runtime says in the environment.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    pub(crate) command: String,
    pub(crate) container_id: String,
    pub(crate) netns: String,
    pub(crate) interface: String,
    pub(crate) arguments: String,
}

/// Carries out the verb: the text to print, or the error object.
pub(crate) fn run(environment: &Environment, input: &[u8]) -> Result<String, ErrorObject> {
    // Removal follows the pod's deletion from the API; a runtime must always get rid of a sandbox.
    if environment.command == "DEL" {
        return Ok(String::new());
    }
    let (conf, version) = NetConf::parse(input)?;
    match environment.command.as_str() {
        "ADD" => add(environment, &conf, version),
        "VERSION" => Ok(serde_json::json!({
            "cniVersion": version.text(),
            "supportedVersions": Version::ALL.map(Version::text),
        })
        .to_string()),
        "CHECK" => since(version, Version::V0_4_0, "CHECK"),
        // Not the agent's health: a runtime that reports the network as broken would not start the agent's own pod.
        "STATUS" => since(version, Version::V1_1_0, "STATUS"),
        "GC" => since(version, Version::V1_1_0, "GC"),
        other => Err(error(
            version,
            code::INVALID_ENVIRONMENT,
            "CNI_COMMAND is missing or unknown",
            format!("it is {other:?}; this program is run by a container runtime, see the CNI specification"),
        )),
    }
}

fn error(version: Version, code: u32, msg: impl Into<String>, details: impl Into<String>) -> ErrorObject {
    ErrorObject { cni_version: version.text().into(), code, msg: msg.into(), details: details.into() }
}

fn since(version: Version, first: Version, verb: &str) -> Result<String, ErrorObject> {
    if version >= first {
        return Ok(String::new());
    }
    let details = format!("the configuration has version {version}, {verb} needs {first} or later");
    Err(error(version, code::INCOMPATIBLE_VERSION, format!("{verb} is not in this version"), details))
}

fn add(environment: &Environment, conf: &NetConf, version: Version) -> Result<String, ErrorObject> {
    let required = [
        ("CNI_CONTAINERID", &environment.container_id),
        ("CNI_NETNS", &environment.netns),
        ("CNI_IFNAME", &environment.interface),
    ];
    if let Some((name, _)) = required.iter().find(|(_, value)| value.is_empty()) {
        return Err(error(version, code::INVALID_ENVIRONMENT, format!("{name} is missing"), "ADD needs it"));
    }
    let invalid = |e: result::ResultError| {
        error(version, code::INVALID_CONFIGURATION, "prevResult cannot be used", e.to_string())
    };
    let passed = result::pass_through(conf.prev_result.as_ref(), version).map_err(invalid)?;
    let pod = Arguments::parse(&environment.arguments);
    if let Some(reason) = let_through(conf, &pod) {
        eprintln!("ambit-cni: let {}/{} through: {reason}", pod.pod_namespace(), pod.pod_name());
        return Ok(passed.to_string());
    }
    let ips = conf.prev_result.as_ref().map(|previous| result::addresses(previous, version));
    let event = Event {
        netns: environment.netns.clone(),
        pod_name: pod.pod_name().to_owned(),
        pod_namespace: pod.pod_namespace().to_owned(),
        ips: ips.transpose().map_err(invalid)?.unwrap_or_default(),
        container_id: environment.container_id.clone(),
        interface: environment.interface.clone(),
        pod_uid: pod.pod_uid().to_owned(),
    };
    let answer = ask(conf, &event, version)?;
    eprintln!(
        "ambit-cni: {}/{}: captured: {}: {}",
        event.pod_namespace, event.pod_name, answer.captured, answer.reason
    );
    Ok(passed.to_string())
}

/// Why a pod needs no question to the agent.
fn let_through(conf: &NetConf, pod: &Arguments) -> Option<&'static str> {
    let (name, namespace) = (pod.pod_name(), pod.pod_namespace());
    let own = || OWN_POD_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    // First of all, so that the mesh's own pods start after a reboot, when nothing else of it runs.
    if !conf.pod_namespace.is_empty() && namespace == conf.pod_namespace && own() {
        return Some("it is the mesh's own");
    }
    if name.is_empty() || namespace.is_empty() {
        return Some("it is not a Kubernetes pod");
    }
    if conf.exclude_namespaces.iter().flatten().any(|excluded| excluded == namespace) {
        return Some("its namespace is excluded");
    }
    None
}

/// Asks the agent to decide about the pod and to capture it.
fn ask(conf: &NetConf, event: &Event, version: Version) -> Result<Answer, ErrorObject> {
    let pod = format!("{}/{}", event.pod_namespace, event.pod_name);
    let again = |msg: String, details: String| error(version, code::TRY_AGAIN_LATER, msg, details);
    let run_dir = match conf.cni_agent_run_dir.as_str() {
        "" => path::CNI_RUN_DIR,
        configured => configured,
    };
    let socket = Path::new(run_dir).join(path::PLUGIN_EVENT_SOCKET);
    let body = serde_json::to_string(event)
        .map_err(|e| error(version, code::INTERNAL, "the event cannot be written", e.to_string()))?;
    let (status, body) = post(&socket, ADD_PATH, &body, DEADLINE).map_err(|e| {
        again(
            format!("the mesh's node agent cannot be reached for pod {pod}"),
            format!("{e}; the pod starts once the agent runs (ambit agent) and can capture it"),
        )
    })?;
    match status {
        200 => serde_json::from_str(&body).map_err(|e| {
            error(version, code::DECODE, "the node agent's answer cannot be read", e.to_string())
        }),
        404 => Err(again(
            format!("the program at {} is not a node agent that this plugin knows", socket.display()),
            "it is foreign or too old: run an agent of the plugin's version".into(),
        )),
        status => Err(again(
            format!("the node agent could not capture pod {pod}"),
            format!("status {status}: {body}"),
        )),
    }
}

#[cfg(test)]
mod tests;

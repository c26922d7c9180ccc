//! The verbs of the CNI specification.

use crate::post::post;
use ambit_cni_conf::event::{
    ADD_PATH, Ability, Answer, CHECK_PATH, Event, GC_PATH, LOG_PATH, LiveSandboxes, STATUS_PATH, State,
};
use ambit_cni_conf::{Arguments, ErrorObject, NetConf, Version, code, result};
use ambit_names::path;
use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

/// Time for the agent's answer: it waits up to 5 s for the proxy's acknowledgement itself.
const DEADLINE: Duration = Duration::from_secs(10);
/// Time for the agent to take the log: a pod's start must not wait for it.
const LOG_DEADLINE: Duration = Duration::from_millis(200);
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
    pub(crate) notes: Notes,
}

/// What the plugin has to say: on standard error at once, and in the agent's log at the end. Never on standard output,
/// which is the result's.
#[derive(Debug, Default)]
pub(crate) struct Notes(RefCell<Vec<String>>);

impl Notes {
    pub(crate) fn add(&self, level: &str, message: &str) {
        eprintln!("ambit-cni: {message}");
        self.0.borrow_mut().push(serde_json::json!({ "level": level, "msg": message }).to_string());
    }

    /// Sends everything, if an agent listens. Nothing depends on it.
    fn send(&self, conf: &NetConf) {
        let socket = run_dir(conf).join(path::PLUGIN_LOG_SOCKET);
        let lines = self.0.take();
        if !lines.is_empty() && socket.exists() {
            let body = serde_json::Value::from(lines).to_string();
            let _ = post(&socket, LOG_PATH, &body, LOG_DEADLINE);
        }
    }
}

/// Carries out the verb: the text to print, or the error object.
pub(crate) fn run(environment: &Environment, input: &[u8]) -> Result<String, ErrorObject> {
    // Removal follows the pod's deletion from the API; a runtime must always get rid of a sandbox.
    if environment.command == "DEL" {
        return Ok(String::new());
    }
    let parsed = NetConf::parse(input);
    let outcome = match &parsed {
        Ok((conf, version)) => carry_out(environment, conf, *version),
        Err(object) => Err(object.clone()),
    };
    if let Err(object) = &outcome {
        let pod = Arguments::parse(&environment.arguments);
        let about = format!("{} of {}/{}", environment.command, pod.pod_namespace(), pod.pod_name());
        environment.notes.add("error", &format!("{about} failed: {}: {}", object.msg, object.details));
    }
    if let Ok((conf, _)) = &parsed {
        environment.notes.send(conf);
    }
    outcome
}

fn carry_out(environment: &Environment, conf: &NetConf, version: Version) -> Result<String, ErrorObject> {
    match environment.command.as_str() {
        "ADD" => add(environment, conf, version),
        "VERSION" => Ok(serde_json::json!({
            "cniVersion": version.text(),
            "supportedVersions": Version::ALL.map(Version::text),
        })
        .to_string()),
        "CHECK" => {
            since(version, Version::V0_4_0, "CHECK")?;
            check(environment, conf, version)
        }
        "STATUS" => {
            since(version, Version::V1_1_0, "STATUS")?;
            status(conf, version)
        }
        "GC" => {
            since(version, Version::V1_1_0, "GC")?;
            collect(conf, version)
        }
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

fn since(version: Version, first: Version, verb: &str) -> Result<(), ErrorObject> {
    if version >= first {
        return Ok(());
    }
    let details = format!("the configuration has version {version}, {verb} needs {first} or later");
    Err(error(version, code::INCOMPATIBLE_VERSION, format!("{verb} is not in this version"), details))
}

fn add(environment: &Environment, conf: &NetConf, version: Version) -> Result<String, ErrorObject> {
    require(environment, version)?;
    let passed = result::pass_through(conf.prev_result.as_ref(), version).map_err(invalid(version))?;
    let Some(event) = event_of(environment, conf, version)? else {
        return Ok(passed.to_string());
    };
    let pod = format!("{}/{}", event.pod_namespace, event.pod_name);
    let body = ask(conf, (ADD_PATH, &json_of(&event, version)?), &format!("capture pod {pod}"), version)?;
    let answer: Answer = read(&body, version)?;
    environment.notes.add("info", &format!("{pod}: captured: {}: {}", answer.captured, answer.reason));
    Ok(passed.to_string())
}

/// Asks whether what ADD did still holds. Pods that ADD lets through have nothing to be checked.
fn check(environment: &Environment, conf: &NetConf, version: Version) -> Result<String, ErrorObject> {
    require(environment, version)?;
    let Some(event) = event_of(environment, conf, version)? else {
        return Ok(String::new());
    };
    let what = format!("confirm the capture of pod {}/{}", event.pod_namespace, event.pod_name);
    ask(conf, (CHECK_PATH, &json_of(&event, version)?), &what, version)?;
    Ok(String::new())
}

/// Whether the next ADD could be answered.
fn status(conf: &NetConf, version: Version) -> Result<String, ErrorObject> {
    let as_status = |mut object: ErrorObject| {
        object.code = code::NOT_AVAILABLE;
        object
    };
    let body = ask(conf, (STATUS_PATH, "{}"), "tell its state", version).map_err(as_status)?;
    let state: State = read(&body, version).map_err(as_status)?;
    let unavailable = |code, msg: &str| Err(error(version, code, msg, state.reason.clone()));
    match state.ability {
        Ability::Able => Ok(String::new()),
        Ability::Unable => unavailable(code::NOT_AVAILABLE, "the node agent cannot enroll pods now"),
        Ability::Cut => unavailable(
            code::LIMITED_CONNECTIVITY,
            "the node agent cannot enroll pods now, and captured ones may have no connections",
        ),
    }
}

/// Tells the agent which sandboxes live, so that it forgets the others.
fn collect(conf: &NetConf, version: Version) -> Result<String, ErrorObject> {
    let Some(valid) = &conf.valid_attachments else {
        let details = "cni.dev/valid-attachments is missing: nothing is removed without it";
        return Err(error(version, code::INVALID_CONFIGURATION, "GC needs the list of what lives", details));
    };
    let live = LiveSandboxes { container_ids: valid.iter().map(|a| a.container_id.clone()).collect() };
    ask(conf, (GC_PATH, &json_of(&live, version)?), "forget sandboxes that are gone", version)?;
    Ok(String::new())
}

fn require(environment: &Environment, version: Version) -> Result<(), ErrorObject> {
    let required = [
        ("CNI_CONTAINERID", &environment.container_id),
        ("CNI_NETNS", &environment.netns),
        ("CNI_IFNAME", &environment.interface),
    ];
    match required.iter().find(|(_, value)| value.is_empty()) {
        Some((name, _)) => {
            let details = format!("{} needs it", environment.command);
            Err(error(version, code::INVALID_ENVIRONMENT, format!("{name} is missing"), details))
        }
        None => Ok(()),
    }
}

fn invalid(version: Version) -> impl Fn(result::ResultError) -> ErrorObject {
    move |e| error(version, code::INVALID_CONFIGURATION, "prevResult cannot be used", e.to_string())
}

fn json_of<T: serde::Serialize>(body: &T, version: Version) -> Result<String, ErrorObject> {
    serde_json::to_string(body)
        .map_err(|e| error(version, code::INTERNAL, "the request cannot be written", e.to_string()))
}

fn read<T: serde::de::DeserializeOwned>(body: &str, version: Version) -> Result<T, ErrorObject> {
    serde_json::from_str(body)
        .map_err(|e| error(version, code::DECODE, "the node agent's answer cannot be read", e.to_string()))
}

/// What the agent is told about the pod; nothing for a pod that is let through without it.
fn event_of(
    environment: &Environment,
    conf: &NetConf,
    version: Version,
) -> Result<Option<Event>, ErrorObject> {
    let pod = Arguments::parse(&environment.arguments);
    if let Some(reason) = let_through(conf, &pod) {
        let about = format!("let {}/{} through: {reason}", pod.pod_namespace(), pod.pod_name());
        environment.notes.add("info", &about);
        return Ok(None);
    }
    let ips = conf.prev_result.as_ref().map(|previous| result::addresses(previous, version));
    Ok(Some(Event {
        netns: environment.netns.clone(),
        pod_name: pod.pod_name().to_owned(),
        pod_namespace: pod.pod_namespace().to_owned(),
        ips: ips.transpose().map_err(invalid(version))?.unwrap_or_default(),
        container_id: environment.container_id.clone(),
        interface: environment.interface.clone(),
        pod_uid: pod.pod_uid().to_owned(),
    }))
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

/// Asks the agent: the body of its answer. `what` completes "the node agent could not …".
fn ask(
    conf: &NetConf,
    (path, body): (&str, &str),
    what: &str,
    version: Version,
) -> Result<String, ErrorObject> {
    let again = |msg: String, details: String| error(version, code::TRY_AGAIN_LATER, msg, details);
    let socket = run_dir(conf).join(path::PLUGIN_EVENT_SOCKET);
    let (status, body) = post(&socket, path, body, DEADLINE).map_err(|e| {
        again(
            format!("the mesh's node agent cannot be reached to {what}"),
            format!("{e}; start it (ambit agent), the runtime tries again"),
        )
    })?;
    match status {
        200 => Ok(body),
        404 => Err(again(
            format!("the program at {} is not a node agent that this plugin knows", socket.display()),
            "it is foreign or too old: run an agent of the plugin's version".into(),
        )),
        status => Err(again(format!("the node agent could not {what}"), format!("status {status}: {body}"))),
    }
}

fn run_dir(conf: &NetConf) -> &Path {
    match conf.cni_agent_run_dir.as_str() {
        "" => Path::new(path::CNI_RUN_DIR),
        configured => Path::new(configured),
    }
}

#[cfg(test)]
mod tests;

//! What the runtime shows of one pod.

use crate::context::{Context, identity};
use crate::error::Error;
use ambit_api::core::v1::Pod;
use ambit_node_plan::pod::{Container, ContainerState, Observed, Sandbox};
use ambit_proto::cri::{ContainerState as CriState, ContainerStatus, PodSandboxState, PodSandboxStatus};
use jiff::Timestamp;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest message that a container may leave at its end, in bytes. Source: the API's `terminationMessagePath`.
const TERMINATION_MESSAGE_BYTES_MAX: u64 = 4096;

/// Where a container run leaves its last message.
pub(super) fn termination_file(context: &Context, pod: &Pod, container: &str, attempt: u32) -> PathBuf {
    let (_, _, uid) = identity(pod);
    context.layout.pod(uid).join("termination").join(format!("{container}-{attempt}"))
}

pub(super) async fn observe(context: &Context, pod: &Pod) -> Result<Observed, Error> {
    let (_, _, uid) = identity(pod);
    let mut observed = Observed::default();
    let mut sandboxes = context.cri.sandboxes(Some(uid)).await?;
    sandboxes.sort_by_key(|s| std::cmp::Reverse(s.created_at));
    for sandbox in sandboxes {
        if let Some(status) = context.cri.sandbox(&sandbox.id).await? {
            observed.sandboxes.push(to_sandbox(status));
        }
    }
    let mut containers = context.cri.containers(Some(uid)).await?;
    containers.sort_by_key(|c| std::cmp::Reverse(c.created_at));
    for container in containers {
        if let Some(status) = context.cri.container(&container.id).await? {
            let run = to_container(status, container.pod_sandbox_id);
            observed.containers.push(with_termination_message(context, pod, run));
        }
    }
    Ok(observed)
}

fn to_sandbox(status: PodSandboxStatus) -> Sandbox {
    let network = status.network.unwrap_or_default();
    let more = network.additional_ips.into_iter().map(|ip| ip.ip);
    Sandbox {
        id: status.id,
        attempt: status.metadata.map_or(0, |m| m.attempt),
        ready: status.state == PodSandboxState::SandboxReady as i32,
        ips: std::iter::once(network.ip).chain(more).filter_map(|ip| ip.parse().ok()).collect(),
    }
}

fn to_container(status: ContainerStatus, sandbox: String) -> Container {
    let metadata = status.metadata.unwrap_or_default();
    let started = Some(status.started_at).filter(|ns| *ns > 0).map(timestamp);
    let state = match CriState::try_from(status.state) {
        Ok(CriState::ContainerCreated) => ContainerState::Created,
        Ok(CriState::ContainerRunning) => {
            ContainerState::Running { started: started.unwrap_or_else(|| timestamp(status.created_at)) }
        }
        // A container whose state is unknown cannot be relied on: it counts as ended.
        Ok(CriState::ContainerExited | CriState::ContainerUnknown) | Err(_) => ContainerState::Exited {
            started,
            finished: timestamp(Some(status.finished_at).filter(|ns| *ns > 0).unwrap_or(status.created_at)),
            code: status.exit_code,
            reason: status.reason,
            message: status.message,
        },
    };
    Container {
        id: status.id,
        name: metadata.name,
        attempt: metadata.attempt,
        sandbox,
        image: status.image.map(|i| i.image).unwrap_or_default(),
        image_id: status.image_ref,
        state,
    }
}

fn timestamp(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanoseconds)).unwrap_or_default()
}

fn with_termination_message(context: &Context, pod: &Pod, mut run: Container) -> Container {
    let path = termination_file(context, pod, &run.name, run.attempt);
    if let ContainerState::Exited { message, .. } = &mut run.state
        && let Some(text) = read_message(&path)
    {
        *message = text;
    }
    run
}

/// The file is the container's to write: it is read up to a bound, and whatever it holds is text.
fn read_message(path: &Path) -> Option<String> {
    let file = std::fs::File::open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(TERMINATION_MESSAGE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned()).filter(|text| !text.is_empty())
}

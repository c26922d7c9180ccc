//! What the runtime is told to make a container from.

use super::{observe, sandbox_config, volumes};
use crate::context::{Context, identity};
use crate::cri::label;
use crate::error::Error;
use ambit_api::core::v1::{Container, Pod, PodSecurityContext, SeccompProfile, SecurityContext};
use ambit_node_plan::pod::environment::expand;
use ambit_node_plan::pod::resources::runtime_resources;
use ambit_proto::cri::{
    Capability, ContainerConfig, ContainerMetadata, Image, ImageSpec, Int64Value, KeyValue,
    LinuxContainerConfig, LinuxContainerResources, LinuxContainerSecurityContext, Mount, MountPropagation,
    SecurityProfile, security_profile::ProfileType,
};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Paths of /proc and /sys that containers do not see. Source: kubelet's default proc mount.
const MASKED_PATHS: [&str; 10] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
/// Paths of /proc that containers only read. Source: kubelet's default proc mount.
const READ_ONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
/// Where a container leaves its last message unless it says so. Source: the API's `terminationMessagePath`.
const TERMINATION_PATH: &str = "/dev/termination-log";

/// One run of a container.
pub(super) struct Run<'a> {
    pub(super) pod: &'a Pod,
    pub(super) container: &'a Container,
    pub(super) attempt: u32,
    pub(super) environment: Vec<(String, String)>,
    pub(super) image: &'a Image,
    pub(super) hosts_file: &'a Path,
}

/// Where the runtime writes a run's log, below the pod's log directory.
pub(crate) fn log_path(container: &str, attempt: u32) -> PathBuf {
    Path::new(container).join(format!("{attempt}.log"))
}

/// The configuration; the error is a text for the container's waiting message.
pub(super) fn container_config(context: &Context, run: &Run<'_>) -> Result<ContainerConfig, String> {
    let (namespace, name, uid) = identity(run.pod);
    let container = run.container;
    let known: BTreeMap<&str, &str> = run.environment.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let words = |list: &Option<Vec<String>>| {
        let lookup = |name: &str| known.get(name).map(|value| (*value).to_owned());
        list.iter().flatten().map(|word| expand(word, lookup)).collect::<Vec<_>>()
    };
    let labels = [
        (label::CONTAINER_NAME, container.name.as_str()),
        (label::POD_NAME, name),
        (label::POD_NAMESPACE, namespace),
        (label::POD_UID, uid),
    ];
    let envs = run.environment.iter().map(|(k, v)| KeyValue { key: k.clone(), value: v.clone() });
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt: run.attempt }),
        image: Some(ImageSpec { image: run.image.id.clone(), annotations: HashMap::new() }),
        command: words(&container.command),
        args: words(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: envs.collect(),
        mounts: mounts(context, run)?,
        labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        log_path: log_path(&container.name, run.attempt).display().to_string(),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(linux(context, run)?),
        ..ContainerConfig::default()
    })
}

fn mounts(context: &Context, run: &Run<'_>) -> Result<Vec<Mount>, String> {
    let mut mounts = Vec::new();
    let volumes = run.pod.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default();
    for wanted in run.container.volume_mounts.iter().flatten() {
        let volume = volumes.iter().find(|v| v.name == wanted.name);
        let volume = volume.ok_or_else(|| format!("volume {:?} is not in spec.volumes", wanted.name))?;
        let propagation = match wanted.mount_propagation.as_deref() {
            Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
            Some("Bidirectional") => MountPropagation::PropagationBidirectional,
            _ => MountPropagation::PropagationPrivate,
        };
        mounts.push(Mount {
            container_path: wanted.mount_path.clone(),
            host_path: volumes::path(context, run.pod, volume).display().to_string(),
            readonly: wanted.read_only.unwrap_or(false),
            propagation: propagation as i32,
            ..Mount::default()
        });
    }
    let is_taken = |mounts: &[Mount], path: &str| mounts.iter().any(|m| m.container_path == path);
    if !is_taken(&mounts, "/etc/hosts") {
        mounts.push(file_mount("/etc/hosts", run.hosts_file));
    }
    let message_path = run.container.termination_message_path.as_deref().filter(|p| !p.is_empty());
    let message_path = message_path.unwrap_or(TERMINATION_PATH);
    if !is_taken(&mounts, message_path) {
        let file = termination_file(context, run).map_err(|e| e.full_text())?;
        mounts.push(file_mount(message_path, &file));
    }
    Ok(mounts)
}

fn file_mount(container_path: &str, host_path: &Path) -> Mount {
    Mount {
        container_path: container_path.to_owned(),
        host_path: host_path.display().to_string(),
        ..Mount::default()
    }
}

fn termination_file(context: &Context, run: &Run<'_>) -> Result<PathBuf, Error> {
    use std::os::unix::fs::PermissionsExt;
    let file = observe::termination_file(context, run.pod, &run.container.name, run.attempt);
    let dir = file.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(dir).map_err(Error::file("make the directory", dir))?;
    std::fs::write(&file, "").map_err(Error::file("write", &file))?;
    // The container may run as anybody.
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(&file, open).map_err(Error::file("open", &file))?;
    Ok(file)
}

fn linux(context: &Context, run: &Run<'_>) -> Result<LinuxContainerConfig, String> {
    let spec = run.pod.spec.clone().unwrap_or_default();
    let limits = runtime_resources(&spec, run.container, context.capacity.memory_bytes);
    Ok(LinuxContainerConfig {
        resources: Some(LinuxContainerResources {
            cpu_period: limits.cpu_period_us,
            cpu_quota: limits.cpu_quota_us,
            cpu_shares: limits.cpu_shares,
            memory_limit_in_bytes: limits.memory_bytes,
            oom_score_adj: limits.oom_score_adj,
        }),
        security_context: Some(security(run, &spec.security_context.unwrap_or_default())?),
    })
}

/// The container's own settings come before the pod's.
fn security(run: &Run<'_>, pod: &PodSecurityContext) -> Result<LinuxContainerSecurityContext, String> {
    let own = run.container.security_context.clone().unwrap_or_default();
    let id = |value: i64| Int64Value { value };
    let user = own.run_as_user.or(pod.run_as_user);
    let group = own.run_as_group.or(pod.run_as_group);
    check_not_root(run, &own, pod, user)?;
    let image_user = run.image.uid.as_ref().map(|uid| uid.value);
    let privileged = own.privileged.unwrap_or(false);
    let list = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    let seccomp = own.seccomp_profile.as_ref().or(pod.seccomp_profile.as_ref());
    let run_as_user = user.or(image_user);
    let named = Some(run.image.username.clone()).filter(|name| run_as_user.is_none() && !name.is_empty());
    Ok(LinuxContainerSecurityContext {
        capabilities: own.capabilities.as_ref().map(|c| Capability {
            add_capabilities: c.add.clone().unwrap_or_default(),
            drop_capabilities: c.drop.clone().unwrap_or_default(),
        }),
        privileged,
        namespace_options: Some(sandbox_config::namespaces(run.pod)),
        // A group without a user is refused by the runtime.
        run_as_group: group.map(id).filter(|_| run_as_user.is_some() || named.is_some()),
        run_as_user: run_as_user.map(id),
        run_as_username: named.unwrap_or_default(),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: sandbox_config::supplemental_groups(pod),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: if privileged { Vec::new() } else { list(&MASKED_PATHS) },
        readonly_paths: if privileged { Vec::new() } else { list(&READ_ONLY_PATHS) },
        seccomp: seccomp.map(profile),
    })
}

/// Source: kubelet's `verifyRunAsNonRoot`.
fn check_not_root(
    run: &Run<'_>,
    own: &SecurityContext,
    pod: &PodSecurityContext,
    user: Option<i64>,
) -> Result<(), String> {
    if !own.run_as_non_root.or(pod.run_as_non_root).unwrap_or(false) {
        return Ok(());
    }
    let image_user = run.image.uid.as_ref().map(|uid| uid.value);
    match (user, image_user) {
        (Some(0), _) => Err("container's runAsUser breaks non-root policy".to_owned()),
        (Some(_), _) => Ok(()),
        (None, Some(0)) => Err("container has runAsNonRoot and image will run as root".to_owned()),
        (None, Some(_)) => Ok(()),
        (None, None) if run.image.username.is_empty() => {
            Err("container has runAsNonRoot and image will run as root".to_owned())
        }
        (None, None) => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({}), cannot verify user is non-root",
            run.image.username
        )),
    }
}

fn profile(seccomp: &SeccompProfile) -> SecurityProfile {
    let (kind, path) = match seccomp.type_.as_str() {
        "RuntimeDefault" => (ProfileType::RuntimeDefault, String::new()),
        "Localhost" => (ProfileType::Localhost, seccomp.localhost_profile.clone().unwrap_or_default()),
        _ => (ProfileType::Unconfined, String::new()),
    };
    SecurityProfile { profile_type: kind as i32, localhost_ref: path }
}

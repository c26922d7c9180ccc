//! A pod's volumes: made before its sandbox, kept up to date, removed after it.

use super::atomic_dir;
use super::materials::{self, Tokens};
use crate::context::{Context, identity};
use crate::error::Error;
use ambit_api::core::v1::{EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume};
use ambit_linux::mount;
use ambit_node_plan::pod::environment::SourceError;
use ambit_node_plan::pod::files::{volume_files, volume_references};
use ambit_node_plan::pod::resources::parse_value;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Size of the memory that holds the files of one volume. The API bounds an object to 1 MiB; a projection has several.
const FILES_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Why a volume cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum VolumeError {
    /// What it shows is missing.
    #[error("MountVolume.SetUp failed for volume {name:?} : {source}")]
    Source {
        name: String,
        #[source]
        source: SourceError,
    },
    /// The host path is not what it should be.
    #[error("MountVolume.SetUp failed for volume {name:?} : hostPath {path:?} {problem}")]
    HostPath { name: String, path: String, problem: &'static str },
    /// A file or mount operation, or a fetch, failed.
    #[error("{}", .0.full_text())]
    Other(#[from] Error),
}

/// The directory of a volume on the node.
pub(super) fn path(context: &Context, pod: &Pod, volume: &Volume) -> PathBuf {
    if let Some(host) = &volume.host_path {
        return PathBuf::from(&host.path);
    }
    let kind = if volume.empty_dir.is_some() { "empty-dir" } else { "files" };
    root(context, pod).join(kind).join(&volume.name)
}

fn root(context: &Context, pod: &Pod) -> PathBuf {
    let (_, _, uid) = identity(pod);
    context.layout.pod(uid).join("volumes")
}

fn volumes(pod: &Pod) -> &[Volume] {
    pod.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default()
}

/// Makes all volumes, or brings the files of those that are there up to date.
pub(super) async fn prepare(
    context: &Context,
    pod: &Pod,
    pod_ips: &[IpAddr],
    tokens: &mut Tokens,
) -> Result<(), VolumeError> {
    let references = volume_references(volumes(pod));
    let materials = materials::fetch(context, pod, &references, tokens).await?;
    let facts = context.facts(pod_ips);
    for volume in volumes(pod) {
        let dir = path(context, pod, volume);
        if let Some(host) = &volume.host_path {
            check_host_path(&volume.name, host)?;
        } else if let Some(empty) = &volume.empty_dir {
            make_empty_dir(&dir, empty)?;
        } else {
            let source = |source| VolumeError::Source { name: volume.name.clone(), source };
            let Some(files) = volume_files(pod, volume, &materials, &facts).map_err(source)? else {
                continue;
            };
            mount_memory(&dir, Some(FILES_BYTES_MAX), 0o755)?;
            let version = context.clock.timestamp().as_nanosecond().to_string();
            atomic_dir::write(&dir, &files, &version).map_err(Error::file("write the files of", &dir))?;
        }
    }
    Ok(())
}

/// Whether any volume shows what may change while the pod runs.
pub(super) fn has_files(pod: &Pod) -> bool {
    volumes(pod).iter().any(|v| v.empty_dir.is_none() && v.host_path.is_none())
}

fn make_empty_dir(dir: &Path, source: &EmptyDirVolumeSource) -> Result<(), Error> {
    if source.medium.as_deref() == Some("Memory") {
        let size = source.size_limit.as_ref().and_then(parse_value).and_then(|s| u64::try_from(s).ok());
        return mount_memory(dir, size.filter(|s| *s > 0), 0o777);
    }
    std::fs::create_dir_all(dir).map_err(Error::file("make the directory", dir))?;
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(dir, open).map_err(Error::file("open the directory", dir))
}

/// A memory file system: what is in it never reaches the disk.
fn mount_memory(dir: &Path, size: Option<u64>, mode: u32) -> Result<(), Error> {
    std::fs::create_dir_all(dir).map_err(Error::file("make the directory", dir))?;
    if !mount::is_mount_point(dir)? {
        mount::tmpfs(dir, size, mode)?;
    }
    Ok(())
}

/// Source: the API's `hostPath.type`.
fn check_host_path(name: &str, source: &HostPathVolumeSource) -> Result<(), VolumeError> {
    let path = Path::new(&source.path);
    let wrong = |problem| VolumeError::HostPath { name: name.to_owned(), path: source.path.clone(), problem };
    if !path.is_absolute() || path.components().any(|c| c == std::path::Component::ParentDir) {
        return Err(wrong("must be absolute and must not contain '..'"));
    }
    match source.type_.as_deref().unwrap_or_default() {
        "" => Ok(()),
        "DirectoryOrCreate" => {
            Ok(std::fs::create_dir_all(path).map_err(Error::file("make the directory", path))?)
        }
        "FileOrCreate" if path.exists() => Ok(()),
        "FileOrCreate" => Ok(std::fs::write(path, "").map_err(Error::file("make the file", path))?),
        "Directory" if path.is_dir() => Ok(()),
        "Directory" => Err(wrong("is not a directory")),
        "File" if path.is_file() => Ok(()),
        "File" => Err(wrong("is not a file")),
        _ => Err(wrong(
            "has a type this node does not serve: use Directory, DirectoryOrCreate, File or FileOrCreate",
        )),
    }
}

/// Unmounts and removes everything the node keeps of a pod but its logs.
pub(super) fn remove(context: &Context, pod: &Pod) -> Result<(), Error> {
    let (_, _, uid) = identity(pod);
    if uid.is_empty() {
        return Ok(());
    }
    let dir = context.layout.pod(uid);
    mount::unmount_below(&dir)?;
    match std::fs::remove_dir_all(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove the directory", dir)(e))
        }
        _ => Ok(()),
    }
}

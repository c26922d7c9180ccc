//! Images: made from one static binary, and imported from archives.

use crate::containerd::Programs;
use crate::cri::Cri;
use crate::error::Error;
use crate::layout::Layout;
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// How long one import may take.
const IMPORT_WAIT: Duration = Duration::from_secs(120);
/// How long the runtime may take to notice an imported image.
const NOTICE_WAIT: Duration = Duration::from_secs(10);
/// Between two looks at whether it has.
const NOTICE_POLL: Duration = Duration::from_millis(20);
/// Largest archive that is imported, in bytes.
const ARCHIVE_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;

/// The image of the pause process.
pub const PAUSE_IMAGE: &str = "ambit.local/pause:1";

/// An image that holds one static binary and nothing else, as an archive in OCI layout. The binary stands at the image's
/// root under its own name, and is what the image runs.
///
/// # Errors
/// The binary cannot be read.
pub fn scratch_image(binary: &Path, name: &str) -> Result<Vec<u8>, Error> {
    let contents = std::fs::read(binary).map_err(Error::file("read", binary))?;
    let file_name = binary.file_name().unwrap_or_default().to_string_lossy();
    // Writing to memory does not fail.
    build(&contents, name, &format!("/{file_name}")).map_err(Error::file("pack", binary))
}

fn build(binary: &[u8], name: &str, entrypoint: &str) -> io::Result<Vec<u8>> {
    let mut layer = tar::Builder::new(Vec::new());
    append(&mut layer, entrypoint.trim_start_matches('/'), binary, 0o755)?;
    let layer = layer.into_inner()?;
    let diff_id = digest(&layer);
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&layer)?;
    let packed = packed.finish()?;

    let config = to_bytes(&json!({
        "architecture": architecture(),
        "os": "linux",
        "config": { "Entrypoint": [entrypoint], "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"] },
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
    }));
    let manifest = to_bytes(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &packed)],
    }));
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["annotations"] =
        json!({ "io.containerd.image.name": name, "org.opencontainers.image.ref.name": name });
    let index = to_bytes(&json!({ "schemaVersion": 2, "manifests": [entry] }));

    let mut archive = tar::Builder::new(Vec::new());
    append(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
    for blob in [&packed, &config, &manifest] {
        let hex = digest(blob).replace("sha256:", "");
        append(&mut archive, &format!("blobs/sha256/{hex}"), blob, 0o644)?;
    }
    append(&mut archive, "index.json", &index, 0o644)?;
    archive.into_inner()
}

/// Entries carry no time and no owner, so that equal binaries make equal images.
fn append(archive: &mut tar::Builder<Vec<u8>>, path: &str, contents: &[u8], mode: u32) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(contents.len() as u64);
    header.set_mode(mode);
    header.set_mtime(0);
    archive.append_data(&mut header, path, contents)
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn descriptor(media_type: &str, blob: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(blob), "size": blob.len() })
}

fn to_bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// The processor architecture as images and nodes name it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Imports an image archive (docker or OCI layout) into the running node whose state is in `state_dir`, and returns the
/// names of its images.
///
/// # Errors
/// No node runs there, the file cannot be read or is no image archive, or containerd does not answer.
pub async fn import_image(state_dir: &Path, file: &Path) -> Result<Vec<String>, Error> {
    let programs = Programs::find()?;
    let metadata = std::fs::metadata(file).map_err(Error::file("read", file))?;
    if metadata.len() > ARCHIVE_BYTES_MAX {
        let problem = format!("it is larger than {} GiB", ARCHIVE_BYTES_MAX >> 30);
        return Err(Error::Image { path: file.to_owned(), problem });
    }
    let socket = Layout::new(state_dir)?.socket();
    if !socket.exists() {
        return Err(Error::NoNode { dir: state_dir.to_owned() });
    }
    import(&programs, &socket, file).await
}

/// Makes a scratch image of a binary and has the runtime know it by `name`.
pub(crate) async fn import_binary(
    programs: &Programs,
    socket: &Path,
    binary: &Path,
    name: &str,
) -> Result<(), Error> {
    let archive = scratch_image(binary, name)?;
    let dir = socket.parent().unwrap_or(Path::new("/"));
    let path = dir.join("import.tar");
    std::fs::write(&path, archive).map_err(Error::file("write", &path))?;
    let imported = import(programs, socket, &path).await;
    let _ = std::fs::remove_file(&path);
    imported.map(drop)
}

/// Imports an archive and returns the names of its images, as `ctr` prints them: `unpacking NAME (DIGEST)...done`.
pub(crate) async fn import(programs: &Programs, socket: &Path, file: &Path) -> Result<Vec<String>, Error> {
    let command = Command::new(&programs.ctr)
        .arg("--address")
        .arg(socket)
        .args(["--namespace", "k8s.io", "images", "import"])
        .arg(file)
        .env_clear()
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let problem = |problem: String| Error::Image { path: file.to_owned(), problem };
    let output = tokio::time::timeout(IMPORT_WAIT, command)
        .await
        .map_err(|_| problem(format!("it took over {} s", IMPORT_WAIT.as_secs())))?
        .map_err(Error::file("start", &programs.ctr))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(problem(text.trim().trim_start_matches("ctr: ").to_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.strip_prefix("unpacking ")?.split_whitespace().next());
    Ok(names.map(str::to_owned).collect())
}

/// Waits until the runtime has noticed an image.
pub(crate) async fn wait_for_image(cri: &Cri, name: &str) -> Result<(), Error> {
    let noticed = async {
        while !matches!(cri.image(name).await, Ok(Some(_))) {
            tokio::time::sleep(NOTICE_POLL).await;
        }
    };
    let problem = format!("the runtime does not show {name:?} after {} s", NOTICE_WAIT.as_secs());
    tokio::time::timeout(NOTICE_WAIT, noticed).await.map_err(|_| Error::Image { path: name.into(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read;

    #[test]
    fn a_scratch_image_is_an_oci_layout_whose_digests_agree() {
        let archive = build(b"ELF", "ambit.local/x:1", "/x").unwrap();
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut contents = Vec::new();
            entry.read_to_end(&mut contents).unwrap();
            files.insert(path, contents);
        }
        for (path, contents) in files.iter().filter(|(path, _)| path.starts_with("blobs/")) {
            assert_eq!(digest(contents), path.replace("blobs/sha256/", "sha256:"));
        }
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap();
            let contents = &files[&digest.replace("sha256:", "blobs/sha256/")];
            assert_eq!(descriptor["size"], contents.len());
            contents.clone()
        };
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        let entry = &index["manifests"][0];
        assert_eq!(entry["annotations"]["io.containerd.image.name"], "ambit.local/x:1");
        let manifest: Value = serde_json::from_slice(&blob(entry)).unwrap();
        let config: Value = serde_json::from_slice(&blob(&manifest["config"])).unwrap();
        assert_eq!(config["config"]["Entrypoint"], json!(["/x"]));
        let packed = blob(&manifest["layers"][0]);
        let mut layer = Vec::new();
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut layer).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], digest(&layer));
        assert_eq!(archive, build(b"ELF", "ambit.local/x:1", "/x").unwrap());
    }

    #[test]
    fn a_missing_binary_is_named() {
        let error = scratch_image(Path::new("/no/such/binary"), "n").unwrap_err();
        assert_eq!(error.to_string(), "cannot read /no/such/binary");
    }
}

//! Manifests: read and checked as a whole against the types of the API server, then applied in order.

use ambit_schema::{Catalog, FieldValidation, Scope};
use anyhow::{Context as _, Result, anyhow, bail};
use kube::Client;
use kube::core::{DynamicObject, GroupVersionKind, Resource};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bound on one manifest file. Unit: bytes.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// How often the kind of an object is looked up anew, while its definition is being established.
const KIND_TRIES: u32 = 50;
/// Pause between those.
const KIND_PAUSE: Duration = Duration::from_millis(100);

/// One object of a manifest and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Manifest {
    origin: String,
    kind: GroupVersionKind,
    object: Value,
}

/// Reads all manifests: files, folders of `.yaml`, `.yml` and `.json` files, `-` for stdin. What can be known of them
/// without a cluster has been checked: syntax, kinds, fields and values.
///
/// # Errors
/// All faults of all files together, each with its file, document and field.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Manifest>> {
    let (mut manifests, mut faults) = (Vec::new(), String::new());
    for file in files(paths)? {
        let name = file.display().to_string();
        match text_of(&file).and_then(|text| parse(&name, &text)) {
            Ok(found) => manifests.extend(found),
            Err(fault) => {
                let _ = write!(faults, "\n  {fault:#}");
            }
        }
    }
    for fault in check(&manifests) {
        let _ = write!(faults, "\n  {fault}");
    }
    if !faults.is_empty() {
        bail!("the manifests are not valid, nothing was applied:{faults}");
    }
    Ok(manifests)
}

/// What the API server would refuse in any state of the cluster.
fn check(manifests: &[Manifest]) -> Vec<String> {
    let own = ambit_api::crds().into_iter().filter_map(|d| serde_json::to_value(d).ok());
    let given =
        manifests.iter().filter(|m| m.kind.kind == "CustomResourceDefinition").map(|m| m.object.clone());
    let (catalog, problems) = Catalog::builtin().with_crds(&own.chain(given).collect::<Vec<_>>());
    let fatal = problems.iter().filter(|p| p.fatal);
    let mut faults: Vec<String> =
        fatal.map(|p| format!("CustomResourceDefinition {}: {}", p.definition, p.message)).collect();
    faults.extend(manifests.iter().flat_map(|m| faults_of(m, &catalog)));
    faults
}

fn faults_of(manifest: &Manifest, catalog: &Catalog) -> Vec<String> {
    let Manifest { origin, kind, object } = manifest;
    let Some(known) = catalog.kind(&kind.group, &kind.version, &kind.kind) else {
        return vec![format!("{origin}: {}", unknown_kind(kind, catalog))];
    };
    let mut object = match known.decode(object.clone(), FieldValidation::Strict) {
        Ok(decoded) => decoded.object,
        Err(error) => return vec![format!("{origin}: {error}")],
    };
    if known.scope == Scope::Namespaced && object.pointer("/metadata/namespace").is_none() {
        object["metadata"]["namespace"] = "default".into();
    }
    known.default(&mut object);
    known.validate_create(&object).into_iter().map(|fault| format!("{origin}: {fault}")).collect()
}

/// Says where a kind of that name is served, if anywhere.
fn unknown_kind(kind: &GroupVersionKind, catalog: &Catalog) -> String {
    let same = catalog.resources().filter(|r| r.kind.eq_ignore_ascii_case(&kind.kind));
    let places: Vec<String> = same
        .map(|r| {
            if r.group.is_empty() {
                format!("{} {}", r.version, r.kind)
            } else {
                format!("{}/{} {}", r.group, r.version, r.kind)
            }
        })
        .collect();
    let asked = format!("{} {} is not served here", kind.api_version(), kind.kind);
    if places.is_empty() {
        format!("{asked}; apply its CustomResourceDefinition with it")
    } else {
        format!("{asked}; {} is", places.join(", "))
    }
}

fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            found.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut inside: Vec<PathBuf> = entries
            .filter_map(|e| e.ok().map(|e| e.path()))
            .filter(|p| p.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json"))
            .collect();
        if inside.is_empty() {
            bail!("{} holds no .yaml, .yml or .json file", path.display());
        }
        inside.sort();
        found.extend(inside);
    }
    Ok(found)
}

fn text_of(path: &Path) -> Result<String> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().take(FILE_BYTES_MAX).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|f| f.take(FILE_BYTES_MAX).read_to_string(&mut text))
    };
    let bytes = read.with_context(|| format!("{}: cannot be read", path.display()))?;
    if bytes as u64 == FILE_BYTES_MAX {
        bail!("{}: is larger than {FILE_BYTES_MAX} bytes; split it", path.display());
    }
    Ok(text)
}

fn parse(name: &str, text: &str) -> Result<Vec<Manifest>> {
    // kubectl reads YAML 1.1 numbers: 0644 is an octal file mode.
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|e| anyhow!("{name}: not valid YAML: {e}"))?;
    let mut found = Vec::new();
    for (index, document) in documents.into_iter().enumerate() {
        let place = format!("{name}, document {}", index + 1);
        match document {
            Value::Null => {}
            Value::Object(ref map) if map.get("kind").and_then(Value::as_str) == Some("List") => {
                let items = map.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
                for (item, object) in items.into_iter().enumerate() {
                    found.push(manifest(format!("{place}, item {}", item + 1), object)?);
                }
            }
            object => found.push(manifest(place, object)?),
        }
    }
    Ok(found)
}

fn manifest(place: String, object: Value) -> Result<Manifest> {
    let field = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).filter(|s| !s.is_empty());
    if !object.is_object() {
        bail!("{place}: an object is expected, with apiVersion, kind and metadata");
    }
    let api_version = field("/apiVersion").ok_or_else(|| anyhow!("{place}: apiVersion is missing"))?;
    let kind = field("/kind").ok_or_else(|| anyhow!("{place}: kind is missing"))?;
    let name = field("/metadata/name").ok_or_else(|| anyhow!("{place}: {kind}: metadata.name is missing"))?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let origin = format!("{place}: {kind} {name}");
    let kind = GroupVersionKind::gvk(group, version, kind);
    Ok(Manifest { origin, kind, object })
}

/// Applies the manifests in order: creates what is missing, merges into what is there.
///
/// # Errors
/// The first one that the API server refuses, with its file and the server's reason.
pub(crate) async fn apply(client: &Client, manifests: &[Manifest]) -> Result<()> {
    for manifest in manifests {
        apply_one(client, manifest).await.map_err(plain).with_context(|| manifest.origin.clone())?;
        tracing::info!(manifest = %manifest.origin, "applied manifest");
    }
    Ok(())
}

/// An answer of the API server in its own words.
fn plain(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => anyhow!("the API server refused it: {}", status.message),
        _ => error,
    }
}

async fn apply_one(client: &Client, manifest: &Manifest) -> Result<()> {
    let (resource, capabilities) = discover(client, &manifest.kind).await?;
    let namespace = match capabilities.scope {
        kube::discovery::Scope::Cluster => None,
        kube::discovery::Scope::Namespaced => {
            Some(manifest.object.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or("default"))
        }
    };
    let path = DynamicObject::url_path(&resource, namespace);
    let created = send(client, "POST", &path, "application/json", &manifest.object).await;
    match created {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let name = manifest.object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            let path = format!("{path}/{name}");
            Ok(send(client, "PATCH", &path, "application/merge-patch+json", &manifest.object).await?)
        }
        other => Ok(other?),
    }
}

/// Looks the kind up until it is served, since its definition may have been applied just before.
async fn discover(
    client: &Client,
    kind: &GroupVersionKind,
) -> Result<(kube::core::ApiResource, kube::discovery::ApiCapabilities)> {
    let mut tries = 0;
    loop {
        tries += 1;
        match kube::discovery::pinned_kind(client, kind).await {
            Ok(found) => return Ok(found),
            Err(_) if tries < KIND_TRIES && kind.group.contains('.') => tokio::time::sleep(KIND_PAUSE).await,
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("the API server does not serve kind {} of {}", kind.kind, kind.api_version())
                });
            }
        }
    }
}

async fn send(
    client: &Client,
    method: &str,
    path: &str,
    media: &str,
    body: &Value,
) -> Result<(), kube::Error> {
    let request = http::Request::builder()
        .method(method)
        .uri(format!("{path}?fieldValidation=Strict&fieldManager=ambit"))
        .header(http::header::CONTENT_TYPE, media)
        .body(body.to_string().into_bytes())
        .map_err(kube::Error::HttpError)?;
    client.request::<Value>(request).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_parsed(text: &str, expected: Result<&[&str], &str>) {
        let got = parse("m.yaml", text).map_err(|e| format!("{e:#}"));
        match (got, expected) {
            (Ok(found), Ok(want)) => {
                assert_eq!(found.iter().map(|m| m.origin.as_str()).collect::<Vec<_>>(), want);
            }
            (Err(error), Err(want)) => assert!(error.contains(want), "{error} does not say {want}"),
            (got, want) => panic!("got {got:?}, want {want:?}"),
        }
    }

    #[test]
    fn documents_are_named_by_their_place() {
        check_parsed(
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\n",
            Ok(&["m.yaml, document 1: Namespace a", "m.yaml, document 2: Pod b"]),
        );
    }

    #[test]
    fn items_of_a_list_are_objects_of_their_own() {
        check_parsed(
            "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: b}}\n",
            Ok(&["m.yaml, document 1, item 1: Pod b"]),
        );
    }

    #[test]
    fn faults_name_the_place_and_what_is_missing() {
        check_parsed("kind: Pod\nmetadata: {name: b}\n", Err("document 1: apiVersion is missing"));
        check_parsed("apiVersion: v1\nkind: Pod\n", Err("document 1: Pod: metadata.name is missing"));
        check_parsed("- a\n", Err("an object is expected"));
        check_parsed("a: [\n", Err("not valid YAML"));
        check_parsed("a: 1\na: 2\n", Err("not valid YAML"));
    }

    #[track_caller]
    fn check_types(text: &str, expected: &[&str]) {
        let found = check(&parse("m", text).unwrap());
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (fault, part) in found.iter().zip(expected) {
            assert!(fault.contains(part), "{fault} does not say {part}");
        }
    }

    #[test]
    fn what_no_cluster_would_take_is_refused_before_one_is_started() {
        let pod = |spec: &str| format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: b}}\nspec: {spec}\n");
        check_types(&pod("{containers: [{name: a, image: b}]}"), &[]);
        check_types(
            &pod("{containers: [{name: a, imagee: b}]}"),
            &["unknown field \"spec.containers[0].imagee\""],
        );
        check_types(&pod("{containers: []}"), &["spec.containers"]);
        check_types("apiVersion: v1\nkind: Podd\nmetadata: {name: b}\n", &["v1 Podd is not served here"]);
        check_types("apiVersion: v1\nkind: Deployment\nmetadata: {name: b}\n", &["apps/v1 Deployment is"]);
    }

    #[test]
    fn the_mesh_s_own_kinds_are_known() {
        let text = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: b}\nspec: {mtls: {mode: MAYBE}}\n";
        check_types(text, &["mode"]);
        check_types(&text.replace("MAYBE", "STRICT"), &[]);
    }

    #[test]
    fn octal_modes_are_read_as_kubectl_reads_them() {
        let found = parse("m", "apiVersion: v1\nkind: Pod\nmetadata: {name: b}\nmode: 0644\n").unwrap();
        assert_eq!(found[0].object["mode"], 0o644);
    }
}

//! Validation of volumes and where they are mounted. Source: Kubernetes `pkg/apis/core/validation/validation.go`.

use serde_json::Value;

use super::names;
use super::{items, text};
use crate::fault::Faults;
use crate::path::Path;

/// Checks a volume: it has a name and one source.
pub(super) fn volume(volume: &Value, path: &Path<'_>, faults: &mut Faults) {
    let name = text(volume, "name");
    if !name.is_empty()
        && let Err(message) = names::dns_label(name)
    {
        faults.invalid(&path.field("name"), name, message);
    }
    let sources: Vec<&String> =
        volume.as_object().into_iter().flat_map(|map| map.keys()).filter(|key| *key != "name").collect();
    if sources.is_empty() {
        faults.required(path, "must specify a volume type");
    }
    for extra in sources.iter().skip(1) {
        faults.forbidden(&path.field(extra), "may not specify more than 1 volume type");
    }
    let named = [("secret", "secretName"), ("configMap", "name"), ("persistentVolumeClaim", "claimName")];
    for (source, field) in named {
        if volume[source].is_object() && text(&volume[source], field).is_empty() {
            faults.required(&path.field(source).field(field), "");
        }
    }
    for source in ["secret", "configMap", "projected", "downwardAPI"] {
        let of = &volume[source];
        let path = path.field(source);
        mode(&of["defaultMode"], &path.field("defaultMode"), faults);
        let list = path.field("items");
        for (index, item) in items(of, "items") {
            relative_path(text(item, "path"), &list.index(index).field("path"), faults);
            mode(&item["mode"], &list.index(index).field("mode"), faults);
        }
    }
    projected(&volume["projected"], &path.field("projected"), faults);
    let host = text(&volume["hostPath"], "path");
    if host.split('/').any(|segment| segment == "..") {
        faults.invalid(&path.field("hostPath").field("path"), host, "must not contain '..'");
    }
}

fn projected(projected: &Value, path: &Path<'_>, faults: &mut Faults) {
    let list = path.field("sources");
    for (index, source) in items(projected, "sources") {
        let path = list.index(index);
        match source.as_object().map_or(0, serde_json::Map::len) {
            0 => faults.required(&path, "must specify a volume source"),
            1 => {}
            _ => faults.forbidden(&path, "may not specify more than 1 volume type per source"),
        }
        let token = &source["serviceAccountToken"];
        if !token.is_object() {
            continue;
        }
        let path = path.field("serviceAccountToken");
        relative_path(text(token, "path"), &path.field("path"), faults);
        // Source: the bounds of TokenRequest.
        if let Some(seconds) = token["expirationSeconds"].as_i64().filter(|seconds| *seconds < 600) {
            faults.invalid(
                &path.field("expirationSeconds"),
                seconds,
                "may not specify a duration less than 10 minutes",
            );
        }
    }
}

fn mode(mode: &Value, path: &Path<'_>, faults: &mut Faults) {
    if let Some(number) = mode.as_i64().filter(|number| !(0..=0o777).contains(number)) {
        faults.invalid(path, number, "must be a number between 0 and 0777 (octal), both inclusive");
    }
}

fn relative_path(text: &str, path: &Path<'_>, faults: &mut Faults) {
    if text.starts_with('/') {
        faults.invalid(path, text, "must be a relative path");
    }
    if text.split('/').any(|segment| segment == "..") {
        faults.invalid(path, text, "must not contain '..'");
    }
}

/// Checks where a volume is mounted.
pub(super) fn volume_mount(mount: &Value, path: &Path<'_>, faults: &mut Faults) {
    let place = text(mount, "mountPath");
    if place.contains(':') {
        faults.invalid(&path.field("mountPath"), place, "must not contain ':'");
    }
    for field in ["subPath", "subPathExpr"] {
        relative_path(text(mount, field), &path.field(field), faults);
    }
    if !text(mount, "subPath").is_empty() && !text(mount, "subPathExpr").is_empty() {
        let path = path.field("subPathExpr");
        faults.invalid(&path, text(mount, "subPathExpr"), "subPathExpr and subPath are mutually exclusive");
    }
}

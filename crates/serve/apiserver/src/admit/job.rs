//! Jobs: the selector that tells their pods from all others. Source: kubernetes pkg/registry/batch/job/strategy.go.

use crate::request::text;
use serde_json::{Value, json};

/// Gives a new Job its selector, and its pods the labels for it, unless it brings its own.
pub(super) fn complete_new(job: &mut Value) {
    if job["spec"]["manualSelector"] == true {
        return;
    }
    let (uid, name) = (text(job, "/metadata/uid").to_owned(), text(job, "/metadata/name").to_owned());
    let labels = &mut job["spec"]["template"]["metadata"]["labels"];
    if !labels.is_object() {
        *labels = json!({});
    }
    for (label, value) in [
        ("controller-uid", &uid),
        ("job-name", &name),
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
    ] {
        labels[label] = value.as_str().into();
    }
    job["spec"]["selector"] = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
}

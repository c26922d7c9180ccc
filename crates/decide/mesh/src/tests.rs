//! Golden files from objects to resources, and INV-05 on random histories of objects.

mod golden;
mod history;

use crate::{Mesh, MeshSettings, ObjectName};
use ambit_collect::Batch;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;

fn typed<T: DeserializeOwned>(object: &Value) -> Arc<T> {
    Arc::new(serde_json::from_value(object.clone()).expect("the object is one of its kind"))
}

fn name_of(object: &Value) -> ObjectName {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    ObjectName::new(text("namespace"), text("name"))
}

/// Adds the write (or the removal) of an object to a batch.
fn write(mesh: &Mesh, batch: &mut Batch, object: &Value, present: bool) {
    macro_rules! put {
        ($input:expr, $key:expr) => {
            match present {
                true => batch.set($input, $key, typed(object)),
                false => batch.remove($input, $key),
            }
        };
    }
    let (inputs, name) = (&mesh.inputs, name_of(object));
    match object["kind"].as_str().unwrap_or_default() {
        "Pod" => put!(inputs.pods, name),
        "Namespace" => put!(inputs.namespaces, name.name),
        "Node" => put!(inputs.nodes, name.name),
        "Service" => put!(inputs.services, name),
        "EndpointSlice" => put!(inputs.slices, name),
        "AuthorizationPolicy" => put!(inputs.authorization_policies, name),
        "PeerAuthentication" => put!(inputs.peer_authentications, name),
        other => panic!("unexpected kind {other}"),
    }
}

fn mesh_of(objects: &[Value]) -> Mesh {
    let mut mesh = Mesh::new(MeshSettings::default());
    let mut batch = Batch::new();
    for object in objects {
        write(&mesh, &mut batch, object, true);
    }
    assert!(mesh.graph.apply(batch).faults().is_empty());
    mesh
}

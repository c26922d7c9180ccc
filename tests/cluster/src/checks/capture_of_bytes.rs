//! What crosses the bridge.

use super::{REQUEST_TIMEOUT_MS, Scene, marker};
use crate::capture::Capture;
use ambit_names::{cluster, port};
use anyhow::{Result, bail};

/// Between captured pods: no plain text, TLS on the HBONE port. From an uncaptured one: the plain text is seen.
pub(super) async fn encrypted(scene: &Scene<'_>) -> Result<String> {
    let secret = marker("captured");
    let url = format!("http://server.demo.svc.cluster.local/{secret}");
    let capture = Capture::start(cluster::BRIDGE, secret.as_bytes(), port::INBOUND_HBONE)?;
    scene.request("captured", &url).await?.success()?;
    let inside = capture.stop()?;
    if inside.marker_in_plain > 0 {
        bail!("the marker crossed the bridge in plain text {} times", inside.marker_in_plain);
    }
    if inside.tls_records == 0 {
        bail!(
            "no TLS record crossed the bridge on port {} among {} packets",
            port::INBOUND_HBONE,
            inside.packets
        );
    }
    let plain = marker("plain");
    let url = format!("http://server.demo.svc.cluster.local/{plain}");
    let capture = Capture::start(cluster::BRIDGE, plain.as_bytes(), port::INBOUND_HBONE)?;
    let args = ["get", &url, "--count", "1", "--timeout", REQUEST_TIMEOUT_MS];
    scene.run("plain", "uncaptured", "default", &args).await?.success()?;
    let outside = capture.stop()?;
    if outside.marker_in_plain == 0 {
        bail!(
            "the uncaptured pod's marker was not seen among {} packets: the capture proves nothing",
            outside.packets
        );
    }
    Ok(format!(
        "captured: {} packets, marker in plain text 0 times, {} TLS records on {}\nuncaptured: {} packets, marker in plain text {} times",
        inside.packets,
        inside.tls_records,
        port::INBOUND_HBONE,
        outside.packets,
        outside.marker_in_plain
    ))
}

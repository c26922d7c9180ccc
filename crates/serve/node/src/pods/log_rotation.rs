//! Keeps container logs bounded: a log that grew too large is moved away and begun anew.

use crate::context::Context;
use crate::cri::label;
use ambit_proto::cri::ContainerState;
use ambit_runtime::Shutdown;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::warn;

/// Size from which a log is rotated, in bytes. Source: kubelet's `containerLogMaxSize`.
const LOG_BYTES_MAX: u64 = 10 * 1024 * 1024;
/// Between two looks. Source: kubelet's `containerLogMonitorInterval`.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// What a log that was moved away is called.
const ROTATED: &str = "old";

/// The file that holds what came before a log.
pub(crate) fn rotated(log: &Path) -> PathBuf {
    log.with_extension(ROTATED)
}

/// Rotates logs until `shutdown`. One earlier file is kept per log.
pub(crate) async fn rotate_logs(context: &Context, shutdown: &Shutdown) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
            () = shutdown.cancelled() => return,
        }
        let Ok(containers) = context.cri.containers(None).await else { continue };
        let running = containers.into_iter().filter(|c| c.state == ContainerState::ContainerRunning as i32);
        for container in running {
            let text = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
            let dir = context.layout.pod_logs(
                &text(label::POD_NAMESPACE),
                &text(label::POD_NAME),
                &text(label::POD_UID),
            );
            let attempt = container.metadata.as_ref().map_or(0, |m| m.attempt);
            let log = dir.join(super::container_config::log_path(&text(label::CONTAINER_NAME), attempt));
            if !std::fs::metadata(&log).is_ok_and(|m| m.len() > LOG_BYTES_MAX) {
                continue;
            }
            let renamed = std::fs::rename(&log, rotated(&log));
            let reopened = context.cri.reopen_log(&container.id).await;
            if renamed.is_err() || reopened.is_err() {
                warn!(log = %log.display(), "cannot rotate a log");
            }
        }
    }
}

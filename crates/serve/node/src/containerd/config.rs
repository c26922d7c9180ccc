//! containerd's configuration file. Source: containerd 1.6, `docs/man/containerd-config.toml.5.md` and `docs/cri/config.md`.

use super::Programs;
use crate::layout::Layout;

/// Plugins that serve nothing here, write outside the state directory, or only log that they are not usable.
const DISABLED_PLUGINS: [&str; 8] = [
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.tracing",
    "io.containerd.internal.v1.restart",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
];

/// How containers' file systems are layered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Snapshotter {
    /// Layers share their files.
    Overlay,
    /// Layers are copied: works on every file system.
    Native,
}

/// What the machine allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) snapshotter: Snapshotter,
    /// Whether a process may be protected from the kernel's out-of-memory killer, which takes CAP_SYS_RESOURCE. Without
    /// it runc fails to start any sandbox, unless containerd is told to leave the score alone.
    pub(super) may_lower_oom_score: bool,
}

/// Renders the file. The layout has made sure that its paths need no escaping.
pub(super) fn render(layout: &Layout, programs: &Programs, sandbox_image: &str, host: Host) -> String {
    let disabled = DISABLED_PLUGINS.map(|plugin| format!("{plugin:?}")).join(", ");
    let snapshotter = match host.snapshotter {
        Snapshotter::Overlay => "overlayfs",
        Snapshotter::Native => "native",
    };
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"
temp = "{temp}"
disabled_plugins = [{disabled}]

[grpc]
  address = "{socket}"

[debug]
  level = "info"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox_image}"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = {restrict}
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_bin}"
    conf_dir = "{cni_conf}"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    snapshotter = "{snapshotter}"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        Root = "{runc_root}"
        SystemdCgroup = false
"#,
        restrict = !host.may_lower_oom_score,
        root = layout.runtime_root().display(),
        state = layout.runtime_state().display(),
        temp = layout.run_dir().join("tmp").display(),
        socket = layout.socket().display(),
        cni_bin = layout.cni_bin().display(),
        cni_conf = layout.cni_conf().display(),
        runc = programs.runc.display(),
        runc_root = layout.run_dir().join("runc").display(),
    )
}

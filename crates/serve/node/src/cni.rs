//! The pod network's configuration: the reference plugins on a bridge, with the mesh's plugin chained after them.

use crate::error::Error;
use crate::layout::Layout;
use crate::settings::Settings;
use ambit_cni_conf::{Entry, list, render};
use ipnet::IpNet;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The reference plugins that the configuration and the runtime use.
const PLUGINS: [&str; 3] = ["bridge", "host-local", "loopback"];
/// Name of the network.
const NETWORK: &str = "ambit";

/// Writes the plugin directory and the configuration. The mesh's plugin is in it from the first moment, so that no pod
/// can start past it.
///
/// # Errors
/// A plugin is missing, or a file cannot be written.
pub(crate) fn install(settings: &Settings, layout: &Layout) -> Result<(), Error> {
    let (bin, conf) = (layout.cni_bin(), layout.cni_conf());
    for dir in [&bin, &conf, &layout.cni_addresses()] {
        std::fs::create_dir_all(dir).map_err(Error::file("make the directory", dir))?;
    }
    for plugin in PLUGINS {
        let source = find(plugin, &settings.cni_bin_dirs)?;
        link(&source, &bin.join(plugin))?;
    }
    if let Some(mesh) = &settings.mesh_plugin {
        link(&mesh.binary, &bin.join(list::PLUGIN_TYPE))?;
    }
    let text = configuration(settings, &layout.cni_addresses());
    let path = conf.join("10-ambit.conflist");
    // Renamed into place: the runtime watches the directory and must not read half a file.
    let temporary = path.with_extension("tmp");
    std::fs::write(&temporary, text).map_err(Error::file("write", &temporary))?;
    std::fs::rename(&temporary, &path).map_err(Error::file("write", &path))
}

fn find(plugin: &str, dirs: &[PathBuf]) -> Result<PathBuf, Error> {
    let found = dirs.iter().map(|dir| dir.join(plugin)).find(|path| path.is_file());
    found.ok_or_else(|| Error::MissingProgram {
        program: format!("the CNI plugin {plugin}"),
        searched: dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(":"),
        package: "containernetworking-plugins",
    })
}

fn link(source: &Path, target: &Path) -> Result<(), Error> {
    if !source.is_file() {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::file("use the CNI plugin", source)(missing));
    }
    let _ = std::fs::remove_file(target);
    std::os::unix::fs::symlink(source, target).map_err(Error::file("make the link", target))
}

fn configuration(settings: &Settings, addresses: &Path) -> String {
    let ranges: Vec<Value> = settings.pod_cidrs.iter().map(|net| json!([{ "subnet": net }])).collect();
    let routes: Vec<Value> = settings
        .pod_cidrs
        .iter()
        .map(|net| match net {
            IpNet::V4(_) => json!({ "dst": "0.0.0.0/0" }),
            IpNet::V6(_) => json!({ "dst": "::/0" }),
        })
        .collect();
    let bridge = json!({
        "type": "bridge",
        "bridge": settings.bridge,
        "isGateway": true,
        "hairpinMode": true,
        "ipam": { "type": "host-local", "dataDir": addresses, "ranges": ranges, "routes": routes },
    });
    let mesh = settings.mesh_plugin.as_ref().map(|mesh| {
        let entry = Entry {
            run_dir: mesh.run_dir.display().to_string(),
            exclude_namespaces: mesh.exclude_namespaces.clone(),
            pod_namespace: mesh.pod_namespace.clone(),
        };
        let mut value = entry.to_value();
        value["ambient_enabled"] = json!(true);
        value
    });
    let plugins: Vec<Value> = std::iter::once(bridge).chain(mesh).collect();
    render(NETWORK, &plugins)
}

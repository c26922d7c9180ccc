//! What a plugin reads from its standard input and environment, and its error object.
//!
//! Source: the CNI specification 1.1, sections 1, 2 and 5.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// A version of the CNI specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.1.0, also meant when no version is given.
    V0_1_0,
    /// 0.2.0.
    V0_2_0,
    /// 0.3.0.
    V0_3_0,
    /// 0.3.1.
    V0_3_1,
    /// 0.4.0: adds CHECK.
    V0_4_0,
    /// 1.0.0: `ips` lose their version.
    V1_0_0,
    /// 1.1.0: adds STATUS and GC.
    V1_1_0,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: [Version; 7] = [
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// Its text.
    pub const fn text(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// The version with this text; the empty text means 0.1.0.
    pub fn parse(text: &str) -> Option<Version> {
        match text {
            "" => Some(Version::V0_1_0),
            text => Version::ALL.into_iter().find(|version| version.text() == text),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Error codes of the specification.
pub mod code {
    /// The configuration's version is not supported.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// An environment variable is missing or malformed.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// Reading or writing failed.
    pub const IO: u32 = 5;
    /// The configuration is not JSON of the right shape.
    pub const DECODE: u32 = 6;
    /// The configuration is not valid.
    pub const INVALID_CONFIGURATION: u32 = 7;
    /// A passing condition: the runtime should try again later.
    pub const TRY_AGAIN_LATER: u32 = 11;
    /// STATUS: the plugin cannot serve ADD requests now.
    pub const NOT_AVAILABLE: u32 = 50;
    /// STATUS: the plugin cannot serve ADD requests now, and pods that are there may have limited connectivity.
    pub const LIMITED_CONNECTIVITY: u32 = 51;
    /// A fault of the plugin itself.
    pub const INTERNAL: u32 = 999;
}

/// What a failing plugin prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorObject {
    /// Version of the configuration, or the newest when it is unknown.
    pub cni_version: String,
    /// See [`code`].
    pub code: u32,
    /// One sentence.
    pub msg: String,
    /// What to do about it, or the cause.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
}

/// The plugin's configuration. Keys of other plugins and of the runtime are let be.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct NetConf {
    /// Version of the specification.
    #[serde(default, rename = "cniVersion")]
    pub cni_version: String,
    /// Result of the plugins before this one.
    #[serde(default, rename = "prevResult")]
    pub prev_result: Option<Value>,
    /// Directory with the agent's socket.
    #[serde(default)]
    pub cni_agent_run_dir: String,
    /// Pods of these namespaces are let through without asking.
    #[serde(default)]
    pub exclude_namespaces: Option<Vec<String>>,
    /// Namespace of the mesh's own pods.
    #[serde(default)]
    pub pod_namespace: String,
    /// GC: what lives. Nothing when the runtime does not say.
    #[serde(default, rename = "cni.dev/valid-attachments")]
    pub valid_attachments: Option<Vec<Attachment>>,
}

/// A sandbox's interface that lives, as GC gets it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Attachment {
    /// Id of the sandbox.
    #[serde(rename = "containerID")]
    pub container_id: String,
}

impl NetConf {
    /// Reads a configuration.
    ///
    /// # Errors
    /// Not JSON, or a key of the wrong type: the object to print.
    pub fn parse(text: &[u8]) -> Result<(Self, Version), ErrorObject> {
        let object = |code, msg: &str, details: String| ErrorObject {
            cni_version: Version::V1_0_0.text().to_owned(),
            code,
            msg: msg.to_owned(),
            details,
        };
        let unreadable =
            |details: String| object(code::DECODE, "the network configuration cannot be read", details);
        let value: Value = serde_json::from_slice(text).map_err(|e| unreadable(e.to_string()))?;
        if !value.is_object() {
            return Err(unreadable("it is not a JSON object".into()));
        }
        let conf: NetConf = serde_json::from_value(value).map_err(|e| unreadable(e.to_string()))?;
        let version = Version::parse(&conf.cni_version).ok_or_else(|| {
            let known = Version::ALL.map(Version::text).join(", ");
            let details = format!("cniVersion is {:?}; supported are {known}", conf.cni_version);
            object(code::INCOMPATIBLE_VERSION, "the configuration's version is not supported", details)
        })?;
        Ok((conf, version))
    }
}

/// `CNI_ARGS`: pairs separated by semicolons.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    pairs: BTreeMap<String, String>,
}

impl Arguments {
    /// Reads the variable's text; pairs without `=` are skipped, as unknown ones are.
    pub fn parse(text: &str) -> Self {
        let pairs = text
            .split(';')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
            .collect();
        Self { pairs }
    }

    fn value(&self, key: &str) -> &str {
        self.pairs.get(key).map_or("", String::as_str)
    }

    /// The pod's name; empty when the runtime is not Kubernetes'.
    pub fn pod_name(&self) -> &str {
        self.value("K8S_POD_NAME")
    }

    /// The pod's namespace; empty when the runtime is not Kubernetes'.
    pub fn pod_namespace(&self) -> &str {
        self.value("K8S_POD_NAMESPACE")
    }

    /// The pod's UID; empty when the runtime does not say.
    pub fn pod_uid(&self) -> &str {
        self.value("K8S_POD_UID")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_as_the_runtime_writes_them() {
        let read = Arguments::parse("IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=c=d;;x");
        assert_eq!((read.pod_namespace(), read.pod_name(), read.pod_uid()), ("a", "b", "c=d"));
        assert_eq!(Arguments::parse("").pod_name(), "");
    }

    #[track_caller]
    fn check_refused(text: &str, code: u32, details: &str) {
        let error = NetConf::parse(text.as_bytes()).unwrap_err();
        assert_eq!(error.code, code);
        assert!(error.details.contains(details), "{}", error.details);
    }

    #[test]
    fn bad_configurations_are_refused_with_the_specification_s_codes() {
        check_refused("", code::DECODE, "EOF");
        check_refused("[]", code::DECODE, "not a JSON object");
        check_refused(r#"{"exclude_namespaces": 3}"#, code::DECODE, "invalid type");
        check_refused(r#"{"cniVersion": "2.0.0"}"#, code::INCOMPATIBLE_VERSION, "supported are 0.1.0,");
    }

    #[test]
    fn a_missing_version_means_the_first() {
        let (conf, version) = NetConf::parse(br#"{"exclude_namespaces": null, "type": "x"}"#).unwrap();
        assert_eq!((version, conf.exclude_namespaces), (Version::V0_1_0, None));
    }
}

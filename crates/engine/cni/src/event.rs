//! What the plugin tells the node agent about a new pod, and the agent's answer.
//!
//! Field names are those of Istio's plugin (Go's defaults); the fields it does not send are optional.

use serde::{Deserialize, Deserializer, Serialize};
use std::net::IpAddr;

/// Path of the request on the agent's socket, for the mesh's own plugin: the agent decides about the capture.
pub const ADD_PATH: &str = "/ambit/v1/add";
/// Path of the request whether what [`ADD_PATH`] did for an [`Event`] still holds: 200, or what is wrong as text.
pub const CHECK_PATH: &str = "/ambit/v1/check";
/// Path of the request for the agent's [`State`]. Its body is an empty object.
pub const STATUS_PATH: &str = "/ambit/v1/status";
/// Path of the request to forget all sandboxes but [`LiveSandboxes`].
pub const GC_PATH: &str = "/ambit/v1/gc";
/// Path of the request on the agent's log socket: a list of texts, each a JSON object.
pub const LOG_PATH: &str = "/log";
/// Path of the request for Istio's plugin, which has decided already.
pub const FOREIGN_ADD_PATH: &str = "/cmdadd";
/// Largest body of a request. A pod has a handful of addresses; this is generous.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// A pod whose network was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Event {
    /// Path of the pod's network namespace.
    pub netns: String,
    /// The pod's name.
    pub pod_name: String,
    /// The pod's namespace.
    pub pod_namespace: String,
    /// The pod's addresses.
    #[serde(rename = "IPs", default, deserialize_with = "null_is_empty")]
    pub ips: Vec<Ip>,
    /// Id of the pod's sandbox.
    #[serde(rename = "ContainerID", default)]
    pub container_id: String,
    /// Name of the pod's interface.
    #[serde(default)]
    pub interface: String,
    /// The pod's UID.
    #[serde(rename = "PodUID", default)]
    pub pod_uid: String,
}

/// One address of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Ip {
    /// Index into the result's interfaces.
    #[serde(default)]
    pub interface: Option<i64>,
    /// Address and mask.
    pub address: Address,
    /// Gateway, empty when there is none.
    #[serde(default)]
    pub gateway: String,
}

/// An address as Go writes a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address.
    #[serde(rename = "IP")]
    pub ip: IpAddr,
    /// The mask's bytes in base64.
    #[serde(rename = "Mask", default)]
    pub mask: Option<String>,
}

impl Ip {
    /// An address with the length of its prefix.
    pub fn new(net: ipnet::IpNet, interface: Option<i64>, gateway: Option<IpAddr>) -> Self {
        let mask = match net.netmask() {
            IpAddr::V4(mask) => base64(&mask.octets()),
            IpAddr::V6(mask) => base64(&mask.octets()),
        };
        Self {
            interface,
            address: Address { ip: net.addr(), mask: Some(mask) },
            gateway: gateway.map(|gateway| gateway.to_string()).unwrap_or_default(),
        }
    }

    /// The address; an IPv4 address in IPv6 form becomes IPv4.
    pub fn address(&self) -> IpAddr {
        self.address.ip.to_canonical()
    }
}

/// The agent's answer to [`ADD_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the pod's traffic is captured now.
    pub captured: bool,
    /// Why, in words.
    pub reason: String,
}

/// Whether the agent can enroll pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ability {
    /// It can.
    Able,
    /// It cannot.
    Unable,
    /// It cannot, since no proxy is connected: pods that are captured have no connections either.
    Cut,
}

/// The agent's answer to [`STATUS_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Whether it can enroll pods.
    pub ability: Ability,
    /// Why, in words.
    pub reason: String,
}

/// The body of [`GC_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveSandboxes {
    /// Ids of the sandboxes that live.
    pub container_ids: Vec<String>,
}

fn null_is_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Ip>, D::Error> {
    Ok(Option::<Vec<Ip>>::deserialize(from)?.unwrap_or_default())
}

/// Base64 with padding (RFC 4648, section 4). Here because the plugin carries no library for sixteen bytes.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().enumerate().fold(0u32, |bits, (i, byte)| bits | u32::from(*byte) << (16 - 8 * i));
        for i in 0..4 {
            let index = (bits >> (18 - 6 * i)) & 63;
            text.push(if i <= group.len() { char::from(ALPHABET[index as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_written_as_the_field_s_agent_reads_it() {
        let event = Event {
            netns: "/var/run/netns/x".into(),
            pod_name: "p".into(),
            pod_namespace: "n".into(),
            ips: vec![
                Ip::new("10.0.0.5/24".parse().unwrap(), Some(2), Some([10, 0, 0, 1].into())),
                Ip::new("fd00::5/64".parse().unwrap(), None, None),
            ],
            container_id: "c".into(),
            interface: "eth0".into(),
            pod_uid: "u".into(),
        };
        let expected = serde_json::json!({
            "Netns": "/var/run/netns/x", "PodName": "p", "PodNamespace": "n",
            "IPs": [
                {"Interface": 2, "Address": {"IP": "10.0.0.5", "Mask": "////AA=="}, "Gateway": "10.0.0.1"},
                {"Interface": null, "Address": {"IP": "fd00::5", "Mask": "//////////8AAAAAAAAAAA=="}, "Gateway": ""},
            ],
            "ContainerID": "c", "Interface": "eth0", "PodUID": "u",
        });
        assert_eq!(serde_json::to_value(&event).unwrap(), expected);
        assert_eq!(serde_json::from_value::<Event>(expected).unwrap(), event);
    }

    #[track_caller]
    fn check_foreign(ips: serde_json::Value, expected: &[&str]) {
        let event = serde_json::json!({"Netns": "", "PodName": "p", "PodNamespace": "n", "IPs": ips});
        let event: Event = serde_json::from_value(event).unwrap();
        let addresses: Vec<String> = event.ips.iter().map(|ip| ip.address().to_string()).collect();
        assert_eq!(addresses, expected);
    }

    #[test]
    fn events_of_a_foreign_plugin_are_read() {
        check_foreign(serde_json::Value::Null, &[]);
        let mapped = serde_json::json!([{"Interface": null, "Address": {"IP": "::ffff:10.0.0.5", "Mask": "////AA=="}, "Gateway": ""}]);
        check_foreign(mapped, &["10.0.0.5"]);
    }
}

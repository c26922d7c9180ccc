//! The node proxy's environment: what `ambit up` gives, and what `ambit proxy` reads.

use ambit_names::mesh;
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a node proxy finds its peers, and as whom it speaks.
#[derive(Debug, Clone)]
pub(crate) struct ProxyPlace {
    /// URL of discovery and certificates.
    pub(crate) control_plane: String,
    /// PEM file with the roots of the control plane's certificate.
    pub(crate) root_file: PathBuf,
    /// File with the token.
    pub(crate) token_file: PathBuf,
    /// Socket of the hand-over.
    pub(crate) handover_socket: PathBuf,
    /// Node, its address, and the proxy's pod.
    pub(crate) node_name: String,
    /// Address of the node.
    pub(crate) node_ip: String,
    /// Name of the pod that stands for the proxy.
    pub(crate) pod_name: String,
}

impl ProxyPlace {
    /// The environment, under the names that node proxies of the field use.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let show = |path: &Path| path.display().to_string();
        [
            ("XDS_ADDRESS", self.control_plane.clone()),
            ("CA_ADDRESS", self.control_plane.clone()),
            ("XDS_ROOT_CA", show(&self.root_file)),
            ("CA_ROOT_CA", show(&self.root_file)),
            ("AUTH_TOKEN", show(&self.token_file)),
            ("INPOD_UDS", show(&self.handover_socket)),
            ("NODE_NAME", self.node_name.clone()),
            ("POD_NAME", self.pod_name.clone()),
            ("POD_NAMESPACE", mesh::SYSTEM_NAMESPACE.to_owned()),
            ("INSTANCE_IP", self.node_ip.clone()),
            ("SERVICE_ACCOUNT", mesh::PROXY_ACCOUNT.to_owned()),
            ("CLUSTER_ID", mesh::CLUSTER_ID.to_owned()),
            // Names resolve at the cluster DNS: the agent captures no DNS here.
            ("ISTIO_META_DNS_CAPTURE", "false".to_owned()),
            ("RUST_LOG", "info".to_owned()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

/// The proxy's settings from an environment.
///
/// # Errors
/// All variables that are not valid, together.
pub(crate) fn from_environment(
    variables: impl Iterator<Item = (String, String)>,
) -> Result<ambit_proxy::Settings> {
    let mut environment = Environment { variables: variables.collect(), faults: Vec::new() };
    let defaults = ambit_proxy::Settings::default();
    let e = &mut environment;
    let control_plane = e.endpoint("XDS", defaults.control_plane);
    let ca = e.endpoint("CA", defaults.ca);
    let ipv6 = e.parse("IPV6_ENABLED", "true or false").unwrap_or(defaults.ipv6);
    let windows = ambit_proxy::Windows {
        stream: e.parse("HTTP2_STREAM_WINDOW_SIZE", "bytes").unwrap_or(defaults.windows.stream),
        connection: e.parse("HTTP2_CONNECTION_WINDOW_SIZE", "bytes").unwrap_or(defaults.windows.connection),
        frame: e.parse("HTTP2_FRAME_SIZE", "bytes").unwrap_or(defaults.windows.frame),
    };
    let transparency = match e.parse("ENABLE_ORIG_SRC", "true or false") {
        Some(true) => ambit_proxy::Transparency::Required,
        Some(false) => ambit_proxy::Transparency::Off,
        None => defaults.transparency,
    };
    let any = if ipv6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
    let settings = ambit_proxy::Settings {
        control_plane,
        ca,
        token: e.path("AUTH_TOKEN", defaults.token),
        // The metadata's cluster id wins, as in the field.
        cluster_id: e
            .text("ISTIO_META_CLUSTER_ID")
            .or_else(|| e.text("CLUSTER_ID"))
            .unwrap_or(defaults.cluster_id),
        cluster_domain: e.text("CLUSTER_DOMAIN").unwrap_or(defaults.cluster_domain),
        network: e.text("NETWORK").unwrap_or_default(),
        node_name: e.text("NODE_NAME").unwrap_or_default(),
        pod_name: e.text("POD_NAME").unwrap_or_default(),
        pod_namespace: e.text("POD_NAMESPACE").unwrap_or_default(),
        service_account: e.text("SERVICE_ACCOUNT").unwrap_or_default(),
        instance_ip: e.parse("INSTANCE_IP", "an IP address"),
        metadata: e.metadata(),
        handover_socket: e.path("INPOD_UDS", defaults.handover_socket),
        metrics: SocketAddr::new(any, defaults.metrics.port()),
        ready: SocketAddr::new(any, defaults.ready.port()),
        certificate_validity: e.duration("SECRET_TTL").unwrap_or(defaults.certificate_validity),
        windows,
        pool_streams_max: e
            .parse("POOL_MAX_STREAMS_PER_CONNECTION", "a number of streams")
            .unwrap_or(defaults.pool_streams_max),
        pool_idle: e.duration("POOL_UNUSED_RELEASE_TIMEOUT").unwrap_or(defaults.pool_idle),
        ipv6,
        transparency,
        mark: e.parse("PACKET_MARK", "a number").unwrap_or(defaults.mark),
        drain: e.duration("CONNECTION_TERMINATION_DEADLINE").unwrap_or(defaults.drain),
        ..defaults
    };
    for name in ["NODE_NAME", "POD_NAME", "POD_NAMESPACE"] {
        e.require(name);
    }
    if environment.faults.is_empty() {
        return Ok(settings);
    }
    bail!("the proxy's environment is not valid:\n  {}", environment.faults.join("\n  "))
}

/// Variables and what is wrong with them.
struct Environment {
    variables: BTreeMap<String, String>,
    faults: Vec<String>,
}

impl Environment {
    fn text(&self, name: &str) -> Option<String> {
        self.variables.get(name).filter(|v| !v.is_empty()).cloned()
    }

    fn path(&self, name: &str, default: PathBuf) -> PathBuf {
        self.text(name).map_or(default, PathBuf::from)
    }

    fn parse<T: std::str::FromStr>(&mut self, name: &str, expected: &str) -> Option<T> {
        let text = self.text(name)?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            self.faults.push(format!("{name}={text:?}: {expected} is expected"));
        }
        parsed
    }

    /// A duration as in Go: `24h`, `1m30s`, `500ms`.
    fn duration(&mut self, name: &str) -> Option<Duration> {
        let text = self.text(name)?;
        let parsed = duration(&text);
        if parsed.is_none() {
            self.faults.push(format!("{name}={text:?}: a duration like 24h, 5m or 500ms is expected"));
        }
        parsed
    }

    fn endpoint(&self, prefix: &str, default: ambit_proxy::Endpoint) -> ambit_proxy::Endpoint {
        ambit_proxy::Endpoint {
            address: self.text(&format!("{prefix}_ADDRESS")).unwrap_or(default.address),
            root_pem: self.path(&format!("{prefix}_ROOT_CA"), default.root_pem),
            alternative_name: self.text(&format!("ALT_{prefix}_HOSTNAME")),
        }
    }

    /// `ISTIO_META_*`, with the prefix taken off.
    fn metadata(&self) -> BTreeMap<String, String> {
        let own = self
            .variables
            .iter()
            .filter_map(|(k, v)| Some((k.strip_prefix("ISTIO_META_")?.to_owned(), v.clone())));
        own.collect()
    }

    fn require(&mut self, name: &str) {
        if self.text(name).is_none() {
            self.faults.push(format!("{name} is not set"));
        }
    }
}

/// A sum of numbers with the units h, m, s and ms.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|n| *n > 0)?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let (unit_ms, length) = match rest {
            _ if rest.starts_with("ms") => (1, 2),
            _ if rest.starts_with('s') => (1000, 1),
            _ if rest.starts_with('m') => (60_000, 1),
            _ if rest.starts_with('h') => (3_600_000, 1),
            _ => return None,
        };
        rest = &rest[length..];
        sum = sum.checked_add(Duration::from_millis(number.checked_mul(unit_ms)?))?;
    }
    (!sum.is_zero()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> ProxyPlace {
        ProxyPlace {
            control_plane: "https://localhost:15012".into(),
            root_file: "/run/root.pem".into(),
            token_file: "/run/token".into(),
            handover_socket: "/run/z.sock".into(),
            node_name: "node-1".into(),
            node_ip: "10.244.0.1".into(),
            pod_name: "ztunnel-node-1".into(),
        }
    }

    #[test]
    fn what_up_gives_is_what_the_proxy_reads() {
        let settings = from_environment(place().environment().into_iter()).unwrap();
        assert_eq!(settings.control_plane.address, "https://localhost:15012");
        assert_eq!(settings.ca.root_pem, PathBuf::from("/run/root.pem"));
        assert_eq!(settings.handover_socket, PathBuf::from("/run/z.sock"));
        assert_eq!(settings.pod_name, "ztunnel-node-1");
        assert_eq!(settings.instance_ip, Some("10.244.0.1".parse().unwrap()));
        assert_eq!(settings.metadata.get("DNS_CAPTURE").map(String::as_str), Some("false"));
    }

    #[test]
    fn all_faults_are_named_together() {
        let variables = [("IPV6_ENABLED", "maybe"), ("SECRET_TTL", "1 day"), ("NODE_NAME", "n")];
        let variables = variables.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
        let error = from_environment(variables).unwrap_err().to_string();
        for part in ["IPV6_ENABLED", "SECRET_TTL", "POD_NAME is not set"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(!error.contains("NODE_NAME is not"), "{error}");
    }

    #[track_caller]
    fn check(text: &str, expected: Option<u64>) {
        assert_eq!(duration(text), expected.map(Duration::from_millis));
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        check("24h", Some(86_400_000));
        check("1m30s", Some(90_000));
        check("500ms", Some(500));
        check("5", None);
        check("h", None);
        check("", None);
        check("-1s", None);
    }
}

//! The one table of ports, labels, annotations, marks, paths and the SPIFFE format.
//! It never holds logic.

pub mod spiffe;

/// Ports of the node proxy and the control plane. Source: Istio's port assignments.
pub mod port {
    /// Outbound capture in the pod's namespace.
    pub const OUTBOUND: u16 = 15001;
    /// Captured inbound plain text in the pod's namespace.
    pub const INBOUND_PLAINTEXT: u16 = 15006;
    /// Inbound HBONE in the pod's namespace.
    pub const INBOUND_HBONE: u16 = 15008;
    /// The DNS proxy in the pod's namespace.
    pub const DNS_PROXY: u16 = 15053;
    /// Admin endpoint of the node proxy, on localhost.
    pub const PROXY_ADMIN: u16 = 15000;
    /// Metrics of the node proxy.
    pub const PROXY_METRICS: u16 = 15020;
    /// Readiness of the node proxy.
    pub const PROXY_READY: u16 = 15021;
    /// Discovery and certificates of the control plane, over TLS.
    pub const CONTROL_PLANE: u16 = 15012;
    /// Metrics of the control plane and of the node agent.
    pub const METRICS: u16 = 15014;
    /// Metrics of a control plane that shares its host with a node agent.
    pub const CONTROL_PLANE_METRICS: u16 = 15013;
    /// Health of the node agent.
    pub const AGENT_HEALTH: u16 = 8000;
    /// The node runtime's own server (logs).
    pub const NODE: u16 = 10250;
    /// The API server.
    pub const API_SERVER: u16 = 6443;
    /// DNS.
    pub const DNS: u16 = 53;
}

/// Packet and connection marks. Source: Istio's ambient redirection.
pub mod mark {
    /// Packet mark on every socket of the proxy in a pod's namespace.
    pub const PROXY: u32 = 0x539;
    /// Connection mark of connections that the proxy made.
    pub const CONNECTION: u32 = 0x111;
    /// The bits both marks use.
    pub const MASK: u32 = 0xfff;
    /// Route table that delivers marked replies to the proxy.
    pub const ROUTE_TABLE: u32 = 100;
    /// Priority of the routing rule that looks into that table.
    pub const RULE_PRIORITY: u32 = 32764;
}

/// Labels.
pub mod label {
    /// Enrollment of a namespace or pod: `ambient` or `none`.
    pub const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";
    /// The waypoint a service, pod or namespace uses.
    pub const USE_WAYPOINT: &str = "istio.io/use-waypoint";
    /// The service an EndpointSlice belongs to.
    pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
    /// Who manages an EndpointSlice.
    pub const SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
    /// Name of a namespace, set on every namespace by the API server.
    pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
    /// Hash of the pod template, on ReplicaSets and their pods.
    pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";
    /// Canonical service name of a workload.
    pub const CANONICAL_NAME: &str = "service.istio.io/canonical-name";
    /// Canonical revision of a workload.
    pub const CANONICAL_REVISION: &str = "service.istio.io/canonical-revision";
    /// Network of the system namespace.
    pub const NETWORK: &str = "topology.istio.io/network";
}

/// Values of [`label::DATAPLANE_MODE`].
pub mod dataplane_mode {
    /// Captured.
    pub const AMBIENT: &str = "ambient";
    /// Not captured, whatever the namespace says.
    pub const NONE: &str = "none";
}

/// Annotations.
pub mod annotation {
    /// Capture state of a pod, written by the node agent: `enabled` or `pending`.
    pub const REDIRECTION: &str = "ambient.istio.io/redirection";
    /// Leaves inbound connections to the application uncaptured.
    pub const BYPASS_INBOUND: &str = "ambient.istio.io/bypass-inbound-capture";
    /// Captures DNS or not, whatever the agent's default.
    pub const DNS_CAPTURE: &str = "ambient.istio.io/dns-capture";
    /// Interfaces whose traffic is captured as outbound.
    pub const REROUTE_INTERFACES: &str = "istio.io/reroute-virtual-interfaces";
    /// Ports, with commas between, on which connections reach the application uncaptured.
    pub const EXCLUDE_INBOUND_PORTS: &str = "traffic.sidecar.istio.io/excludeInboundPorts";
    /// Ports, with commas between, to which the pod's connections are not captured.
    pub const EXCLUDE_OUTBOUND_PORTS: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
    /// Networks, with commas between, to which the pod's connections are not captured.
    pub const EXCLUDE_OUTBOUND_RANGES: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
    /// Present on pods with a sidecar.
    pub const SIDECAR_STATUS: &str = "sidecar.istio.io/status";
    /// Marks a pod that stands for a process outside the node's container runtime (a static pod's mirror).
    pub const MIRROR: &str = "kubernetes.io/config.mirror";
    /// On a static pod's mirror: the UID under which kubelet and the runtime know the pod.
    pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
}

/// Values of [`annotation::REDIRECTION`].
pub mod redirection {
    /// Rules are in place and the proxy has acknowledged.
    pub const ENABLED: &str = "enabled";
    /// Rules are in place, the proxy has not acknowledged: the pod has no traffic.
    pub const PENDING: &str = "pending";
}

/// Paths and file names.
pub mod path {
    /// Run directory shared by the CNI plugin and the node agent.
    pub const CNI_RUN_DIR: &str = "/var/run/istio-cni";
    /// Socket in the run directory to which the plugin posts events.
    pub const PLUGIN_EVENT_SOCKET: &str = "pluginevent.sock";
    /// Socket in the run directory to which the plugin posts log lines.
    pub const PLUGIN_LOG_SOCKET: &str = "log.sock";
    /// Sequenced-packet socket of the hand-over to the proxy.
    pub const HANDOVER_SOCKET: &str = "/var/run/ztunnel/ztunnel.sock";
    /// Service account files in every container.
    pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
}

/// Identity and naming of the mesh.
pub mod mesh {
    /// Trust domain unless the mesh config says otherwise.
    pub const TRUST_DOMAIN: &str = "cluster.local";
    /// DNS domain of the cluster.
    pub const CLUSTER_DOMAIN: &str = "cluster.local";
    /// Cluster id unless set.
    pub const CLUSTER_ID: &str = "Kubernetes";
    /// Namespace of the mesh's own parts.
    pub const SYSTEM_NAMESPACE: &str = "istio-system";
    /// Service account of the node proxy.
    pub const PROXY_ACCOUNT: &str = "ztunnel";
    /// Audience of tokens presented to the control plane.
    pub const TOKEN_AUDIENCE: &str = "istio-ca";
    /// Scheme of an identity.
    pub const SPIFFE_SCHEME: &str = "spiffe://";
    /// Source address of the node's own probes, IPv4.
    pub const PROBE_ADDRESS_V4: std::net::Ipv4Addr = std::net::Ipv4Addr::new(169, 254, 7, 127);
    /// Source address of the node's own probes, IPv6.
    pub const PROBE_ADDRESS_V6: std::net::Ipv6Addr =
        std::net::Ipv6Addr::new(0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff);
}

/// Type URLs of discovery resources.
pub mod type_url {
    /// Workload or service.
    pub const ADDRESS: &str = "type.googleapis.com/istio.workload.Address";
    /// Bare workload.
    pub const WORKLOAD: &str = "type.googleapis.com/istio.workload.Workload";
    /// Policy.
    pub const AUTHORIZATION: &str = "type.googleapis.com/istio.security.Authorization";
}

/// Network of a cluster started by `ambit up`.
pub mod cluster {
    /// Pod addresses of the node.
    pub const POD_CIDR: &str = "10.244.0.0/24";
    /// Service addresses.
    pub const SERVICE_CIDR: &str = "10.96.0.0/16";
    /// Address of the cluster DNS service.
    pub const DNS_ADDRESS: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 96, 0, 10);
    /// Bridge that pods are attached to.
    pub const BRIDGE: &str = "ambit0";
}

const _: () = assert!(mark::PROXY & !mark::MASK == 0 && mark::CONNECTION & !mark::MASK == 0);
const _: () = assert!(mark::PROXY != mark::CONNECTION);

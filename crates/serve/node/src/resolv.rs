//! Resolver configurations: the node's own, and those of pods. Source: resolv.conf(5), kubelet's `network/dns`.

use ambit_api::core::v1::Pod;
use std::net::{IpAddr, SocketAddr};

/// Name servers a pod may have. Source: the API's `dnsConfig.nameservers`.
const SERVERS_MAX: usize = 3;
/// Search domains a pod may have. Source: the API's `dnsConfig.searches`.
const SEARCHES_MAX: usize = 32;

/// The lines of a resolver configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// Addresses of name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options.
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Reads the text of `/etc/resolv.conf`; lines it does not know are skipped, as resolvers do.
    pub fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let keyword = words.next();
            let rest = words.map(str::to_owned);
            match keyword {
                Some("nameserver") => conf.servers.extend(rest.take(1)),
                // The last of several search lines counts.
                Some("search" | "domain") => conf.searches = rest.filter(|domain| domain != ".").collect(),
                Some("options") => conf.options.extend(rest),
                _ => {}
            }
        }
        conf
    }

    /// The name servers that can be asked from anywhere on the node, with the port they listen on.
    pub fn upstreams(&self) -> Vec<SocketAddr> {
        let parsed = self.servers.iter().filter_map(|server| server.parse::<IpAddr>().ok());
        parsed.map(|ip| SocketAddr::new(ip, ambit_names::port::DNS)).collect()
    }
}

/// The cluster's part in a pod's resolver configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClusterDns<'a> {
    pub(crate) server: IpAddr,
    pub(crate) domain: &'a str,
}

/// The configuration a pod gets by its policy.
pub(crate) fn for_pod(pod: &Pod, node: &ResolvConf, cluster: ClusterDns<'_>) -> ResolvConf {
    let spec = pod.spec.as_ref();
    let policy = spec.and_then(|s| s.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let host_network = spec.and_then(|s| s.host_network).unwrap_or(false);
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut conf = match policy {
        "None" => ResolvConf::default(),
        "Default" => node.clone(),
        "ClusterFirst" if host_network => node.clone(),
        _ => {
            let domain = cluster.domain;
            let own = [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()];
            ResolvConf {
                servers: vec![cluster.server.to_string()],
                searches: own.into_iter().chain(node.searches.iter().cloned()).collect(),
                options: vec!["ndots:5".to_owned()],
            }
        }
    };
    if let Some(extra) = spec.and_then(|s| s.dns_config.as_ref()) {
        conf.servers.extend(extra.nameservers.iter().flatten().cloned());
        conf.searches.extend(extra.searches.iter().flatten().cloned());
        for option in extra.options.iter().flatten() {
            let Some(name) = &option.name else { continue };
            conf.options.retain(|o| o.split(':').next() != Some(name.as_str()));
            conf.options.push(option.value.as_ref().map_or_else(|| name.clone(), |v| format!("{name}:{v}")));
        }
    }
    unique(&mut conf.servers, SERVERS_MAX);
    unique(&mut conf.searches, SEARCHES_MAX);
    conf
}

fn unique(list: &mut Vec<String>, max: usize) {
    let mut seen = std::collections::HashSet::new();
    list.retain(|item| seen.insert(item.clone()));
    list.truncate(max);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[track_caller]
    fn check(spec: Value, servers: &[&str], searches: &[&str], options: &[&str]) {
        let node = ResolvConf::parse(
            "# comment\nnameserver 192.0.2.53\nnameserver\nsearch a.example\ndomain corp.example\noptions rotate\nfoo bar\n",
        );
        let mut spec = spec;
        spec["containers"] = json!([]);
        let pod: Pod =
            serde_json::from_value(json!({ "metadata": { "namespace": "demo" }, "spec": spec })).unwrap();
        let cluster = ClusterDns { server: "10.96.0.10".parse().unwrap(), domain: "cluster.local" };
        let conf = for_pod(&pod, &node, cluster);
        assert_eq!((conf.servers, conf.searches, conf.options), (own(servers), own(searches), own(options)));
    }

    fn own(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn policies() {
        let cluster = ["demo.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example"];
        check(json!({}), &["10.96.0.10"], &cluster, &["ndots:5"]);
        check(json!({ "dnsPolicy": "Default" }), &["192.0.2.53"], &["corp.example"], &["rotate"]);
        check(json!({ "hostNetwork": true }), &["192.0.2.53"], &["corp.example"], &["rotate"]);
        let both = json!({ "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet" });
        check(both, &["10.96.0.10"], &cluster, &["ndots:5"]);
        let own = json!({ "dnsPolicy": "None", "dnsConfig": {
            "nameservers": ["1.1.1.1", "1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"], "searches": ["x"],
            "options": [{ "name": "ndots", "value": "2" }, { "name": "edns0" }] } });
        check(own, &["1.1.1.1", "2.2.2.2", "3.3.3.3"], &["x"], &["ndots:2", "edns0"]);
        let changed = json!({ "dnsConfig": { "options": [{ "name": "ndots", "value": "1" }] } });
        check(changed, &["10.96.0.10"], &cluster, &["ndots:1"]);
    }

    #[test]
    fn upstreams_are_the_addresses_among_the_servers() {
        let conf = ResolvConf::parse("nameserver 192.0.2.1\nnameserver fe80::1%eth0\nnameserver ::1\n");
        let expected: Vec<SocketAddr> = vec!["192.0.2.1:53".parse().unwrap(), "[::1]:53".parse().unwrap()];
        assert_eq!(conf.upstreams(), expected);
    }
}

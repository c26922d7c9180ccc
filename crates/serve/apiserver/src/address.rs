//! Addresses of requests: what a URL path names.

/// What a path below `/api` or `/apis`, or one of the fixed paths, names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// `/`: the list of paths.
    Root,
    /// `/healthz`, `/livez`, `/readyz`; with the name of one check.
    Health(String),
    Version,
    Metrics,
    /// `/openapi/v3[/...]`.
    OpenApiV3(Option<String>),
    /// `/openapi/v2`.
    OpenApiV2,
    /// `/.well-known/openid-configuration`.
    OpenIdConfiguration,
    /// `/openid/v1/jwks`.
    Keys,
    /// `/api`.
    CoreVersions,
    /// `/apis`.
    Groups,
    /// `/apis/{group}`.
    Group(String),
    /// `/api/v1`, `/apis/{group}/{version}`.
    Version1 {
        group: String,
        version: String,
    },
    Resource(ResourceAddress),
    Unknown,
}

/// A collection, an object or a subresource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ResourceAddress {
    /// Empty for the core group.
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: Option<String>,
    pub(crate) plural: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
    /// What follows the subresource (proxy paths).
    pub(crate) rest: Vec<String>,
    /// The legacy form `.../watch/...`.
    pub(crate) watch: bool,
}

impl Address {
    /// Reads a path. Never fails: what is not known is [`Address::Unknown`].
    pub(crate) fn parse(path: &str) -> Self {
        let Some(parts) = path.split('/').filter(|p| !p.is_empty()).map(decode).collect::<Option<Vec<_>>>()
        else {
            return Self::Unknown;
        };
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts[..] {
            [] => Self::Root,
            ["healthz" | "livez" | "readyz"] => Self::Health(String::new()),
            ["healthz" | "livez" | "readyz", check] => Self::Health(check.to_owned()),
            ["version"] => Self::Version,
            ["metrics"] => Self::Metrics,
            ["openapi", "v2"] => Self::OpenApiV2,
            ["openapi", "v3"] => Self::OpenApiV3(None),
            ["openapi", "v3", ref rest @ ..] => Self::OpenApiV3(Some(rest.join("/"))),
            [".well-known", "openid-configuration"] => Self::OpenIdConfiguration,
            ["openid", "v1", "jwks"] => Self::Keys,
            ["api"] => Self::CoreVersions,
            ["apis"] => Self::Groups,
            ["apis", group] => Self::Group(group.to_owned()),
            ["api", version] => Self::Version1 { group: String::new(), version: version.to_owned() },
            ["apis", group, version] => {
                Self::Version1 { group: group.to_owned(), version: version.to_owned() }
            }
            ["api", version, ref rest @ ..] => resource("", version, rest),
            ["apis", group, version, ref rest @ ..] => resource(group, version, rest),
            _ => Self::Unknown,
        }
    }
}

fn resource(group: &str, version: &str, rest: &[&str]) -> Address {
    let (watch, rest) = match rest {
        ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
        rest => (false, rest),
    };
    let (namespace, rest) = match rest {
        // Only these two are subresources of a namespace; anything else there is a namespaced resource.
        ["namespaces", _, "status" | "finalize"] | ["namespaces"] | ["namespaces", _] => (None, rest),
        ["namespaces", namespace, rest @ ..] => (Some((*namespace).to_owned()), rest),
        rest => (None, rest),
    };
    let [plural, rest @ ..] = rest else { return Address::Unknown };
    let mut rest = rest.iter().map(|part| (*part).to_owned());
    Address::Resource(ResourceAddress {
        group: group.to_owned(),
        version: version.to_owned(),
        namespace,
        plural: (*plural).to_owned(),
        name: rest.next(),
        subresource: rest.next(),
        rest: rest.collect(),
        watch,
    })
}

/// Percent-decodes one path segment or query part; `None` when it is not UTF-8 afterwards.
pub(crate) fn decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let bytes = text.as_bytes();
    let (mut out, mut i) = (Vec::with_capacity(bytes.len()), 0);
    while i < bytes.len() {
        let hex = bytes.get(i + 1..i + 3).and_then(|h| std::str::from_utf8(h).ok());
        match (bytes[i], hex.and_then(|h| u8::from_str_radix(h, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                i += 3;
            }
            (byte, _) => {
                out.push(byte);
                i += 1;
            }
        }
    }
    String::from_utf8(out).ok()
}

/// The parameters of a query, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=b&c=d`. What cannot be decoded is left out.
    pub(crate) fn parse(text: &str) -> Self {
        let pair = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Some((decode(&name.replace('+', " "))?, decode(&value.replace('+', " "))?))
        };
        Self(text.split('&').filter(|part| !part.is_empty()).filter_map(pair).collect())
    }

    /// The first value of a parameter.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// All values of a parameter.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// A parameter that is on: given as `true`, `1` or without a value.
    pub(crate) fn on(&self, name: &str) -> bool {
        matches!(self.value(name), Some("true" | "1" | "True" | "TRUE" | ""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: &Address) {
        assert_eq!(&Address::parse(path), expected, "{path}");
    }

    fn at(
        group: &str,
        namespace: Option<&str>,
        plural: &str,
        name: Option<&str>,
        sub: Option<&str>,
    ) -> Address {
        Address::Resource(ResourceAddress {
            group: group.into(),
            version: "v1".into(),
            namespace: namespace.map(Into::into),
            plural: plural.into(),
            name: name.map(Into::into),
            subresource: sub.map(Into::into),
            ..ResourceAddress::default()
        })
    }

    #[test]
    fn paths_name_collections_objects_and_subresources() {
        check("/", &Address::Root);
        check("/api", &Address::CoreVersions);
        check("/apis/apps", &Address::Group("apps".into()));
        check("/apis/apps/v1/", &Address::Version1 { group: "apps".into(), version: "v1".into() });
        check("/api/v1/pods", &at("", None, "pods", None, None));
        check("/api/v1/nodes/n1", &at("", None, "nodes", Some("n1"), None));
        check("/api/v1/namespaces/a/pods/p/log", &at("", Some("a"), "pods", Some("p"), Some("log")));
        check("/api/v1/namespaces/a", &at("", None, "namespaces", Some("a"), None));
        check("/api/v1/namespaces/a/status", &at("", None, "namespaces", Some("a"), Some("status")));
        check("/api/v1/namespaces/a/pods", &at("", Some("a"), "pods", None, None));
        check(
            "/apis/apps/v1/namespaces/a/deployments/d",
            &at("apps", Some("a"), "deployments", Some("d"), None),
        );
        check("/api/v1/namespaces/a/pods/p%20q", &at("", Some("a"), "pods", Some("p q"), None));
        check("/api/v1/namespaces/a/pods/%ff", &Address::Unknown);
        check("/nothing", &Address::Unknown);
        check("/openapi/v3/apis/apps/v1", &Address::OpenApiV3(Some("apis/apps/v1".into())));
    }

    #[test]
    fn the_legacy_watch_form_names_the_same_collection() {
        let Address::Resource(found) = Address::parse("/api/v1/watch/namespaces/a/pods") else {
            panic!("a resource")
        };
        assert_eq!((found.watch, found.namespace.as_deref(), &*found.plural), (true, Some("a"), "pods"));
    }

    #[test]
    fn queries_are_decoded() {
        let query = Query::parse("labelSelector=a%3Db%2Cc&watch&x=1&x=2&bad=%ff");
        assert_eq!(query.value("labelSelector"), Some("a=b,c"));
        assert!(query.on("watch") && !query.on("follow"));
        assert_eq!(query.values("x").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(query.value("bad"), None);
    }
}

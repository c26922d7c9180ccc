//! The form of a workload's identity: `spiffe://<trust domain>/ns/<namespace>/sa/<service account>`.

use crate::mesh::SPIFFE_SCHEME;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest identity that is read, in bytes. Source: the SPIFFE ID specification, section 2.3.
pub const IDENTITY_BYTES_MAX: usize = 2048;

/// Identity of a workload. Cheap to clone; ordered by its text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    trust_domain: Arc<str>,
    namespace: Arc<str>,
    service_account: Arc<str>,
}

impl Identity {
    /// The identity of a service account.
    ///
    /// # Errors
    /// A part is empty or holds a character that would end it.
    pub fn new(
        trust_domain: &str,
        namespace: &str,
        service_account: &str,
    ) -> Result<Self, ParseIdentityError> {
        let whole = || format!("{SPIFFE_SCHEME}{trust_domain}/ns/{namespace}/sa/{service_account}");
        let part_ok =
            |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        if ![trust_domain, namespace, service_account].into_iter().all(part_ok) {
            return Err(ParseIdentityError(whole()));
        }
        Ok(Self {
            trust_domain: trust_domain.into(),
            namespace: namespace.into(),
            service_account: service_account.into(),
        })
    }

    /// Trust domain.
    pub fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    /// Namespace of the service account.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Name of the service account.
    pub fn service_account(&self) -> &str {
        &self.service_account
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trust_domain, namespace, service_account } = self;
        write!(f, "{SPIFFE_SCHEME}{trust_domain}/ns/{namespace}/sa/{service_account}")
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Identity {
    type Err = ParseIdentityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseIdentityError(text.chars().take(IDENTITY_BYTES_MAX).collect());
        if text.len() > IDENTITY_BYTES_MAX {
            return Err(fail());
        }
        let rest = text.strip_prefix(SPIFFE_SCHEME).ok_or_else(fail)?;
        let parts: Vec<&str> = rest.split('/').collect();
        let [trust_domain, "ns", namespace, "sa", service_account] = parts[..] else { return Err(fail()) };
        Self::new(trust_domain, namespace, service_account)
    }
}

/// A text that is not an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseIdentityError(String);

impl fmt::Display for ParseIdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not spiffe://<trust domain>/ns/<namespace>/sa/<service account>", self.0)
    }
}

impl std::error::Error for ParseIdentityError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<(&str, &str, &str)>) {
        let read = text.parse::<Identity>().ok();
        let parts = read.as_ref().map(|id| (id.trust_domain(), id.namespace(), id.service_account()));
        assert_eq!(parts, expected);
        if let Some(identity) = &read {
            assert_eq!(identity.to_string(), text);
        }
    }

    #[test]
    fn reads_what_it_writes_and_refuses_the_rest() {
        check("spiffe://cluster.local/ns/shop/sa/cart", Some(("cluster.local", "shop", "cart")));
        check("spiffe://td/ns/a/sa/b/", None);
        check("spiffe://td/ns//sa/b", None);
        check("spiffe:///ns/a/sa/b", None);
        check("spiffe://td/sa/a/ns/b", None);
        check("https://td/ns/a/sa/b", None);
        check("spiffe://td/ns/a b/sa/c", None);
        check("spiffe://td/ns/\u{e4}/sa/c", None);
        check("", None);
        check(&format!("spiffe://td/ns/{}/sa/c", "n".repeat(IDENTITY_BYTES_MAX)), None);
    }
}

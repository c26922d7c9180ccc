//! The name of a DaemonSet on the command line.

use std::str::FromStr;

/// Name of a DaemonSet, `NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetName {
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
}

impl FromStr for SetName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("it must be NAMESPACE/NAME".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_two_parts() {
        assert!("a/b".parse::<SetName>().is_ok());
        for text in ["", "a", "/b", "a/", "a/b/c"] {
            assert!(text.parse::<SetName>().is_err(), "{text}");
        }
    }
}

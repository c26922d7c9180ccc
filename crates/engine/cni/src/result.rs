//! Results of plugins: addresses, and the conversion between versions of the specification.

use crate::conf::Version;
use crate::event::Ip;
use serde_json::{Map, Value, json};

/// Why a result cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResultError {
    /// It is not of the documented shape.
    #[error("prevResult is not a result of version {version}: {problem}")]
    Malformed {
        /// Its version.
        version: Version,
        /// What is wrong.
        problem: String,
    },
    /// Versions before 0.3.0 have another shape.
    #[error("a result of version {from} cannot be turned into one of version {to}")]
    NotConvertible {
        /// Its version.
        from: Version,
        /// The wanted version.
        to: Version,
    },
}

/// The version a result says it has, or the configuration's.
fn version_of(result: &Value, configured: Version) -> Version {
    result.get("cniVersion").and_then(Value::as_str).and_then(Version::parse).unwrap_or(configured)
}

/// The addresses of a result.
///
/// # Errors
/// An address that cannot be read.
pub fn addresses(result: &Value, configured: Version) -> Result<Vec<Ip>, ResultError> {
    let version = version_of(result, configured);
    let malformed = |problem: String| ResultError::Malformed { version, problem };
    let entries: Vec<(&Value, &str)> = if version < Version::V0_3_0 {
        ["ip4", "ip6"].iter().filter_map(|key| result.get(key).map(|entry| (entry, "ip"))).collect()
    } else {
        match result.get("ips") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(ips)) => ips.iter().map(|entry| (entry, "address")).collect(),
            Some(other) => return Err(malformed(format!("ips is {other}, not a list"))),
        }
    };
    entries
        .into_iter()
        .map(|(entry, key)| {
            let text = entry.get(key).and_then(Value::as_str).unwrap_or_default();
            let net = text.parse().map_err(|_| malformed(format!("{key} {text:?} is not ADDRESS/LENGTH")))?;
            let gateway = match entry.get("gateway").and_then(Value::as_str) {
                None | Some("") => None,
                Some(text) => Some(text.parse().map_err(|_| malformed(format!("gateway {text:?}")))?),
            };
            Ok(Ip::new(net, entry.get("interface").and_then(Value::as_i64), gateway))
        })
        .collect()
}

/// The result to print: the previous one in the configuration's version, or an empty one.
///
/// # Errors
/// The previous result has a shape that the version does not know.
pub fn pass_through(previous: Option<&Value>, to: Version) -> Result<Value, ResultError> {
    let Some(previous) = previous.filter(|value| !value.is_null()) else {
        return Ok(json!({ "cniVersion": to.text() }));
    };
    let from = version_of(previous, to);
    let Value::Object(object) = previous else {
        return Err(ResultError::Malformed { version: from, problem: "it is not an object".into() });
    };
    if (from < Version::V0_3_0) != (to < Version::V0_3_0) {
        return Err(ResultError::NotConvertible { from, to });
    }
    let mut result = object.clone();
    result.insert("cniVersion".into(), to.text().into());
    if let Some(Value::Array(ips)) = result.get_mut("ips") {
        ips.iter_mut().filter_map(Value::as_object_mut).for_each(|ip| convert_ip(ip, to));
    }
    Ok(Value::Object(result))
}

/// Addresses name their family before 1.0.0 and not after.
fn convert_ip(ip: &mut Map<String, Value>, to: Version) {
    if to >= Version::V1_0_0 {
        ip.remove("version");
        return;
    }
    let address = ip.get("address").and_then(Value::as_str).unwrap_or_default();
    let version = if address.contains(':') { "6" } else { "4" };
    ip.entry("version").or_insert_with(|| version.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(previous: Value, to: Version, expected: Value) {
        assert_eq!(pass_through(Some(&previous), to).unwrap(), expected);
    }

    #[test]
    fn results_are_passed_through_in_the_configuration_s_version() {
        let ips = json!([{"address": "10.0.0.5/24", "interface": 0}, {"address": "fd00::5/64"}]);
        let old = json!([
            {"address": "10.0.0.5/24", "interface": 0, "version": "4"},
            {"address": "fd00::5/64", "version": "6"},
        ]);
        check(
            json!({"cniVersion": "1.0.0", "ips": ips, "dns": {}}),
            Version::V0_4_0,
            json!({"cniVersion": "0.4.0", "ips": old, "dns": {}}),
        );
        check(
            json!({"cniVersion": "0.3.1", "ips": old}),
            Version::V1_1_0,
            json!({"cniVersion": "1.1.0", "ips": ips}),
        );
        check(json!({"interfaces": []}), Version::V1_0_0, json!({"cniVersion": "1.0.0", "interfaces": []}));
        let ip4 = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.5/24"}});
        check(ip4.clone(), Version::V0_2_0, ip4);
    }

    #[test]
    fn no_previous_result_gives_an_empty_one() {
        let empty = json!({"cniVersion": "1.0.0"});
        assert_eq!(pass_through(None, Version::V1_0_0).unwrap(), empty);
        assert_eq!(pass_through(Some(&Value::Null), Version::V1_0_0).unwrap(), empty);
    }

    #[test]
    fn impossible_conversions_and_shapes_are_refused() {
        let old = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.5/24"}});
        let error = pass_through(Some(&old), Version::V1_0_0).unwrap_err();
        assert_eq!(error.to_string(), "a result of version 0.2.0 cannot be turned into one of version 1.0.0");
        assert!(pass_through(Some(&json!([])), Version::V1_0_0).is_err());
        for ips in [json!({}), json!([{}]), json!([{"address": "10.0.0.5"}]), json!([3])] {
            assert!(addresses(&json!({ "ips": ips }), Version::V1_0_0).is_err(), "{ips}");
        }
    }

    #[test]
    fn addresses_of_both_shapes_are_found() {
        let found = |result: Value| -> Vec<String> {
            let ips = addresses(&result, Version::V0_2_0).unwrap();
            ips.iter().map(|ip| ip.address().to_string()).collect()
        };
        let old = json!({"ip4": {"ip": "10.0.0.5/24", "gateway": "10.0.0.1"}, "ip6": {"ip": "fd00::5/64"}});
        assert_eq!(found(old), ["10.0.0.5", "fd00::5"]);
        assert_eq!(found(json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.6/24"}]})), ["10.0.0.6"]);
        assert!(found(json!({})).is_empty());
    }
}

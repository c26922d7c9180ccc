//! Which form of an answer the client wants: whole objects, metadata or tables; JSON or YAML.

use crate::status::{Answer, Failure};

/// What an answer consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Objects as they are.
    Whole,
    /// `PartialObjectMetadata` of meta.k8s.io, in this version.
    Metadata(&'static str),
    /// `Table` of meta.k8s.io, in this version.
    Table(&'static str),
}

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
    /// The envelope that Kubernetes puts around objects of built-in kinds.
    Protobuf,
}

/// The aggregated discovery document a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discovery {
    Legacy,
    /// `APIGroupDiscoveryList` of apidiscovery.k8s.io, in this version.
    Aggregated(&'static str),
}

/// One entry of an Accept header.
struct Range<'a> {
    media_type: &'a str,
    params: Vec<(&'a str, &'a str)>,
    quality: f32,
}

impl Range<'_> {
    fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(n, _)| *n == name).map(|(_, v)| *v).unwrap_or_default()
    }

    fn is_json(&self) -> bool {
        matches!(self.media_type, "application/json" | "application/*" | "*/*")
    }
}

/// The entries of an Accept header, best first; a missing header accepts anything.
fn ranges(accept: &str) -> Vec<Range<'_>> {
    let accept = if accept.trim().is_empty() { "*/*" } else { accept };
    let mut ranges: Vec<Range<'_>> = accept.split(',').map(range).filter(|r| r.quality > 0.0).collect();
    // Stable: equal qualities keep the client's order.
    ranges.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    ranges
}

fn range(text: &str) -> Range<'_> {
    let mut parts = text.split(';').map(str::trim);
    let media_type = parts.next().unwrap_or_default();
    let params: Vec<_> = parts
        .filter_map(|p| p.split_once('='))
        .map(|(n, v)| (n.trim(), v.trim().trim_matches('"')))
        .collect();
    let quality = params.iter().find(|(n, _)| *n == "q").map_or(1.0, |(_, v)| v.parse().unwrap_or(0.0));
    Range { media_type, params, quality }
}

/// The media type of [`Encoding::Protobuf`].
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The form and encoding of objects that a client asks for; `has_protobuf`: whether the kind has that form.
pub(crate) fn objects(accept: &str, has_protobuf: bool) -> Answer<(Form, Encoding)> {
    for range in ranges(accept) {
        let encoding = match range.media_type {
            _ if range.is_json() => Encoding::Json,
            "application/yaml" => Encoding::Yaml,
            PROTOBUF if has_protobuf && range.param("as").is_empty() => Encoding::Protobuf,
            _ => continue,
        };
        let version = match range.param("v") {
            "v1" | "" => "v1",
            "v1beta1" => "v1beta1",
            _ => continue,
        };
        match (range.param("as"), range.param("g")) {
            ("", _) => return Ok((Form::Whole, encoding)),
            ("Table", "meta.k8s.io") => return Ok((Form::Table(version), encoding)),
            ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io") => {
                return Ok((Form::Metadata(version), encoding));
            }
            _ => {}
        }
    }
    let protobuf = if has_protobuf { ", application/vnd.kubernetes.protobuf" } else { "" };
    Err(Failure::not_acceptable(&format!("application/json, application/yaml{protobuf}")))
}

/// The encoding of an answer that only has one form.
pub(crate) fn encoding(accept: &str) -> Answer<Encoding> {
    let plain = |range: &Range<'_>| range.param("as").is_empty();
    ranges(accept)
        .iter()
        .filter(|range| plain(range))
        .find_map(|range| match range.media_type {
            _ if range.is_json() => Some(Encoding::Json),
            "application/yaml" => Some(Encoding::Yaml),
            _ => None,
        })
        .ok_or_else(|| Failure::not_acceptable("application/json, application/yaml"))
}

/// The discovery document that a client asks for at `/api` and `/apis`.
pub(crate) fn discovery(accept: &str) -> Discovery {
    for range in ranges(accept).iter().filter(|range| range.is_json()) {
        match (range.param("as"), range.param("g"), range.param("v")) {
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => return Discovery::Aggregated("v2"),
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1") => {
                return Discovery::Aggregated("v2beta1");
            }
            ("", _, _) => return Discovery::Legacy,
            _ => {}
        }
    }
    Discovery::Legacy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(accept: &str, expected: Option<(Form, Encoding)>) {
        assert_eq!(objects(accept, false).ok(), expected, "{accept}");
    }

    #[test]
    fn the_first_form_that_is_served_wins() {
        check("", Some((Form::Whole, Encoding::Json)));
        check("*/*", Some((Form::Whole, Encoding::Json)));
        check("application/yaml", Some((Form::Whole, Encoding::Yaml)));
        check("application/vnd.kubernetes.protobuf", None);
        check("application/vnd.kubernetes.protobuf,application/json", Some((Form::Whole, Encoding::Json)));
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        check(kubectl, Some((Form::Table("v1"), Encoding::Json)));
        let metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        check(metadata, Some((Form::Metadata("v1"), Encoding::Json)));
        let of_built_in = |accept: &str| objects(accept, true).ok();
        assert_eq!(of_built_in(PROTOBUF), Some((Form::Whole, Encoding::Protobuf)));
        let metadata = format!("{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json");
        assert_eq!(of_built_in(&metadata), Some((Form::Whole, Encoding::Json)));
        check("application/json;q=0.1, application/yaml;q=0.9", Some((Form::Whole, Encoding::Yaml)));
        check("application/json;as=Nonsense;g=x;v=v1", None);
    }

    #[test]
    fn discovery_follows_the_order_of_the_client() {
        let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                       application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert_eq!(discovery(kubectl), Discovery::Aggregated("v2"));
        let old =
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert_eq!(discovery(old), Discovery::Aggregated("v2beta1"));
        assert_eq!(discovery("application/json"), Discovery::Legacy);
        assert_eq!(discovery(""), Discovery::Legacy);
    }
}

//! The ConfigMap in which the last good sources are kept: its form, and whether somebody else changed it.

use super::{KEYS, MeshConfigSources};
use ambit_api::core::v1::ConfigMap;
use ambit_api::k8s_openapi::ByteString;
use ambit_mesh::config::{CONFIG_BYTES_MAX, Content, Document};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use kube::api::{ObjectMeta, Patch};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use twox_hash::XxHash64;

/// Key of what people read of the state.
pub(super) const STATUS: &str = "status";
/// Key of the sources as text.
const SOURCES: &str = "sources";
/// Key of the sources where their text would be too long: as a gzip archive.
const ARCHIVE: &str = "sources.gz";
/// Keys of the checksums of both. They find slips, not malice.
const STATUS_CHECKSUM: &str = "status.checksum";
const SOURCES_CHECKSUM: &str = "sources.checksum";
/// Longest text of sources that is kept as it is, so that people can read it. Source: a ConfigMap holds 1 MiB.
const TEXT_BYTES_MAX: usize = 512 << 10;
/// Longest archive: what a ConfigMap holds, less room for the status.
const ARCHIVE_BYTES_MAX: usize = (1 << 20) - (64 << 10);
/// Longest text that is unpacked: two sources of the largest size, escaped.
const UNPACKED_BYTES_MAX: usize = 4 * CONFIG_BYTES_MAX;

/// What our ConfigMap holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Kept {
    pub(super) sources: Sources,
    /// Whether the status is as one of our replicas wrote it.
    pub(super) is_status_intact: bool,
}

/// The sources that our ConfigMap holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Sources {
    None,
    /// The last good ones.
    Good(Vec<Document>),
    /// What none of our replicas wrote.
    Edited,
}

/// What is to stand in our ConfigMap; keys without a value are not to be there.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Contents {
    data: BTreeMap<&'static str, Option<String>>,
    binary: BTreeMap<&'static str, Option<ByteString>>,
}

/// The sources cannot be kept.
#[derive(Debug, thiserror::Error)]
#[error(
    "the sources are too long to be kept: packed they have {bytes} bytes, {ARCHIVE_BYTES_MAX} at most fit"
)]
pub(super) struct TooLong {
    bytes: usize,
}

/// Reads our ConfigMap.
pub(super) fn read(map: &ConfigMap) -> Kept {
    let text = |key: &str| map.data.as_ref().and_then(|data| data.get(key)).map(String::as_str);
    let is_status_intact = match (text(STATUS), text(STATUS_CHECKSUM)) {
        (Some(status), Some(checksum)) => checksum_of(status) == checksum,
        _ => false,
    };
    let archive = map.binary_data.as_ref().and_then(|data| data.get(ARCHIVE));
    let kept = match (text(SOURCES), archive, text(SOURCES_CHECKSUM)) {
        (None, None, None) => return Kept { sources: Sources::None, is_status_intact },
        (Some(sources), None, Some(checksum)) => Some((Cow::Borrowed(sources), checksum)),
        (None, Some(archive), Some(checksum)) => {
            unpacked(&archive.0).map(|text| (Cow::Owned(text), checksum))
        }
        _ => None,
    };
    let good = kept.filter(|(text, checksum)| checksum_of(text) == *checksum);
    let sources = good.and_then(|(text, _)| documents(&text)).map_or(Sources::Edited, Sources::Good);
    Kept { sources, is_status_intact }
}

/// The contents with this status and these sources.
///
/// # Errors
/// The sources do not fit into a ConfigMap.
pub(super) fn contents(status: &str, sources: &[Document]) -> Result<Contents, TooLong> {
    let text = text_of(sources);
    let mut contents = without_sources(status);
    contents.data.insert(SOURCES_CHECKSUM, Some(checksum_of(&text)));
    if text.len() <= TEXT_BYTES_MAX {
        contents.data.insert(SOURCES, Some(text));
        return Ok(contents);
    }
    let archive = packed(&text);
    if archive.len() > ARCHIVE_BYTES_MAX {
        return Err(TooLong { bytes: archive.len() });
    }
    contents.binary.insert(ARCHIVE, Some(ByteString(archive)));
    Ok(contents)
}

/// The contents with this status and no sources.
pub(super) fn without_sources(status: &str) -> Contents {
    let mut contents = status_alone(status);
    contents.data.extend([(SOURCES, None), (SOURCES_CHECKSUM, None)]);
    contents.binary.insert(ARCHIVE, None);
    contents
}

/// The contents with this status, and with the sources that are there.
pub(super) fn status_alone(status: &str) -> Contents {
    let data = [(STATUS, Some(status.to_owned())), (STATUS_CHECKSUM, Some(checksum_of(status)))];
    Contents { data: BTreeMap::from(data), ..Contents::default() }
}

impl Contents {
    /// Whether the ConfigMap is like that already.
    pub(super) fn are_in(&self, map: &ConfigMap) -> bool {
        fn held<T: PartialEq>(
            held: Option<&BTreeMap<String, T>>,
            wanted: &BTreeMap<&str, Option<T>>,
        ) -> bool {
            wanted.iter().all(|(key, value)| held.and_then(|held| held.get(*key)) == value.as_ref())
        }
        held(map.data.as_ref(), &self.data) && held(map.binary_data.as_ref(), &self.binary)
    }

    /// A new ConfigMap with it.
    pub(super) fn to_map(&self, name: &str) -> ConfigMap {
        fn present<T: Clone>(values: &BTreeMap<&str, Option<T>>) -> Option<BTreeMap<String, T>> {
            let present = |(key, value): (&&str, &Option<T>)| Some(((*key).to_owned(), value.clone()?));
            Some(values.iter().filter_map(present).collect())
        }
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let (data, binary_data) = (present(&self.data), present(&self.binary));
        ConfigMap { metadata, data, binary_data, ..ConfigMap::default() }
    }

    /// A change that makes the ConfigMap like that, if it is still as it was read.
    pub(super) fn to_patch(&self, read: &ConfigMap) -> Patch<Value> {
        let version = &read.metadata.resource_version;
        Patch::Merge(
            json!({"metadata": {"resourceVersion": version}, "data": self.data, "binaryData": self.binary}),
        )
    }
}

/// The last good sources that our ConfigMap holds; none if it holds none, or if somebody else changed it.
pub fn kept_documents(map: &ConfigMap) -> Option<Vec<Document>> {
    match read(map).sources {
        Sources::Good(documents) => Some(documents),
        Sources::None | Sources::Edited => None,
    }
}

impl MeshConfigSources {
    /// Name of the ConfigMap with the last good sources.
    pub fn kept_name(&self) -> String {
        self.with_revision(super::KEPT)
    }
}

fn documents(text: &str) -> Option<Vec<Document>> {
    let list: Vec<(String, String, String)> = serde_json::from_str(text).ok()?;
    let document = |(source, key, text): (String, String, String)| {
        let (_, content) = KEYS.into_iter().find(|(known, _)| *known == key)?;
        Some(Document { source, content, text: text.into_bytes() })
    };
    list.into_iter().map(document).collect()
}

fn text_of(documents: &[Document]) -> String {
    let key =
        |content: Content| KEYS.into_iter().find(|(_, known)| *known == content).map_or("", |(key, _)| key);
    // A source that is not UTF-8 has a fault, and is never kept.
    let text = |one| String::from_utf8_lossy(one).into_owned();
    let list: Vec<(&str, &str, String)> =
        documents.iter().map(|one| (one.source.as_str(), key(one.content), text(&one.text))).collect();
    json!(list).to_string()
}

fn checksum_of(text: &str) -> String {
    format!("{:016x}", XxHash64::oneshot(0, text.as_bytes()))
}

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    let _ = encoder.write_all(text.as_bytes());
    encoder.finish().unwrap_or_default()
}

fn unpacked(archive: &[u8]) -> Option<String> {
    let limit = u64::try_from(UNPACKED_BYTES_MAX).ok()?;
    let mut text = String::new();
    // One byte more shows that there is more than is read.
    GzDecoder::new(archive).take(limit + 1).read_to_string(&mut text).ok()?;
    (text.len() <= UNPACKED_BYTES_MAX).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        Document { source: "ns/istio".into(), content: Content::Mesh, text: text.as_bytes().to_vec() }
    }

    fn map_of(contents: &Contents) -> ConfigMap {
        contents.to_map("kept")
    }

    fn good() -> ConfigMap {
        map_of(&contents("fine\n", &[document("a: b")]).unwrap())
    }

    fn long() -> ConfigMap {
        map_of(&contents("fine\n", &[document(&"x".repeat(TEXT_BYTES_MAX))]).unwrap())
    }

    #[test]
    fn what_is_written_is_read_whatever_its_length() {
        let long = "x: y\n".repeat(TEXT_BYTES_MAX);
        for sources in [vec![], vec![document("a: b"), document("c: \"d\"\n")], vec![document(&long)]] {
            let contents = contents("fine\n", &sources).unwrap();
            let map = map_of(&contents);
            assert_eq!(read(&map), Kept { sources: Sources::Good(sources), is_status_intact: true });
            assert!(contents.are_in(&map));
        }
    }

    #[test]
    fn what_somebody_else_wrote_is_not_used() {
        #[track_caller]
        fn check(map: &ConfigMap, edit: impl Fn(&mut ConfigMap), is_status_intact: bool) {
            let mut edited = map.clone();
            edit(&mut edited);
            let kept = read(&edited);
            assert_eq!(kept.is_status_intact, is_status_intact);
            assert_eq!(kept.sources == Sources::Edited, is_status_intact, "{edited:?}");
        }
        fn data(map: &mut ConfigMap) -> &mut std::collections::BTreeMap<String, String> {
            map.data.as_mut().unwrap()
        }
        fn archive(map: &mut ConfigMap) -> &mut Vec<u8> {
            &mut map.binary_data.as_mut().unwrap().get_mut(ARCHIVE).unwrap().0
        }
        for (key, is_status_intact) in
            [(STATUS, false), (STATUS_CHECKSUM, false), (SOURCES, true), (SOURCES_CHECKSUM, true)]
        {
            check(&good(), |map| drop(data(map).insert(key.into(), "[]".into())), is_status_intact);
            check(&good(), |map| drop(data(map).remove(key)), is_status_intact);
        }
        check(&long(), |map| map.binary_data = None, true);
        check(&long(), |map| archive(map).truncate(20), true);
        check(&long(), |map| *archive(map) = packed(&"x".repeat(UNPACKED_BYTES_MAX + 1)), true);
        check(&good(), |map| map.binary_data = long().binary_data, true);
    }

    #[test]
    fn a_status_alone_leaves_the_sources_and_their_checksum() {
        let status = status_alone("bad\n");
        assert!(!status.are_in(&good()));
        let Patch::Merge(patch) = status.to_patch(&good()) else { panic!("another patch") };
        assert_eq!(patch["data"], json!({"status": "bad\n", "status.checksum": checksum_of("bad\n")}));
        let none = Kept { sources: Sources::None, is_status_intact: true };
        assert_eq!(read(&map_of(&status)), none);
        let without = without_sources("bad\n");
        assert_eq!(read(&map_of(&without)), none);
        assert!(without.are_in(&map_of(&status)) && !without.are_in(&good()) && !without.are_in(&long()));
    }

    #[test]
    fn what_does_not_fit_is_told() {
        // Random enough not to be packed well.
        let mut state = 1_u64;
        let noise: String = (0..(2 << 20))
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                char::from(b'!' + u8::try_from((state >> 33) % 90).unwrap())
            })
            .collect();
        let error = contents("fine\n", &[document(&noise)]).unwrap_err();
        assert!(error.to_string().contains("too long to be kept"), "{error}");
    }
}

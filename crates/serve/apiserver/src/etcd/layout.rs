//! Names of keys.

use ambit_store::Key;

/// The keys under a prefix: objects at `{prefix}objects/{collection}//{namespace}/{name}`, the newest write's marker at
/// `{prefix}head`.
#[derive(Debug)]
pub(super) struct Layout {
    prefix: String,
}

impl Layout {
    /// `prefix` with or without a slash at its end.
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: format!("{}/", prefix.trim_end_matches('/')) }
    }

    /// The key of an object.
    pub(super) fn object(&self, key: &Key) -> String {
        format!("{}objects/{}//{}/{}", self.prefix, key.collection, key.namespace, key.name)
    }

    /// The key that every write writes.
    pub(super) fn marker(&self) -> String {
        format!("{}head", self.prefix)
    }

    /// First and end (not in it) of the keys of a collection's objects.
    pub(super) fn collection(&self, collection: &str) -> (Vec<u8>, Vec<u8>) {
        (
            format!("{}objects/{collection}//", self.prefix).into(),
            format!("{}objects/{collection}/0", self.prefix).into(),
        )
    }

    /// First and end (not in it) of all keys of objects.
    pub(super) fn objects(&self) -> (Vec<u8>, Vec<u8>) {
        (format!("{}objects/", self.prefix).into(), format!("{}objects0", self.prefix).into())
    }

    /// First and end (not in it) of all keys, the marker among them.
    pub(super) fn all(&self) -> (Vec<u8>, Vec<u8>) {
        let mut end = self.prefix.clone().into_bytes();
        // The prefix ends in '/', the next byte of which is '0'.
        end.pop();
        end.push(b'0');
        (self.prefix.clone().into(), end)
    }

    /// The object that a key names; `None` for any other key.
    pub(super) fn parse(&self, key: &[u8]) -> Option<Key> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.strip_prefix("objects/")?;
        let (collection, place) = rest.split_once("//")?;
        let (namespace, name) = place.split_once('/')?;
        Some(Key::new(collection, namespace, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_to_the_objects_they_were_made_for() {
        for prefix in ["/ambit", "/ambit/", "", "a/b"] {
            let layout = Layout::new(prefix);
            for key in [
                Key::new("pods", "default", "web-0"),
                Key::new("apps/deployments", "a", "b"),
                Key::new("namespaces", "", "default"),
                Key::new("rbac.authorization.k8s.io/clusterroles", "", "system:node"),
            ] {
                let text = layout.object(&key);
                assert_eq!(layout.parse(text.as_bytes()), Some(key.clone()), "{text}");
                for (first, end) in [layout.all(), layout.objects(), layout.collection(&key.collection)] {
                    assert!(first[..] <= *text.as_bytes() && *text.as_bytes() < end[..]);
                }
                let (first, end) = layout.collection("deployments");
                assert!(*text.as_bytes() < first[..] || end[..] <= *text.as_bytes(), "of another collection");
            }
            let marker = layout.marker();
            assert_eq!(layout.parse(marker.as_bytes()), None);
            assert!(layout.all().0[..] <= *marker.as_bytes() && *marker.as_bytes() < layout.all().1[..]);
        }
    }
}

//! Between the version of a kind that is stored and the versions that are served.

use serde_json::{Map, Value};

use crate::catalog::ResourceType;

/// Fields of Events that have other names in events.k8s.io/v1 than in the core group, where they are stored.
/// Source: Kubernetes `pkg/apis/events/v1/conversion.go`.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("reportingController", "reportingComponent"),
];

impl ResourceType {
    /// Turns an object of this type into its stored form.
    #[must_use]
    pub fn to_stored(&self, object: Value) -> Value {
        let of = self.stored_as.api_version();
        self.convert(object, &of, |(served, stored)| (served, stored))
    }

    /// Turns a stored object into one of this type.
    #[must_use]
    pub fn from_stored(&self, object: Value) -> Value {
        self.convert(object, &self.api_version(), |(served, stored)| (stored, served))
    }

    fn convert(
        &self,
        object: Value,
        api_version: &str,
        direction: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
    ) -> Value {
        if self.stored_as == self.group_version_kind() && object["apiVersion"] == api_version {
            return object;
        }
        let Value::Object(mut map) = object else { return object };
        map.insert("apiVersion".to_owned(), api_version.into());
        if self.group == "events.k8s.io" {
            EVENT_FIELDS.into_iter().map(direction).for_each(|(from, to)| rename(&mut map, from, to));
        }
        Value::Object(map)
    }
}

fn rename(map: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = map.remove(from) {
        map.insert(to.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::Catalog;

    #[test]
    fn events_are_stored_in_the_core_group() {
        let catalog = Catalog::builtin();
        let events = catalog.resource("events.k8s.io", "v1", "events").unwrap();
        let served = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "regarding": {"name": "p"}, "note": "n",
            "reportingController": "c", "reportingInstance": "i", "deprecatedCount": 3,
        });
        let stored = events.to_stored(served.clone());
        let expected = json!({
            "apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "p"}, "message": "n",
            "reportingComponent": "c", "reportingInstance": "i", "count": 3,
        });
        assert_eq!(stored, expected);
        assert_eq!(events.from_stored(stored.clone()), served);
        let core = catalog.resource("", "v1", "events").unwrap();
        assert_eq!(core.from_stored(stored.clone()), stored);
    }
}

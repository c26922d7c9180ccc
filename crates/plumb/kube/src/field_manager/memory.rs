//! What was written last, so that a view that lags behind causes no second write, and ownership need not be read again.

use crate::informer::ObjectKey;
use ambit_runtime::Clock;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Objects remembered. One that is forgotten costs a read when it is written next.
const OBJECTS_MAX: usize = 50_000;
/// Forms of ownership that may be kept though no object has them any more.
const SHAPES_KEPT: usize = 64;
/// Longest time for which a view is believed to lag behind a write. After it, a version from before the write means that
/// the write is lost, as after a restore of the server's data.
const LAG_MAX: Duration = Duration::from_secs(30);

/// One object, or its status.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// Path of the collection.
    pub(super) path: Arc<str>,
    pub(super) subresource: Option<&'static str>,
    pub(super) key: ObjectKey,
}

/// What is known of an object after a write, or after a look that found nothing to write.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) uid: Option<String>,
    /// Hash of what was wanted.
    pub(super) wanted: u64,
    /// Version of the object that was looked at.
    pub(super) before: Option<String>,
    /// Version after the write.
    pub(super) after: Option<String>,
    /// When.
    pub(super) at: Instant,
    /// Our fields, as the server tells them.
    pub(super) owned: Option<Arc<str>>,
}

impl Known {
    /// What an object shows that is as wanted now, and that was at the version `before`.
    pub(super) fn of(live: &Value, owned: Option<&Value>, wanted: u64, before: Option<String>) -> Self {
        let (uid, after) = (text(live, "uid"), text(live, "resourceVersion"));
        let owned = owned.map(|owned| owned.to_string().into());
        Self { uid, wanted, before, after, at: Clock.now(), owned }
    }
}

/// A field of an object's metadata.
pub(super) fn text(object: &Value, field: &str) -> Option<String> {
    object["metadata"][field].as_str().map(str::to_owned)
}

/// What is known of all objects.
#[derive(Debug, Default)]
pub(super) struct Memory {
    places: HashMap<Place, Known>,
    /// What is owned, as text, once for all objects of which the same is owned: most of one kind.
    shapes: HashSet<Arc<str>>,
}

impl Memory {
    pub(super) fn keep(&mut self, place: Place, mut known: Known) {
        if self.places.len() >= OBJECTS_MAX
            && !self.places.contains_key(&place)
            && let Some(any) = self.places.keys().next().cloned()
        {
            self.places.remove(&any);
        }
        known.owned = known.owned.map(|owned| self.shared(owned));
        self.places.insert(place, known);
    }

    fn shared(&mut self, shape: Arc<str>) -> Arc<str> {
        if let Some(known) = self.shapes.get(&shape) {
            return known.clone();
        }
        // There are never more than twice as many as are in use, and some room.
        if self.shapes.len() >= SHAPES_KEPT + 2 * self.places.len() {
            self.shapes.retain(|shape| Arc::strong_count(shape) > 1);
        }
        self.shapes.insert(shape.clone());
        shape
    }

    pub(super) fn forget(&mut self, place: &Place) {
        self.places.remove(place);
    }

    /// Whether this version of the object is known to be as wanted, or to be from before a write that made it so.
    pub(super) fn is_settled(
        &self,
        place: &Place,
        (uid, version): (Option<&str>, Option<&str>),
        wanted: u64,
        now: Instant,
    ) -> bool {
        let Some(known) = self.of(place, uid).filter(|known| known.wanted == wanted) else { return false };
        let is = |one: &Option<String>| version.is_some() && one.as_deref() == version;
        let lags = now.saturating_duration_since(known.at) < LAG_MAX;
        is(&known.after) || (lags && is(&known.before))
    }

    /// Our fields of the object; none if they are not known.
    pub(super) fn owned(&self, place: &Place, uid: Option<&str>) -> Option<Arc<str>> {
        self.of(place, uid)?.owned.clone()
    }

    fn of(&self, place: &Place, uid: Option<&str>) -> Option<&Known> {
        self.places.get(place).filter(|known| known.uid.as_deref() == uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> Place {
        Place { path: "/p".into(), subresource: None, key: ObjectKey::cluster(name) }
    }

    fn known(at: Instant) -> Known {
        let text = |text: &str| Some(text.to_owned());
        Known { uid: text("u"), wanted: 7, before: text("1"), after: text("2"), at, owned: None }
    }

    #[test]
    fn a_view_may_lag_but_not_for_ever() {
        let (mut memory, now) = (Memory::default(), Clock.now());
        memory.keep(place("a"), known(now));
        let settled = |uid, version, wanted, after| {
            memory.is_settled(&place("a"), (Some(uid), version), wanted, now + Duration::from_secs(after))
        };
        assert!(settled("u", Some("2"), 7, 0) && settled("u", Some("2"), 7, 1000));
        assert!(settled("u", Some("1"), 7, 0) && !settled("u", Some("1"), 7, 1000));
        assert!(!settled("u", Some("3"), 7, 0), "somebody else wrote");
        assert!(!settled("u", Some("2"), 8, 0), "something else is wanted");
        assert!(!settled("v", Some("2"), 7, 0), "it is another object");
        assert!(!settled("u", None, 7, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let (mut memory, now) = (Memory::default(), Clock.now());
        for number in 0..OBJECTS_MAX + 10 {
            let owned = Some("{}".into());
            memory.keep(place(&number.to_string()), Known { owned, ..known(now) });
        }
        assert_eq!((memory.places.len(), memory.shapes.len()), (OBJECTS_MAX, 1));
        assert!(memory.owned(&place(&(OBJECTS_MAX + 9).to_string()), Some("u")).is_some());
    }

    #[test]
    fn shapes_that_no_object_has_any_more_go() {
        let (mut memory, now) = (Memory::default(), Clock.now());
        for number in 0..1000 {
            let owned = Some(number.to_string().into());
            memory.keep(place("a"), Known { owned, ..known(now) });
        }
        assert!(memory.shapes.len() <= SHAPES_KEPT + 2, "{}", memory.shapes.len());
        assert_eq!(memory.owned(&place("a"), Some("u")).as_deref(), Some("999"));
    }
}

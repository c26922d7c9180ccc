//! Informers that show a part of another one's objects, chosen by a predicate that can change at run time.

use crate::informer::{Change, Informer, ObjectKey, Writer};
use kube::Resource;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

type Keep<K> = Box<dyn Fn(&K) -> bool + Send + Sync>;

/// Chooses what a selected informer shows. Clones share one choice.
pub struct Selection<K> {
    inner: Arc<Inner<K>>,
}

struct Inner<K> {
    all: Informer<K>,
    shown: Writer<K>,
    /// Held while objects come and go, so that a new choice and a change of an object cannot overtake each other.
    keep: Mutex<Keep<K>>,
}

impl<K> Clone for Selection<K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<K> fmt::Debug for Selection<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selection").field("of", &self.inner.all).finish_non_exhaustive()
    }
}

impl<K: Resource + Send + Sync + 'static> Informer<K> {
    /// An informer of those of these objects that `keep` takes, on the same watch, and the handle to choose others. It has
    /// synced when this one has.
    pub fn select(&self, keep: impl Fn(&K) -> bool + Send + Sync + 'static) -> (Self, Selection<K>) {
        let part = self.beside();
        let inner =
            Inner { all: self.clone(), shown: Writer::passing(&part), keep: Mutex::new(Box::new(keep)) };
        let selection = Selection { inner: Arc::new(inner) };
        let follower = selection.clone();
        self.on_change(move |change: &Change<K>| follower.follow(change));
        (part, selection)
    }
}

impl<K: Resource + Send + Sync + 'static> Selection<K> {
    /// Chooses anew: objects that the new choice takes appear, others disappear, as changes of the selected informer.
    /// Returns once its handlers have been told; they must not call this.
    pub fn choose(&self, keep: impl Fn(&K) -> bool + Send + Sync + 'static) {
        let mut held = self.inner.keep.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Box::new(keep);
        self.look_again(&held);
    }

    /// Applies the choice anew, for one that depends on something that has changed.
    pub fn refresh(&self) {
        let held = self.inner.keep.lock().unwrap_or_else(PoisonError::into_inner);
        self.look_again(&held);
    }

    fn look_again(&self, keep: &Keep<K>) {
        for object in self.inner.all.list() {
            if keep(&object) {
                self.inner.shown.show(object);
            } else {
                self.inner.shown.remove(&ObjectKey::of(object.as_ref()));
            }
        }
    }

    fn follow(&self, change: &Change<K>) {
        let keep = self.inner.keep.lock().unwrap_or_else(PoisonError::into_inner);
        match change.new.as_ref().filter(|object| keep(object)) {
            Some(object) => self.inner.shown.show(object.clone()),
            // Of a replacement that a new choice has shown already, only the old half is told here.
            None => self.inner.shown.hide(change.latest()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambit_api::core::v1::ConfigMap;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn object(uid: &str, revision: &str) -> ConfigMap {
        let map =
            json!({"metadata": {"namespace": "n", "name": "a", "uid": uid, "resourceVersion": revision}});
        serde_json::from_value(map).expect("a ConfigMap")
    }

    #[test]
    fn a_new_choice_between_the_halves_of_a_replacement_doubles_nothing() {
        let all = Informer::<ConfigMap>::new("/p".into());
        let slot: Arc<Mutex<Option<Selection<ConfigMap>>>> = Arc::default();
        let early = slot.clone();
        // Stands for another task that refreshes while a replacement is being told.
        all.on_change(move |_| {
            if let Some(selection) = &*early.lock().unwrap() {
                selection.refresh();
            }
        });
        let (part, selection) = all.select(|_| true);
        *slot.lock().unwrap() = Some(selection);
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let tell = told.clone();
        part.on_change(move |change: &Change<ConfigMap>| {
            let sign = if change.old.is_none() { '+' } else { '-' };
            tell.lock().unwrap().push(format!("{sign}{}", change.latest().metadata.uid.as_deref().unwrap()));
        });
        let writer = Writer::of(&all);
        writer.apply(object("x", "1"));
        writer.apply(object("y", "2"));
        assert_eq!(*told.lock().unwrap(), ["+x", "-x", "+y"]);
        // A list that repeats what is known leaves the selection alone, too.
        writer.replace(vec![object("y", "2")], BTreeMap::new());
        assert_eq!(told.lock().unwrap().len(), 3);
        writer.replace(Vec::new(), BTreeMap::new());
        assert_eq!(told.lock().unwrap()[3..], ["-y"]);
    }
}

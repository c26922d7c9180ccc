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
        let inner = Inner { all: self.clone(), shown: Writer::of(&part), keep: Mutex::new(Box::new(keep)) };
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
            None => self.inner.shown.remove(&ObjectKey::of(change.latest().as_ref())),
        }
    }
}

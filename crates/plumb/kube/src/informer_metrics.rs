//! Metrics of informers, read from their views when they are asked for.

use crate::informer::Synced;
use crate::roll::{Listed, Roll};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Objects named per informer: a kind whose schema changed may have thousands that cannot be read.
const NAMED_MAX: usize = 10;

/// Metrics of all informers of a role. Clones share them.
#[derive(Clone, Default)]
pub struct InformerMetrics {
    of: Arc<Mutex<Vec<Weak<Roll>>>>,
}

impl fmt::Debug for InformerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InformerMetrics").finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct Name {
    path: String,
    selector: String,
}

#[derive(Debug, Clone, EncodeLabelSet)]
struct Unreadable {
    path: String,
    object: String,
}

/// Figures of the informers of one path and selector; a role may have several, in registries of their own.
#[derive(Debug, Default)]
struct Figures {
    objects: i64,
    not_synced: i64,
    in_trouble: i64,
    unreadable: i64,
}

impl InformerMetrics {
    /// Makes them readable.
    pub fn register(&self, registry: &mut Registry) {
        registry.sub_registry_with_prefix("informer").register_collector(Box::new(self.clone()));
    }

    pub(crate) fn watch(&self, roll: Weak<Roll>) {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        of.retain(|one| one.strong_count() > 0);
        of.push(roll);
    }

    fn read(&self) -> (BTreeMap<Name, Figures>, BTreeSet<(String, String)>) {
        let (mut figures, mut named) = (BTreeMap::<Name, Figures>::new(), BTreeSet::new());
        let of = self.of.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for roll in of.iter().filter_map(Weak::upgrade) {
            roll.each(|Listed { synced, selector, count }| {
                let name = Name { path: synced.path().to_owned(), selector: selector.clone() };
                figures.entry(name).or_default().add(synced, count());
                for (key, _) in synced.unreadable().into_iter().take(NAMED_MAX) {
                    named.insert((synced.path().to_owned(), key.to_string()));
                }
            });
        }
        (figures, named)
    }
}

impl Figures {
    fn add(&mut self, synced: &Synced, objects: usize) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.objects += number(objects);
        self.not_synced += i64::from(!synced.is_synced());
        self.in_trouble += i64::from(synced.trouble().is_some());
        self.unreadable += number(synced.unreadable().len());
    }
}

impl Collector for InformerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let (figures, named) = self.read();
        type Of = fn(&Figures) -> i64;
        let all: [(&str, &str, Of); 4] = [
            ("objects", "Objects that informers show", |of| of.objects),
            ("not_synced", "Informers that have not seen their first state", |of| of.not_synced),
            ("in_trouble", "Informers whose last attempt to read failed", |of| of.in_trouble),
            ("unreadable", "Objects that cannot be decoded", |of| of.unreadable),
        ];
        for (name, help, of) in all {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, figures) in &figures {
                ConstGauge::new(of(figures)).encode(family.encode_family(labels)?)?;
            }
        }
        let help = "1 for each of the first objects that cannot be decoded, by name";
        let mut family = encoder.encode_descriptor("unreadable_object", help, None, MetricType::Gauge)?;
        for (path, object) in named {
            ConstGauge::new(1_i64).encode(family.encode_family(&Unreadable { path, object })?)?;
        }
        Ok(())
    }
}

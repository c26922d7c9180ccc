//! Which occurrences become events of their own, which only count, and which are dropped: pure, told the time by its
//! caller. Source: client-go `tools/record/events_cache.go`.

use super::Occurrence;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Events that one object may cause at once. Source: client-go's `defaultSpamBurst`.
const SPAM_BURST: f64 = 25.0;
/// Time in which an object may cause one more. Source: client-go's `defaultSpamQPS`.
const SPAM_REFILL: Duration = Duration::from_secs(300);
/// Events that differ in their message alone, after which they count as one. Source: client-go's
/// `defaultAggregateMaxEvents`.
const SIMILAR_MAX: usize = 10;
/// Silence after which similar events are told apart again. Source: client-go's
/// `defaultAggregateIntervalInSeconds`.
const SIMILAR_INTERVAL: Duration = Duration::from_secs(600);
/// Entries remembered of each sort; the least recently used ones are forgotten. Source: client-go's `maxLruCacheEntries`.
const REMEMBERED_MAX: usize = 4096;
/// Put before the message of combined events, as the field does: people search for it.
const COMBINED: &str = "(combined from similar events): ";

/// What an occurrence becomes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Verdict {
    /// An event object of its own.
    New(Occurrence),
    /// One more of the event of that name.
    Again {
        /// Name of the event object.
        name: String,
        /// So many by now.
        count: i32,
        /// What to write; its message may differ from the one before when similar events are combined.
        what: Occurrence,
    },
    /// The object causes too many.
    Spam,
}

/// Remembers what was recorded.
pub(super) struct Correlator {
    similar: Recent<Occurrence, Similar>,
    written: Recent<Occurrence, Written>,
    allowances: Recent<super::Subject, Allowance>,
}

/// Messages of events that are alike but for their message.
struct Similar {
    messages: HashSet<String>,
    last: Instant,
}

struct Written {
    name: String,
    count: i32,
}

struct Allowance {
    tokens: f64,
    filled: Instant,
}

impl Correlator {
    pub(super) fn new() -> Self {
        Self { similar: Recent::new(), written: Recent::new(), allowances: Recent::new() }
    }

    /// What an occurrence becomes. [`Correlator::written`] tells of the outcome of the write.
    pub(super) fn judge(&mut self, mut what: Occurrence, now: Instant) -> Verdict {
        let group = Occurrence { message: String::new(), ..what.clone() };
        let similar = self.similar.entry(&group, || Similar { messages: HashSet::new(), last: now });
        if now.saturating_duration_since(similar.last) > SIMILAR_INTERVAL {
            similar.messages.clear();
        }
        similar.last = now;
        // The set is bounded: past the limit nobody needs to know which messages there were.
        if similar.messages.len() < SIMILAR_MAX {
            similar.messages.insert(what.message.clone());
        }
        let combined = similar.messages.len() >= SIMILAR_MAX;
        if combined {
            what.message = format!("{COMBINED}{}", what.message);
        }
        let key = if combined { group } else { what.clone() };
        let allowance = self.allowances.entry(&what.object, || Allowance { tokens: SPAM_BURST, filled: now });
        let gained =
            now.saturating_duration_since(allowance.filled).as_secs_f64() / SPAM_REFILL.as_secs_f64();
        allowance.tokens = (allowance.tokens + gained).min(SPAM_BURST);
        allowance.filled = now;
        let allowed = allowance.tokens >= 1.0;
        let known = self.written.get(&key);
        if let Some(known) = known {
            // Counted even when it is not written: the next one that is tells the true number.
            known.count = known.count.saturating_add(1);
        }
        if !allowed {
            return Verdict::Spam;
        }
        allowance.tokens -= 1.0;
        match self.written.get(&key) {
            Some(known) => Verdict::Again { name: known.name.clone(), count: known.count, what },
            None => Verdict::New(what),
        }
    }

    /// An event object was written under that name.
    pub(super) fn written(&mut self, what: &Occurrence, name: String, count: i32) {
        self.written.insert(key_of(what), Written { name, count });
    }
}

/// The key under which repetitions are counted: combined events differ in their messages.
fn key_of(what: &Occurrence) -> Occurrence {
    let message = if what.message.starts_with(COMBINED) { String::new() } else { what.message.clone() };
    Occurrence { message, ..what.clone() }
}

/// A bounded map that forgets its less recently used half when it is full.
struct Recent<K, V> {
    entries: HashMap<K, (u64, V)>,
    uses: u64,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    fn new() -> Self {
        Self { entries: HashMap::new(), uses: 0 }
    }

    fn get(&mut self, key: &K) -> Option<&mut V> {
        self.uses += 1;
        let (used, value) = self.entries.get_mut(key)?;
        *used = self.uses;
        Some(value)
    }

    fn insert(&mut self, key: K, value: V) {
        self.make_room();
        self.uses += 1;
        self.entries.insert(key, (self.uses, value));
    }

    fn entry(&mut self, key: &K, value: impl FnOnce() -> V) -> &mut V {
        if !self.entries.contains_key(key) {
            self.make_room();
        }
        self.uses += 1;
        let uses = self.uses;
        let entry = self.entries.entry(key.clone()).or_insert_with(|| (uses, value()));
        entry.0 = uses;
        &mut entry.1
    }

    fn make_room(&mut self) {
        if self.entries.len() < REMEMBERED_MAX {
            return;
        }
        let mut uses: Vec<u64> = self.entries.values().map(|(used, _)| *used).collect();
        uses.sort_unstable();
        let limit = uses[uses.len() / 2];
        self.entries.retain(|_, (used, _)| *used > limit);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EventType, Subject};
    use super::*;
    use ambit_runtime::Clock;

    fn occurrence(object: &str, message: &str) -> Occurrence {
        Occurrence {
            object: Subject {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: Some("default".to_owned()),
                name: Some(object.to_owned()),
                uid: None,
                field_path: None,
            },
            kind: EventType::Normal,
            reason: "Tested".to_owned(),
            message: message.to_owned(),
        }
    }

    /// Judges, and writes what is to be written.
    fn record(correlator: &mut Correlator, object: &str, message: &str, now: Instant) -> Verdict {
        let verdict = correlator.judge(occurrence(object, message), now);
        match &verdict {
            Verdict::New(what) => correlator.written(what, format!("{object}.{message}"), 1),
            Verdict::Again { name, count, what } => correlator.written(what, name.clone(), *count),
            Verdict::Spam => {}
        }
        verdict
    }

    #[test]
    fn a_repetition_counts_and_another_object_or_message_is_another_event() {
        let (mut correlator, now) = (Correlator::new(), Clock.now());
        assert!(matches!(record(&mut correlator, "a", "m", now), Verdict::New(_)));
        for count in 2..5 {
            let again = Verdict::Again { name: "a.m".to_owned(), count, what: occurrence("a", "m") };
            assert_eq!(record(&mut correlator, "a", "m", now), again);
        }
        assert!(matches!(record(&mut correlator, "a", "n", now), Verdict::New(_)));
        assert!(matches!(record(&mut correlator, "b", "m", now), Verdict::New(_)));
    }

    #[test]
    fn an_object_gets_a_burst_and_then_one_event_in_five_minutes_and_lost_ones_are_counted() {
        let (mut correlator, now) = (Correlator::new(), Clock.now());
        let written = (0..100).filter(|_| record(&mut correlator, "a", "m", now) != Verdict::Spam).count();
        assert_eq!(written, 25);
        assert!(matches!(record(&mut correlator, "b", "m", now), Verdict::New(_)), "others are not affected");
        assert_eq!(record(&mut correlator, "a", "m", now + SPAM_REFILL / 2), Verdict::Spam);
        let later = now + SPAM_REFILL;
        let Verdict::Again { count, .. } = record(&mut correlator, "a", "m", later) else {
            panic!("one is allowed again")
        };
        assert_eq!(count, 102);
        assert_eq!(record(&mut correlator, "a", "m", later), Verdict::Spam);
    }

    #[test]
    fn events_that_differ_in_their_message_are_combined_until_there_is_silence() {
        let (mut correlator, now) = (Correlator::new(), Clock.now());
        for message in 0..9 {
            assert!(matches!(record(&mut correlator, "a", &message.to_string(), now), Verdict::New(_)));
        }
        let Verdict::New(what) = record(&mut correlator, "a", "9", now) else {
            panic!("the combined one is new")
        };
        assert_eq!(what.message, "(combined from similar events): 9");
        let Verdict::Again { count, what, .. } = record(&mut correlator, "a", "10", now) else {
            panic!("combined events are counted")
        };
        assert_eq!((count, what.message.as_str()), (2, "(combined from similar events): 10"));
        let later = now + SIMILAR_INTERVAL + Duration::from_secs(1);
        let Verdict::New(what) = record(&mut correlator, "a", "11", later) else { panic!("it stands alone") };
        assert_eq!(what.message, "11");
    }

    #[test]
    fn memory_is_bounded() {
        let (mut correlator, now) = (Correlator::new(), Clock.now());
        for object in 0..3 * REMEMBERED_MAX {
            record(&mut correlator, &object.to_string(), "m", now);
        }
        let sizes = [
            correlator.similar.entries.len(),
            correlator.written.entries.len(),
            correlator.allowances.entries.len(),
        ];
        assert!(sizes.iter().all(|size| *size <= REMEMBERED_MAX), "{sizes:?}");
    }
}

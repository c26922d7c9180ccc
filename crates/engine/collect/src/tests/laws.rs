//! The laws that every kind of collection keeps, on random histories. A new kind is one more line in [`KINDS`].

use crate::{Batch, Collection, Dump, Graph, Input, Kind};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A value at which every function of the suite panics.
const POISON: u8 = 13;

#[derive(Debug, Clone, PartialEq)]
struct Thing {
    value: u8,
    labels: Vec<u8>,
    selector: Option<Vec<u8>>,
}

impl Thing {
    /// What functions read of it.
    fn shown(&self) -> String {
        assert!(self.value != POISON, "poisoned");
        format!("{}{:?}{:?}", self.value, self.labels, self.selector)
    }
}

#[derive(Clone, Copy)]
struct Inputs {
    left: Input<u8, Thing>,
    right: Input<u8, Thing>,
}

type Build = fn(&mut Graph, Inputs) -> Collection<u8, String>;

fn show(graph: &mut Graph, of: Collection<u8, Thing>) -> Collection<u8, String> {
    graph.map("shown", of, |_, _, thing| Some(thing.shown()))
}

fn keys<'a>(found: impl IntoIterator<Item = (&'a u8, &'a Thing)>) -> String {
    found.into_iter().map(|(key, thing)| format!("{key}={};", thing.value)).collect()
}

/// Every kind of collection, and every way to read one.
const KINDS: &[(&str, Build)] = &[
    ("input", |graph, i| show(graph, i.left.collection())),
    ("fixed", |graph, i| {
        let fixed = graph.fixed("fixed", (0..3_u8).map(|key| (key, Arc::new(key * 2))));
        graph.map("of-fixed", i.left.collection(), move |reads, key, thing| {
            Some(format!("{} {:?}", thing.shown(), reads.get(fixed, key)))
        })
    }),
    ("by key", |graph, i| {
        let right = i.right.collection();
        graph.map("by-key", i.left.collection(), move |reads, key, thing| {
            Some(format!("{} {:?}", thing.shown(), reads.get(right, &(key + 1)).map(|t| t.value)))
        })
    }),
    ("by index", |graph, i| {
        let index = graph.index(i.right.collection(), |_, thing: &Thing| {
            thing.shown();
            thing.labels.clone()
        });
        graph.map("by-index", i.left.collection(), move |reads, key, _| Some(keys(reads.find(index, key))))
    }),
    ("by labels", |graph, i| {
        let index = graph.label_index(i.right.collection(), |_, thing: &Thing| {
            thing.shown();
            thing.labels.clone()
        });
        graph.map("by-labels", i.left.collection(), move |reads, _, thing| {
            thing.selector.as_ref().map(|selector| keys(reads.select(index, selector)))
        })
    }),
    ("by selectors", |graph, i| {
        let index = graph.selector_index(i.right.collection(), |_, thing: &Thing| {
            thing.shown();
            thing.selector.clone()
        });
        graph.map("by-selectors", i.left.collection(), move |reads, _, thing| {
            Some(keys(reads.selecting(index, &thing.labels)))
        })
    }),
    ("all", |graph, i| {
        let right = i.right.collection();
        graph.map("all", i.left.collection(), move |reads, _, thing| {
            Some(thing.shown() + &keys(reads.all(right)))
        })
    }),
    ("many", |graph, i| {
        graph.flat_map("many", i.left.collection(), |_, key, thing| {
            thing.labels.iter().map(|label| (*label, format!("{key} {}", thing.shown()))).collect()
        })
    }),
    ("join", |graph, i| {
        graph.join("join", i.left.collection(), i.right.collection(), |_, a, b| Some(a.shown() + &b.shown()))
    }),
    ("left join", |graph, i| {
        graph.left_join("left", i.left.collection(), i.right.collection(), |_, a, b| {
            Some(a.shown() + &b.map(Thing::shown).unwrap_or_default())
        })
    }),
    ("full join", |graph, i| {
        graph.full_join("full", i.left.collection(), i.right.collection(), |_, a, b| {
            Some(format!("{:?}{:?}", a.map(Thing::shown), b.map(Thing::shown)))
        })
    }),
    ("merge", |graph, i| {
        let merged = graph.merge("merged", &[i.left.collection(), i.right.collection()]);
        show(graph, merged)
    }),
    ("merge with", |graph, i| {
        let sources = [i.left.collection(), i.right.collection()];
        let merged = graph.merge_with("merged", &sources, |_, all| Thing {
            labels: all.iter().flat_map(|thing| thing.shown().into_bytes()).collect(),
            ..Thing::clone(all[0])
        });
        show(graph, merged)
    }),
    ("union", |graph, i| {
        let union = graph.union("union");
        let scope = graph.open("part", &[union.place()]);
        let loud = graph.within(&scope, |graph| {
            graph.map("loud", i.right.collection(), |_, _, thing| {
                thing.shown();
                Some(Thing { value: thing.value + 100, ..thing.clone() })
            })
        });
        graph.connect(union, loud, 1);
        graph.map("shown", union.collection(), |_, _, thing| Some(thing.shown()))
    }),
    ("two steps", |graph, i| {
        let totals = graph.flat_map("totals", i.right.collection(), |_, key, thing| {
            thing.labels.iter().map(|label| (*label, format!("{key}{}", thing.shown()))).collect()
        });
        graph.map("second", i.left.collection(), move |reads, key, thing| {
            reads.get(totals, key).map(|total| thing.shown() + total)
        })
    }),
];

struct World {
    graph: Graph,
    inputs: Inputs,
    output: Collection<u8, String>,
}

type Step = (bool, u8, Option<Thing>);

impl World {
    fn new(build: Build) -> Self {
        let mut graph = Graph::new();
        let inputs = Inputs { left: graph.input("left"), right: graph.input("right") };
        let output = build(&mut graph, inputs);
        Self { graph, inputs, output }
    }

    fn batch(&self, steps: &[Step]) -> Batch {
        let mut batch = Batch::new();
        for (left, key, thing) in steps {
            let to = if *left { self.inputs.left } else { self.inputs.right };
            match thing {
                Some(thing) => batch.set(to, *key, Arc::new(thing.clone())),
                None => batch.remove(to, *key),
            }
        }
        batch
    }

    fn apply(&mut self, steps: &[Step]) -> Vec<String> {
        let batch = self.batch(steps);
        let commit = self.graph.apply(batch);
        commit
            .faults()
            .iter()
            .map(|fault| format!("{}/{}: {}", fault.collection, fault.key, fault.message))
            .collect()
    }

    fn state(&self) -> BTreeMap<u8, String> {
        self.graph.iter(self.output).map(|(key, value)| (*key, String::clone(value))).collect()
    }
}

fn thing() -> impl Strategy<Value = Thing> {
    let labels = || prop::collection::vec(0..3_u8, 0..3);
    (0..4_u8, labels(), prop::option::of(labels())).prop_map(|(value, labels, selector)| Thing {
        value,
        labels,
        selector,
    })
}

fn step() -> impl Strategy<Value = Step> {
    (any::<bool>(), 0..4_u8, prop::option::weighted(0.7, thing()))
}

fn history() -> impl Strategy<Value = Vec<Vec<Step>>> {
    prop::collection::vec(prop::collection::vec(step(), 0..6), 0..10)
}

/// The last write to each key.
fn outcome(history: &[Vec<Step>]) -> Vec<Step> {
    let mut last = BTreeMap::new();
    for (left, key, thing) in history.iter().flatten() {
        last.insert((*left, *key), thing.clone());
    }
    last.into_iter().map(|((left, key), thing)| (left, key, thing)).collect()
}

fn removals() -> Vec<Step> {
    (0..4).flat_map(|key| [(true, key, None), (false, key, None)]).collect()
}

/// Entries that a graph holds, by collection; what is written once stays.
fn held(dump: &Dump) -> Vec<(&'static str, [usize; 3], Vec<usize>)> {
    let moving = dump.collections.iter().filter(|one| one.kind != Kind::Fixed);
    moving.map(|one| (one.name, [one.len, one.reads, one.bookkeeping], one.indexes.clone())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// INV-05: incremental equals from scratch.
    #[test]
    fn inv_05_incremental_equals_from_scratch(history in history()) {
        for (name, build) in KINDS {
            let (mut incremental, mut scratch) = (World::new(*build), World::new(*build));
            for batch in &history {
                incremental.apply(batch);
            }
            scratch.apply(&outcome(&history));
            prop_assert_eq!(incremental.state(), scratch.state(), "{}", name);
        }
    }

    /// A handler that is registered at any time rebuilds the state from what it is told, and is told differences only.
    #[test]
    fn handlers_are_told_everything_and_only_differences(before in history(), after in history()) {
        for (name, build) in KINDS {
            let mut world = World::new(*build);
            for batch in &before {
                world.apply(batch);
            }
            let mirror = Arc::new(std::sync::Mutex::new(BTreeMap::<u8, String>::new()));
            let told = mirror.clone();
            world.graph.on_change(world.output, move |change| {
                let mut mirror = told.lock().unwrap();
                assert_ne!(change.before, change.after);
                assert_eq!(mirror.get(change.key), change.before.map(AsRef::as_ref));
                match change.after {
                    Some(value) => mirror.insert(*change.key, String::clone(value)),
                    None => mirror.remove(change.key),
                };
            });
            prop_assert_eq!(&*mirror.lock().unwrap(), &world.state(), "{} at first", name);
            for batch in &after {
                prop_assert_eq!(world.apply(batch), Vec::<String>::new(), "{}", name);
            }
            prop_assert_eq!(&*mirror.lock().unwrap(), &world.state(), "{} at last", name);
        }
    }

    /// The order of writes to different keys within a batch does not matter, nor how they are cut into batches.
    #[test]
    fn order_within_a_batch_does_not_matter(history in history(), last in history()) {
        let last = outcome(&last);
        let reversed: Vec<Step> = last.iter().rev().cloned().collect();
        for (name, build) in KINDS {
            let mut worlds = [World::new(*build), World::new(*build), World::new(*build)];
            for (at, world) in worlds.iter_mut().enumerate() {
                for batch in &history {
                    world.apply(batch);
                }
                match at {
                    0 => drop(world.apply(&last)),
                    1 => drop(world.apply(&reversed)),
                    _ => last.iter().for_each(|step| drop(world.apply(std::slice::from_ref(step)))),
                }
            }
            let [a, b, c] = worlds.map(|world| world.state());
            prop_assert_eq!(&a, &b, "{}", name);
            prop_assert_eq!(&a, &c, "{} one by one", name);
        }
    }

    /// When the inputs are gone, nothing is left of them, whatever happened in between.
    #[test]
    fn nothing_is_left_after_churn(history in history()) {
        for (name, build) in KINDS {
            let mut world = World::new(*build);
            world.apply(&[]);
            let baseline = held(&world.graph.dump());
            for batch in &history {
                world.apply(batch);
            }
            world.apply(&removals());
            prop_assert_eq!(held(&world.graph.dump()), baseline, "{}", name);
        }
    }

    /// A panic is contained and reported with its key; once its cause is gone, all is as if it had never been.
    #[test]
    fn a_panic_is_contained_and_heals(history in history(), left in any::<bool>(), key in 0..4_u8, others in history()) {
        let poisoned = Thing { value: POISON, labels: vec![0, 1], selector: Some(vec![0]) };
        for (name, build) in KINDS {
            let mut world = World::new(*build);
            for batch in &history {
                world.apply(batch);
            }
            let mut faults = world.apply(&[(left, key, Some(poisoned.clone()))]);
            for batch in &others {
                let rest: Vec<Step> = batch.iter().filter(|s| (s.0, s.1) != (left, key)).cloned().collect();
                faults.extend(world.apply(&rest));
            }
            prop_assert!(faults.iter().all(|fault| fault.ends_with(": poisoned")), "{}: {:?}", name, faults);
            let mut all = history.clone();
            all.extend(others.iter().cloned());
            all.push(vec![(left, key, None)]);
            prop_assert_eq!(world.apply(&[(left, key, None)]), Vec::<String>::new(), "{}", name);
            let mut scratch = World::new(*build);
            scratch.apply(&outcome(&all));
            prop_assert_eq!(world.state(), scratch.state(), "{}", name);
        }
    }

    /// A scope that is closed takes with it all that it brought: collections, reads, indexes and handlers.
    #[test]
    fn a_closed_scope_leaves_nothing(history in history(), more in history()) {
        for (name, build) in KINDS {
            let mut world = World::new(|graph, i| show(graph, i.left.collection()));
            let union = world.graph.union::<u8, String>("union");
            world.graph.connect(union, world.output, 1);
            for batch in &history {
                world.apply(batch);
            }
            let mirror = Arc::new(std::sync::Mutex::new(0));
            let counted = mirror.clone();
            let scope = world.graph.open("part", &[union.place()]);
            let inputs = world.inputs;
            let part = world.graph.within(&scope, |graph| {
                // A kind that opens scopes of its own is no part of a scope.
                let part = if *name == "union" { show(graph, inputs.right.collection()) } else { build(graph, inputs) };
                graph.on_change(part, move |_| *counted.lock().unwrap() += 1);
                part
            });
            world.graph.connect(union, part, 0);
            for batch in &more {
                world.apply(batch);
            }
            world.graph.close(scope);
            let told = *mirror.lock().unwrap();
            world.apply(&[(true, 0, None), (false, 0, None)]);
            prop_assert_eq!(*mirror.lock().unwrap(), told, "{}: a handler outlived its scope", name);
            let seen: BTreeMap<u8, String> =
                world.graph.iter(union.collection()).map(|(key, value)| (*key, String::clone(value))).collect();
            prop_assert_eq!(seen, world.state(), "{}", name);
            let mut plain = World::new(|graph, i| show(graph, i.left.collection()));
            let union = plain.graph.union::<u8, String>("union");
            plain.graph.connect(union, plain.output, 1);
            let mut all = history.clone();
            all.extend(more.iter().cloned());
            all.push(vec![(true, 0, None), (false, 0, None)]);
            plain.apply(&outcome(&all));
            prop_assert_eq!(held(&world.graph.dump()), held(&plain.graph.dump()), "{}", name);
        }
    }
}

#[test]
fn a_poisoned_value_is_reported_by_every_function() {
    let poisoned = Thing { value: POISON, labels: vec![0], selector: Some(vec![0]) };
    for (name, build) in KINDS {
        let mut world = World::new(*build);
        let faults = world.apply(&[(true, 0, Some(poisoned.clone())), (false, 0, Some(poisoned.clone()))]);
        // Nothing of it is looked at when there is nothing else to combine it with.
        if *name != "two steps" {
            assert!(faults.iter().any(|fault| fault.contains("/0: poisoned")), "{name}: {faults:?}");
        }
    }
}

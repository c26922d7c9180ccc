//! The laws of derived collections, on hand-made cases and on random histories.

use crate::{Batch, Collection, Commit, Graph, Input};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A graph with every kind of collection: people in rooms, rooms with colours.
struct House {
    graph: Graph,
    people: Input<u8, Person>,
    rooms: Input<u8, String>,
    cards: Collection<u8, String>,
    census: Collection<u8, Vec<u8>>,
    nicknames: Collection<String, u8>,
    all: Collection<u8, String>,
}

#[derive(Debug, Clone, PartialEq)]
struct Person {
    room: u8,
    names: Vec<String>,
}

impl House {
    fn new() -> Self {
        let mut graph = Graph::new();
        let people: Input<u8, Person> = graph.input("people");
        let rooms: Input<u8, String> = graph.input("rooms");
        let by_room = graph.index(people.collection(), |_, person: &Person| vec![person.room]);
        // Reads by key.
        let cards = graph.map("cards", people.collection(), move |reads, id, person| {
            assert!(person.room != 99, "no such room");
            let colour = reads.get(rooms.collection(), &person.room)?;
            Some(format!("{id} in {colour}"))
        });
        // Reads by index.
        let census = graph.map("census", rooms.collection(), move |reads, room, _| {
            Some(reads.find(by_room, room).map(|(id, _)| *id).collect::<Vec<_>>())
        });
        // Many outputs with keys that collide.
        let nicknames = graph.flat_map("nicknames", people.collection(), |_, id, person| {
            person.names.iter().map(|name| (name.clone(), *id)).collect()
        });
        // A second step, which reads derived collections and joins a merge.
        let summary = graph.map("summary", census, move |reads, _, ids| {
            let cards: Vec<_> = ids.iter().filter_map(|id| reads.get(cards, id).cloned()).collect();
            (!cards.is_empty()).then(|| cards.join(","))
        });
        let all = graph.merge("all", &[summary, cards]);
        Self { graph, people, rooms, cards, census, nicknames, all }
    }

    fn apply(&mut self, steps: &[Step]) -> Commit<'_> {
        let mut batch = Batch::new();
        for step in steps {
            match step.clone() {
                Step::Person(id, Some(person)) => batch.set(self.people, id, Arc::new(person)),
                Step::Person(id, None) => batch.remove(self.people, id),
                Step::Room(id, Some(colour)) => batch.set(self.rooms, id, Arc::new(colour)),
                Step::Room(id, None) => batch.remove(self.rooms, id),
            }
        }
        self.graph.apply(batch)
    }

    fn state(&self) -> [String; 4] {
        [
            format!("{:?}", self.graph.iter(self.cards).collect::<Vec<_>>()),
            format!("{:?}", self.graph.iter(self.census).collect::<Vec<_>>()),
            format!("{:?}", self.graph.iter(self.nicknames).collect::<Vec<_>>()),
            format!("{:?}", self.graph.iter(self.all).collect::<Vec<_>>()),
        ]
    }
}

#[derive(Debug, Clone)]
enum Step {
    Person(u8, Option<Person>),
    Room(u8, Option<String>),
}

fn person(room: u8, names: &[&str]) -> Option<Person> {
    Some(Person { room, names: names.iter().map(|n| (*n).to_owned()).collect() })
}

fn colour(name: &str) -> Option<String> {
    Some(name.to_owned())
}

fn step() -> impl Strategy<Value = Step> {
    let names = prop::collection::vec("[ab]", 0..3);
    prop_oneof![
        (0..5_u8, prop::option::weighted(0.7, (0..3_u8, names)))
            .prop_map(|(id, p)| Step::Person(id, p.map(|(room, names)| Person { room, names }))),
        (0..3_u8, prop::option::weighted(0.7, "[rg]")).prop_map(|(id, c)| Step::Room(id, c)),
    ]
}

fn history() -> impl Strategy<Value = Vec<Vec<Step>>> {
    prop::collection::vec(prop::collection::vec(step(), 0..6), 0..12)
}

proptest! {
    /// INV-05: incremental equals from scratch.
    #[test]
    fn inv_05_incremental_equals_from_scratch(history in history()) {
        let mut incremental = House::new();
        let (mut people, mut rooms) = (BTreeMap::new(), BTreeMap::new());
        for batch in &history {
            incremental.apply(batch);
            for step in batch {
                match step.clone() {
                    Step::Person(id, person) => { people.insert(id, person); }
                    Step::Room(id, colour) => { rooms.insert(id, colour); }
                }
            }
        }
        let rest: Vec<Step> = rooms.into_iter().map(|(id, c)| Step::Room(id, c))
            .chain(people.into_iter().map(|(id, p)| Step::Person(id, p))).collect();
        let mut scratch = House::new();
        scratch.apply(&rest);
        prop_assert_eq!(incremental.state(), scratch.state());
    }

    /// Every event is a difference, and the events alone rebuild the state.
    #[test]
    fn events_are_differences_and_complete(history in history()) {
        let mut house = House::new();
        let mut mirror: BTreeMap<u8, String> = BTreeMap::new();
        let all = house.all;
        for batch in &history {
            for change in house.apply(batch).changes(all) {
                prop_assert_ne!(change.before, change.after);
                prop_assert_eq!(mirror.get(change.key), change.before.map(AsRef::as_ref));
                match change.after {
                    Some(value) => mirror.insert(*change.key, String::clone(value)),
                    None => mirror.remove(change.key),
                };
            }
        }
        let state: BTreeMap<u8, String> =
            house.graph.iter(house.all).map(|(k, v)| (*k, String::clone(v))).collect();
        prop_assert_eq!(mirror, state);
    }

    /// The order of writes to different keys within a batch does not matter.
    #[test]
    fn order_within_a_batch_does_not_matter(
        before in prop::collection::vec(step(), 0..6),
        people in prop::collection::btree_map(0..5_u8, prop::option::of((0..3_u8, prop::collection::vec("[ab]", 0..3))), 0..5),
    ) {
        let steps: Vec<Step> = people.into_iter()
            .map(|(id, p)| Step::Person(id, p.map(|(room, names)| Person { room, names }))).collect();
        let reversed: Vec<Step> = steps.iter().rev().cloned().collect();
        let (mut a, mut b) = (House::new(), House::new());
        a.apply(&before);
        b.apply(&before);
        a.apply(&steps);
        b.apply(&reversed);
        prop_assert_eq!(a.state(), b.state());
    }

    /// When the inputs are gone, nothing is left of them, whatever happened in between.
    #[test]
    fn nothing_is_left_after_removal(history in history()) {
        let mut house = House::new();
        for batch in &history {
            house.apply(batch);
        }
        let removals: Vec<Step> =
            (0..5).map(|id| Step::Person(id, None)).chain((0..3).map(|id| Step::Room(id, None))).collect();
        house.apply(&removals);
        for stats in house.graph.stats() {
            prop_assert_eq!((stats.len, stats.reads), (0, 0), "{}", stats.name);
        }
    }
}

fn runs(house: &House, name: &str) -> u64 {
    house.graph.stats().into_iter().find(|s| s.name == name).map(|s| s.runs).unwrap()
}

#[test]
fn only_what_read_a_change_runs_again() {
    let mut house = House::new();
    house.apply(&[
        Step::Room(0, colour("red")),
        Step::Room(1, colour("green")),
        Step::Person(0, person(0, &[])),
        Step::Person(1, person(1, &[])),
        Step::Person(2, person(1, &[])),
    ]);
    assert_eq!(runs(&house, "cards"), 3);
    house.apply(&[Step::Room(0, colour("blue"))]);
    assert_eq!(runs(&house, "cards"), 4);
    // The same value again is no change.
    house.apply(&[Step::Room(0, colour("blue")), Step::Person(1, person(1, &[]))]);
    assert_eq!(runs(&house, "cards"), 4);
    // A room that was looked for and missing counts as read.
    house.apply(&[Step::Person(3, person(2, &[]))]);
    assert_eq!(house.graph.get(house.cards, &3), None);
    house.apply(&[Step::Room(2, colour("white"))]);
    assert_eq!(house.graph.get(house.cards, &3).map(|s| s.as_str()), Some("3 in white"));
}

#[test]
fn a_key_offered_twice_shows_the_smaller_source_and_falls_back() {
    let mut house = House::new();
    house.apply(&[Step::Person(4, person(0, &["ann"])), Step::Person(2, person(0, &["ann"]))]);
    assert_eq!(house.graph.get(house.nicknames, &"ann".to_owned()).map(|v| **v), Some(2));
    house.apply(&[Step::Person(2, None)]);
    assert_eq!(house.graph.get(house.nicknames, &"ann".to_owned()).map(|v| **v), Some(4));
}

#[test]
fn a_change_and_back_in_one_batch_is_no_event() {
    let mut house = House::new();
    house.apply(&[Step::Room(0, colour("red")), Step::Person(0, person(0, &[]))]);
    let cards = house.cards;
    let commit = house.apply(&[Step::Room(0, colour("blue")), Step::Room(0, colour("red"))]);
    assert_eq!(commit.changes(cards).count(), 0);
}

#[test]
fn a_panic_is_reported_keeps_the_last_value_and_heals() {
    let mut house = House::new();
    house.apply(&[
        Step::Room(0, colour("red")),
        Step::Person(0, person(0, &[])),
        Step::Person(1, person(0, &[])),
    ]);
    let commit = house.apply(&[Step::Person(0, person(99, &[])), Step::Person(1, None)]);
    let fault = commit.faults()[0].clone();
    assert_eq!(
        (fault.collection, fault.key.as_str(), fault.message.as_str()),
        ("cards", "0", "no such room")
    );
    drop(commit);
    assert_eq!(house.graph.get(house.cards, &0).map(|s| s.as_str()), Some("0 in red"));
    assert_eq!(house.graph.get(house.cards, &1), None, "the others go on");
    assert!(house.apply(&[Step::Person(0, None)]).faults().is_empty());
    assert_eq!(house.graph.get(house.cards, &0), None);
}

#[test]
fn a_collection_added_later_starts_with_what_is_there() {
    let mut house = House::new();
    house.apply(&[Step::Room(0, colour("red")), Step::Room(1, colour("green"))]);
    let rooms = house.rooms.collection();
    let loud = house.graph.map("loud", rooms, |_, _, colour| Some(colour.to_uppercase()));
    assert_eq!(house.graph.iter(loud).map(|(_, v)| v.as_str()).collect::<Vec<_>>(), ["RED", "GREEN"]);
    let both = house.graph.merge("both", &[loud, rooms]);
    assert_eq!(house.graph.iter(both).count(), 2);
    let commit = house.apply(&[Step::Room(1, None)]);
    assert_eq!(commit.changes(both).count(), 1);
}

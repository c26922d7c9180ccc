//! Derived collections on hand-made cases.

mod explain;
mod laws;

use crate::{Batch, Collection, Commit, Graph, Input};
use std::sync::Arc;

/// People in rooms, rooms with colours.
struct House {
    graph: Graph,
    people: Input<u8, Person>,
    rooms: Input<u8, String>,
    cards: Collection<u8, String>,
    nicknames: Collection<String, u8>,
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
        // Reads by key.
        let cards = graph.map("cards", people.collection(), move |reads, id, person| {
            assert!(person.room != 99, "no such room");
            let colour = reads.get(rooms.collection(), &person.room)?;
            Some(format!("{id} in {colour}"))
        });
        // Many outputs with keys that collide.
        let nicknames = graph.flat_map("nicknames", people.collection(), |_, id, person| {
            person.names.iter().map(|name| (name.clone(), *id)).collect()
        });
        Self { graph, people, rooms, cards, nicknames }
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

fn runs(house: &House, name: &str) -> u64 {
    house.graph.dump().collections.into_iter().find(|s| s.name == name).map(|s| s.runs).unwrap()
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

#[test]
fn nothing_is_kept_of_what_comes_to_nothing() {
    let mut graph = Graph::new();
    let numbers: Input<u8, u8> = graph.input("numbers");
    let large = graph.map("large", numbers.collection(), |_, _, number| (*number > 9).then_some(*number));
    let mut write = |number: u8| {
        let mut batch = Batch::new();
        batch.set(numbers, 0, Arc::new(number));
        graph.apply(batch);
        let kept = graph.dump().collections.iter().map(|one| one.bookkeeping).sum::<usize>();
        (graph.get(large, &0).map(|number| **number), kept)
    };
    // The input, its slot and its offer.
    assert_eq!(
        [write(1), write(10), write(11), write(2)],
        [(None, 0), (Some(10), 3), (Some(11), 3), (None, 0)]
    );
}

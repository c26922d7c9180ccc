//! What people see who ask why.

use crate::{Batch, Collection, Explanation, Graph, Input};
use std::sync::Arc;
use std::time::Duration;

struct House {
    graph: Graph,
    rooms: Input<u8, String>,
    people: Input<String, u8>,
    cards: Collection<String, String>,
}

fn house() -> House {
    let mut graph = Graph::new();
    let rooms: Input<u8, String> = graph.input("rooms");
    let people: Input<String, u8> = graph.input("people");
    let by_colour = graph.index(rooms.collection(), |_, colour: &String| vec![colour.clone()]);
    let cards = graph.map("cards", people.collection(), move |reads, name, room| {
        let colour = reads.get(rooms.collection(), room)?;
        let alike = reads.find(by_colour, colour).count();
        Some(format!("{name}: {colour}, one of {alike}"))
    });
    let cards = graph.merge("all", &[cards]);
    House { graph, rooms, people, cards }
}

fn fill(house: &mut House) {
    let mut batch = Batch::new().at(Duration::from_secs(7));
    for (room, colour) in [(0, "red"), (1, "green"), (2, "green")] {
        batch.set(house.rooms, room, Arc::new(colour.to_owned()));
    }
    for (name, room) in [("ann", 1), ("anna", 0), ("bob", 9)] {
        batch.set(house.people, name.to_owned(), Arc::new(room));
    }
    house.graph.apply(batch);
}

fn lines(of: &Explanation, indent: usize, text: &mut Vec<String>) {
    text.push(format!("{}{} {}", " ".repeat(indent), of.collection, of.key));
    for cause in &of.causes {
        text.push(format!(
            "{}- {:?} {} {} {:?}",
            " ".repeat(indent),
            cause.how,
            cause.collection,
            cause.asked,
            cause.found
        ));
    }
    of.because.iter().for_each(|one| lines(one, indent + 2, text));
}

#[test]
fn an_explanation_leads_down_to_the_inputs() {
    let mut house = house();
    fill(&mut house);
    let mut text = Vec::new();
    lines(&house.graph.why("all", "ann").unwrap(), 0, &mut text);
    let expected = [
        "all \"ann\"",
        "- Input cards  [\"\\\"ann\\\"\"]",
        "  cards \"ann\"",
        "  - Input people  [\"\\\"ann\\\"\"]",
        "  - Key rooms 1 [\"1\"]",
        "  - Index rooms \"green\" [\"1\", \"2\"]",
        "    people \"ann\"",
        "    rooms 1",
        "    rooms 1",
        "    rooms 2",
    ];
    assert_eq!(text, expected);
    assert_eq!(
        house.graph.get(house.cards, &"ann".to_owned()).map(|v| v.as_str()),
        Some("ann: green, one of 2")
    );
}

#[test]
fn a_key_that_fits_several_is_asked_back() {
    let mut house = house();
    fill(&mut house);
    assert_eq!(house.graph.why("all", "an"), Err(vec!["\"ann\"".to_owned(), "\"anna\"".to_owned()]));
    assert_eq!(house.graph.why("all", "bob"), Err(vec![]), "bob has no card");
    assert_eq!(house.graph.why("nothing", "ann"), Err(vec![]));
    assert!(house.graph.why("all", "nna").is_ok(), "a part that fits one key only will do");
}

#[test]
fn a_dump_tells_counts_and_when() {
    let mut house = house();
    fill(&mut house);
    let mut batch = Batch::new();
    batch.set(house.rooms, 0, Arc::new("blue".to_owned()));
    house.graph.apply(batch);
    let dump = house.graph.dump();
    let of = |name: &str| dump.collections.iter().find(|one| one.name == name).unwrap();
    assert_eq!((dump.batches, of("rooms").len, of("rooms").indexes.clone()), (2, 3, vec![3]));
    assert_eq!(of("people").last_change.unwrap().at, Some(Duration::from_secs(7)));
    assert_eq!((of("cards").runs, of("cards").last_run.unwrap().batch), (4, 2));
    assert_eq!(of("cards").read_from, [of("rooms").id]);
    let dot = dump.to_dot();
    assert!(
        dot.starts_with("digraph")
            && dot.contains("style=dashed")
            && dot.contains("cards\\nDerived, 2 values"),
        "{dot}"
    );
}

#[test]
fn a_read_of_what_stands_later_is_refused_and_reported() {
    let mut graph = Graph::new();
    let people: Input<String, u8> = graph.input("people");
    let scope = graph.open("part", &[]);
    let part: Input<u8, u8> = graph.within(&scope, |graph| graph.input("part"));
    let cards = graph
        .map("cards", people.collection(), move |reads, _, room| reads.get(part.collection(), room).copied());
    let mut batch = Batch::new();
    batch.set(people, "ann".to_owned(), Arc::new(1));
    batch.set(part, 1, Arc::new(5));
    assert!(graph.apply(batch).faults().is_empty());
    graph.close(scope);
    let faults = graph.apply(Batch::new()).faults().to_vec();
    assert!(faults[0].message.contains("has gone with the scope"), "{faults:?}");
    assert_eq!(graph.get(cards, &"ann".to_owned()).map(|v| **v), Some(5), "its last value stays");
    // A write to what has gone has no effect.
    let mut batch = Batch::new();
    batch.set(part, 1, Arc::new(6));
    assert!(graph.apply(batch).graph().dump().collections.iter().all(|one| one.name != "part"));
}

#[test]
#[should_panic(expected = "only through a union")]
fn what_is_made_from_a_scope_outside_of_it_is_refused() {
    let mut graph = Graph::new();
    let scope = graph.open("part", &[]);
    let part: Input<u8, u8> = graph.within(&scope, |graph| graph.input("part"));
    graph.map("outside", part.collection(), |_, _, value| Some(*value));
}

#[test]
#[should_panic(expected = "must stand before its union")]
fn a_source_that_stands_after_its_union_is_refused() {
    let mut graph = Graph::new();
    let union = graph.union::<u8, u8>("union");
    let late: Input<u8, u8> = graph.input("late");
    graph.connect(union, late.collection(), 0);
}

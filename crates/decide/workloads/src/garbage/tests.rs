use super::*;

fn owner(uid: &str) -> OwnerReference {
    OwnerReference { uid: uid.to_owned(), name: uid.to_owned(), ..OwnerReference::default() }
}

fn blocking(uid: &str) -> OwnerReference {
    OwnerReference { block_owner_deletion: Some(true), ..owner(uid) }
}

fn node(namespace: &str, owners: &[OwnerReference], finalizers: &[&str]) -> Node<()> {
    Node {
        resource: (),
        namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
        name: "x".to_owned(),
        owners: owners.to_vec(),
        deleting: !finalizers.is_empty(),
        finalizers: finalizers.iter().map(|&name| name.to_owned()).collect(),
    }
}

fn graph(nodes: &[(&str, Node<()>)]) -> Graph<()> {
    let mut graph = Graph::default();
    for (uid, node) in nodes {
        graph.observe(uid, node.clone());
    }
    graph
}

/// `answers`: what the server says of owners that the graph does not know.
#[track_caller]
fn check(nodes: &[(&str, Node<()>)], uid: &str, answers: &[(&str, Owner)], expected: Action) {
    let answers = answers.iter().map(|&(uid, owner)| (uid.to_owned(), owner)).collect();
    assert_eq!(graph(nodes).decide(uid, &answers), expected);
}

#[test]
fn an_object_goes_when_all_its_owners_have_gone() {
    let owned = || node("n", &[owner("o")], &[]);
    let background = Action::Delete(Propagation::Background);
    check(&[("d", owned())], "d", &[("o", Owner::Absent)], background);
    check(&[("d", owned())], "d", &[("o", Owner::Present)], Action::Leave);
    check(&[("d", owned()), ("o", node("n", &[], &[]))], "d", &[], Action::Leave);
    check(&[("d", owned())], "d", &[("o", Owner::Unknown)], Action::Wait);
    check(&[("d", owned())], "d", &[], Action::Wait);
    check(&[("d", node("n", &[], &[]))], "d", &[], Action::Leave);
    check(&[], "d", &[], Action::Leave);
}

#[test]
fn dangling_owners_are_dropped_while_others_hold() {
    let two = node("n", &[owner("a"), owner("b")], &[]);
    let kept = Action::KeepOwners(vec![owner("a")]);
    check(&[("d", two.clone()), ("a", node("n", &[], &[]))], "d", &[("b", Owner::Absent)], kept.clone());
    check(&[("d", two)], "d", &[("a", Owner::Present), ("b", Owner::Waiting)], kept);
}

#[test]
fn an_owner_in_another_namespace_counts_as_absent() {
    let nodes = [("d", node("n", &[owner("o")], &[])), ("o", node("other", &[], &[]))];
    check(&nodes, "d", &[], Action::Delete(Propagation::Background));
    assert_eq!(graph(&nodes).misplaced_owners("d"), [owner("o")]);
    let cluster = [("d", node("n", &[owner("o")], &[])), ("o", node("", &[], &[]))];
    check(&cluster, "d", &[], Action::Leave);
}

#[test]
fn foreground_deletion_waits_for_blocking_dependents() {
    let leaving = node("n", &[], &[FOREGROUND]);
    let done = Action::RemoveFinalizer(FOREGROUND);
    check(&[("o", leaving.clone())], "o", &[], done.clone());
    check(&[("o", leaving.clone()), ("d", node("n", &[owner("o")], &[]))], "o", &[], done);
    let nodes = [("o", leaving), ("d", node("n", &[blocking("o")], &[]))];
    check(&nodes, "o", &[], Action::Dependents(vec!["d".to_owned()]));
    check(&nodes, "d", &[], Action::Delete(Propagation::Background));
    let mut with_own = nodes.to_vec();
    with_own.push(("e", node("n", &[blocking("d")], &[])));
    check(&with_own, "d", &[], Action::Delete(Propagation::Foreground));
}

#[test]
fn a_circle_does_not_block() {
    let nodes = [("a", node("n", &[blocking("b")], &[FOREGROUND])), ("b", node("n", &[blocking("a")], &[]))];
    check(&nodes, "b", &[], Action::UnblockAndDelete(Propagation::Foreground));
}

#[test]
fn orphaning_lets_dependents_go_first() {
    let nodes = [("o", node("n", &[], &[ORPHAN])), ("d", node("n", &[owner("o")], &[]))];
    check(&nodes, "o", &[], Action::Release(vec!["d".to_owned()]));
    check(&nodes[..1], "o", &[], Action::RemoveFinalizer(ORPHAN));
}

#[test]
fn what_is_being_deleted_otherwise_is_left_to_others() {
    check(&[("d", node("n", &[owner("o")], &["else/where"]))], "d", &[("o", Owner::Absent)], Action::Leave);
}

#[test]
fn events_name_who_has_to_be_looked_at() {
    let mut graph: Graph<()> = Graph::default();
    assert!(graph.observe("o", node("n", &[], &[])).is_empty(), "nothing depends on anything");
    assert_eq!(graph.observe("d", node("n", &[owner("o")], &[])), ["d"]);
    assert!(graph.observe("d", node("n", &[owner("o")], &[])).is_empty(), "nothing changed");
    assert_eq!(graph.forget("o"), ["d"]);
    assert_eq!(graph.forget("d"), Vec::<String>::new());
    assert_eq!(graph.observe("o", node("n", &[], &[FOREGROUND])), ["o"]);
    graph.observe("d", node("n", &[blocking("o")], &[]));
    assert_eq!(
        graph.observe("d", node("n", &[owner("o")], &[])),
        ["o", "d"],
        "it no longer holds the owner up"
    );
    assert_eq!(graph.forget("d"), ["o"], "the owner waited for it");
    assert!(graph.dependents.is_empty(), "nothing is kept of what has gone");
}

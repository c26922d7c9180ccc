//! Checks a file as people keep it: a mesh configuration itself, or manifests with ConfigMaps that hold one.

use crate::config::check::{Checked, check_mesh, check_networks};
use crate::config::document::{Fault, Node, Note, Place, Tree, parse};

/// Checks a file. Places are those in the file, also of what stands in the text of a ConfigMap.
pub fn check_file(source: &str, bytes: &[u8]) -> (Vec<Fault>, Vec<Note>) {
    let config_maps: Vec<(u64, &str, Node)> = match std::str::from_utf8(bytes) {
        Ok(text) => documents(text).into_iter().filter_map(config_map).collect(),
        Err(_) => Vec::new(),
    };
    if config_maps.is_empty() {
        let checked = check_mesh(source, bytes);
        return (checked.faults, checked.notes);
    }
    let (mut faults, mut notes) = (Vec::new(), Vec::new());
    for (first_line, text, node) in &config_maps {
        for (key, value) in entries(entry(node, "data")) {
            let check: fn(&str, &[u8]) -> Checked = match key.as_str() {
                "mesh" => check_mesh,
                "meshNetworks" => check_networks,
                _ => continue,
            };
            let Tree::Text(content) = &value.tree else { continue };
            let place = |inner| in_file(text, value.place, inner, *first_line);
            let checked = check(source, content.as_bytes());
            let moved =
                |all: Vec<Fault>| all.into_iter().map(|fault| Fault { place: place(fault.place), ..fault });
            faults.extend(moved(checked.faults));
            notes.extend(moved(checked.notes));
        }
    }
    (faults, notes)
}

/// The documents of a file, with the number of lines before each.
fn documents(text: &str) -> Vec<(u64, &str)> {
    let mut all = Vec::new();
    let (mut start, mut first_line, mut line, mut at) = (0, 0, 0, 0);
    for one in text.split_inclusive('\n') {
        line += 1;
        if one.trim_end() == "---" {
            all.push((first_line, &text[start..at]));
            (start, first_line) = (at + one.len(), line);
        }
        at += one.len();
    }
    all.push((first_line, &text[start..]));
    all
}

/// A document that is a ConfigMap with a mesh configuration.
fn config_map((first_line, text): (u64, &str)) -> Option<(u64, &str, Node)> {
    let node = parse(text.as_bytes()).ok()?;
    let is_one = matches!(&entry(&node, "kind")?.tree, Tree::Text(kind) if kind == "ConfigMap");
    let holds = |key| entry(&node, "data").and_then(|data| entry(data, key)).is_some();
    (is_one && (holds("mesh") || holds("meshNetworks"))).then_some((first_line, text, node))
}

fn entry<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    let Tree::Map(entries) = &node.tree else { return None };
    entries.iter().find(|(key, _)| key.tree.key().as_deref() == Some(name)).map(|(_, value)| value)
}

fn entries(node: Option<&Node>) -> impl Iterator<Item = (String, &Node)> {
    let entries = match node.map(|node| &node.tree) {
        Some(Tree::Map(entries)) => entries.as_slice(),
        _ => &[],
    };
    entries.iter().filter_map(|(key, value)| Some((key.tree.key()?, value)))
}

/// Where a place in a value's text is in the file. In quoted text, lines are folded: the value's own place is told.
fn in_file(text: &str, value: Place, inner: Place, first_line: u64) -> Place {
    let line =
        |number: u64| text.lines().nth(usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX));
    let header = line(value.line).unwrap_or_default();
    let from_value: String =
        header.chars().skip(usize::try_from(value.column.saturating_sub(1)).unwrap_or(0)).collect();
    // The place of a block of text is that of its indicator, or that of its first line.
    let opens_block =
        |line: &str| line.trim_end().ends_with(['|', '>', '-', '+']) && !line.contains(['"', '\'']);
    let content = if from_value.starts_with(['|', '>']) || opens_block(header) {
        value.line + 1
    } else if value.line > 1 && line(value.line - 1).is_some_and(opens_block) {
        value.line
    } else {
        return Place { line: first_line + value.line, column: value.column };
    };
    let indented = |number: &u64| line(*number).is_some_and(|text| !text.trim().is_empty());
    let first = (content..content + 1000).find(indented).unwrap_or(content);
    let indent = line(first).map_or(0, |text| text.len() - text.trim_start().len());
    let column = inner.column + u64::try_from(indent).unwrap_or(0);
    Place { line: first_line + content + inner.line - 1, column }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let (faults, _) = check_file("file", text.as_bytes());
        assert_eq!(faults.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn places_in_a_config_map_are_those_of_the_file() {
        let fault = "trustDomain: it is the boolean true, a text (write it in quotes) is expected";
        check("trustDomain: true\n", &[&format!("1:14: {fault}")]);
        let map = "apiVersion: v1\nkind: ConfigMap\ndata:\n  mesh: |\n    rootNamespace: a\n    trustDomain: true\n";
        check(map, &[&format!("6:18: {fault}")]);
        check(&map.replace("mesh: |", "mesh: |-"), &[&format!("6:18: {fault}")]);
        check(&format!("kind: Namespace\n---\n{map}"), &[&format!("8:18: {fault}")]);
        check("kind: ConfigMap\ndata: {mesh: 'trustDomain: true'}\n", &[&format!("2:14: {fault}")]);
        let networks =
            "kind: ConfigMap\ndata:\n  meshNetworks: |\n    networks: {a: {gateways: [{port: x}]}}\n";
        check(
            networks,
            &[
                "4:38: networks.a.gateways[0].port: it is the text \"x\", an integer from 0 to 4294967295 is expected",
            ],
        );
        check("kind: ConfigMap\ndata: {other: 'trustDomain: true'}\n", &[]);
    }
}

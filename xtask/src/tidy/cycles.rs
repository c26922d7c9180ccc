//! The top modules of a crate import each other in one direction only.

use super::code::{without_comments_and_literals, without_tests};
use super::dead::test_files;
use super::sizes::EXCEPTIONS;
use super::{Finding, Tree, line_of};
use std::collections::{BTreeMap, BTreeSet};

/// Start of an exception's line: `CYCLE FOLDER MODULE…`, the modules that may be in a cycle.
pub(super) const EXCEPTION: &str = "CYCLE ";

/// Modules of one crate, and for each the modules it imports with the file and line of the first import.
type Graph<'a> = BTreeMap<&'a str, BTreeMap<String, (&'a str, usize)>>;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut exceptions = exceptions(tree);
    let mut findings = Vec::new();
    for (folder, graph) in graphs(tree) {
        for (module, imports) in &graph {
            for (imported, (path, line)) in imports {
                if module == imported || !reaches(&graph, imported, module) {
                    continue;
                }
                let allowed = exceptions.get_mut(folder);
                if allowed.is_some_and(|(_, modules)| allow(modules, [module, imported.as_str()])) {
                    continue;
                }
                let message = format!(
                    "{module} imports {imported}, which leads back to {module}: move what both need below them"
                );
                findings.push(Finding { path: (*path).to_owned(), line: *line, message });
            }
        }
    }
    for (folder, (line, modules)) in exceptions {
        for (module, _) in modules.iter().filter(|(_, seen)| !**seen) {
            let message = format!("{module} of {folder} is in no cycle now: remove it from the line");
            findings.push(Finding { path: EXCEPTIONS.to_owned(), line, message });
        }
    }
    findings
}

/// Whether both modules stand in the list; they are marked as seen.
fn allow(modules: &mut BTreeMap<&str, bool>, both: [&str; 2]) -> bool {
    let listed = both.iter().all(|module| modules.contains_key(module));
    if listed {
        modules.iter_mut().filter(|(module, _)| both.contains(module)).for_each(|(_, seen)| *seen = true);
    }
    listed
}

/// Line and modules by folder of the crate; a module is marked once a cycle with it was seen.
fn exceptions(tree: &Tree) -> BTreeMap<&str, (usize, BTreeMap<&str, bool>)> {
    let text = tree.files.get(EXCEPTIONS).map_or("", String::as_str);
    let lines = text.lines().enumerate().filter_map(|(index, line)| {
        let entry = line.strip_prefix(EXCEPTION)?.split('#').next()?;
        let mut words = entry.split_whitespace();
        Some((words.next()?, (index + 1, words.map(|module| (module, false)).collect())))
    });
    lines.collect()
}

/// The import graph of each crate, by its folder.
fn graphs(tree: &Tree) -> BTreeMap<&str, Graph<'_>> {
    let tests = test_files(tree);
    let mut graphs: BTreeMap<&str, Graph<'_>> = BTreeMap::new();
    for (path, text) in tree.ending(".rs").filter(|(path, _)| !tests.contains(*path)) {
        let Some((folder, inside)) = path.split_once("/src/") else { continue };
        let (module, is_top) = match inside.split_once('/') {
            Some((module, _)) => (module, false),
            None => (inside.trim_end_matches(".rs"), true),
        };
        if matches!(module, "lib" | "main" | "bin") {
            continue;
        }
        let code = without_comments_and_literals(text);
        let code = without_tests(&code);
        let imports = graphs.entry(folder).or_default().entry(module).or_default();
        for root in if is_top { &["crate::", "super::"][..] } else { &["crate::"] } {
            for (offset, _) in code.match_indices(root).filter(|(at, _)| starts_word(code, *at)) {
                for name in names(&code[offset + root.len()..]) {
                    imports.entry(name).or_insert((path, line_of(code, offset)));
                }
            }
        }
    }
    for graph in graphs.values_mut() {
        let modules: BTreeSet<String> = graph.keys().map(|module| (*module).to_owned()).collect();
        graph.values_mut().for_each(|imports| imports.retain(|name, _| modules.contains(name)));
    }
    graphs
}

fn starts_word(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$')
}

/// The first names of what stands behind `crate::`: one, or those of a group.
fn names(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else { return first_name(rest).into_iter().collect() };
    let (mut names, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.extend(first_name(group[start..at].trim_start()));
                start = at + 1;
                if character == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names
}

fn first_name(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

/// Whether imports lead from one module to another.
fn reaches(graph: &Graph<'_>, from: &str, to: &str) -> bool {
    let (mut open, mut seen) = (vec![from], BTreeSet::new());
    while let Some(module) = open.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module) {
            open.extend(graph.get(module).into_iter().flat_map(|imports| imports.keys().map(String::as_str)));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::EXCEPTIONS;
    use crate::tidy::tests::check_with;

    const DOOR: (&str, &str) = ("a/src/lib.rs", "mod b;\nmod c;\nmod d;\npub use b::B;\n");

    #[track_caller]
    fn check(files: &[(&str, &str)], expected: &[&str]) {
        check_with(super::check, &[&[DOOR][..], files].concat(), expected);
    }

    #[test]
    fn modules_that_lead_back_are_found_with_each_import() {
        let files = [
            ("a/src/b.rs", "use crate::{d::{E, b}, F};\n"),
            ("a/src/c.rs", "use super::b::B;\n"),
            ("a/src/d/e.rs", "//! crate::b\nfn f() { crate::c::g() }\n"),
        ];
        check(
            &files,
            &[
                "a/src/b.rs:1: b imports d, which leads back to b: move what both need below them",
                "a/src/c.rs:1: c imports b, which leads back to c: move what both need below them",
                "a/src/d/e.rs:2: d imports c, which leads back to d: move what both need below them",
            ],
        );
    }

    #[test]
    fn one_direction_and_tests_are_fine() {
        let tested = "use crate::c::C;\n#[cfg(test)]\nmod tests {\n    use crate::d::D;\n}\n";
        check(&[("a/src/b.rs", tested), ("a/src/c.rs", ""), ("a/src/d.rs", "use crate::b::B;")], &[]);
    }

    #[test]
    fn exceptions_name_the_modules_and_only_shrink() {
        let files =
            [("a/src/b.rs", "use crate::c::C;"), ("a/src/c.rs", "use crate::b::B;"), ("a/src/d.rs", "")];
        let with = |list| [&files[..], &[(EXCEPTIONS, list)]].concat();
        check(&with("CYCLE a b c # why\n"), &[]);
        check(
            &with("# list\nCYCLE a b c d\n"),
            &["xtask/tidy-exceptions.txt:2: d of a is in no cycle now: remove it from the line"],
        );
    }
}

//! Which module declares which file. A source file that no module declares is never compiled.

use super::code::without_comments_and_literals;
use super::manifest::{Manifest, manifests};
use super::{Finding, Tree};
use std::collections::BTreeSet;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = manifests(tree);
    let mut reached = BTreeSet::new();
    let mut open: Vec<String> = Vec::new();
    for (path, _) in tree.ending(".rs") {
        if owner(&manifests, path).is_none_or(|manifest| is_root(manifest, path)) {
            open.push(path.to_owned());
        }
    }
    while let Some(path) = open.pop() {
        let Some(text) = tree.files.get(&path) else { continue };
        if reached.insert(path.clone()) {
            let is_root = owner(&manifests, &path).is_none_or(|manifest| is_root(manifest, &path));
            open.extend(declared(&path, text, is_root).into_iter().map(|file| file.path));
        }
    }
    let dead = tree.ending(".rs").filter(|(path, _)| !reached.contains(*path));
    dead.map(|(path, _)| Finding {
        path: path.to_owned(),
        line: 1,
        message: "no module declares this file: declare it, or remove it".to_owned(),
    })
    .collect()
}

/// Files that are compiled for tests only: declared behind `#[cfg(test)]`, or by such a file.
pub(super) fn test_files(tree: &Tree) -> BTreeSet<String> {
    let manifests = manifests(tree);
    let files = |path: &str, text: &str| {
        let is_root = owner(&manifests, path).is_none_or(|manifest| is_root(manifest, path));
        declared(path, text, is_root)
    };
    let all = tree.ending(".rs").flat_map(|(path, text)| files(path, text));
    let mut open: Vec<String> = all.filter(|file| file.for_tests).map(|file| file.path).collect();
    let mut found = BTreeSet::new();
    while let Some(path) = open.pop() {
        let Some(text) = tree.files.get(&path) else { continue };
        if found.insert(path.clone()) {
            open.extend(files(&path, text).into_iter().map(|file| file.path));
        }
    }
    found
}

/// A file that a module may be in.
struct Declared {
    path: String,
    for_tests: bool,
}

/// The package that a file belongs to: the deepest one above it.
fn owner<'a, 'b>(manifests: &'b [Manifest<'a>], path: &str) -> Option<&'b Manifest<'a>> {
    manifests.iter().filter(|m| path.starts_with(m.folder())).max_by_key(|m| m.folder().len())
}

/// Whether cargo compiles the file by itself.
fn is_root(manifest: &Manifest<'_>, path: &str) -> bool {
    let inside = &path[manifest.folder().len()..];
    let is_target = ["src/bin/", "tests/", "examples/", "benches/"].iter().any(|folder| {
        let rest = inside.strip_prefix(folder);
        rest.is_some_and(|file| !file.contains('/') || file.ends_with("/main.rs"))
    });
    is_target
        || matches!(inside, "src/lib.rs" | "src/main.rs" | "build.rs")
        || manifest.targets.contains(&inside)
}

/// The files that the modules of `text` may be in.
fn declared(path: &str, text: &str, is_root: bool) -> Vec<Declared> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let stem = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
    let below = if is_root || stem == "mod" { folder.to_owned() } else { format!("{folder}/{stem}") };
    let code = without_comments_and_literals(text);
    let (mut found, mut given, mut for_tests) = (Vec::new(), None, false);
    for (line, original) in code.lines().zip(text.lines()) {
        let line = line.trim();
        for_tests |= line.starts_with("#[cfg(test)]");
        if line.starts_with("#[path") {
            given = original.split('"').nth(1);
        }
        if line.contains("include!(") {
            let file = original.split('"').nth(1).map(|file| format!("{folder}/{file}"));
            found.extend(file.map(|path| Declared { path, for_tests }));
        }
        let declaration = line.strip_suffix(';').and_then(|l| l.rsplit_once("mod "));
        if let Some((_, name)) = declaration.filter(|(before, _)| is_visibility(before)) {
            let paths = match given.take() {
                Some(file) => vec![format!("{folder}/{file}")],
                None => vec![format!("{below}/{name}.rs"), format!("{below}/{name}/mod.rs")],
            };
            found.extend(paths.into_iter().map(|path| Declared { path, for_tests }));
        }
        // An attribute is for the next item, which may stand below other attributes.
        if !line.is_empty() && !line.ends_with(']') {
            for_tests = false;
        }
    }
    found
}

/// Whether this may stand before `mod`: nothing, `pub`, `pub(…)`, or attributes.
fn is_visibility(before: &str) -> bool {
    let before = before.trim();
    before.is_empty() || before.ends_with([')', ']']) || before.ends_with("pub")
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::check_with;

    const PACKAGE: (&str, &str) =
        ("a/Cargo.toml", "[package]\nname = \"a\"\n[lib]\npath = \"src/door.rs\"\n");

    #[track_caller]
    fn check(files: &[(&str, &str)], dead: &[&str]) {
        let expected: Vec<String> = dead
            .iter()
            .map(|path| format!("{path}:1: no module declares this file: declare it, or remove it"))
            .collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        check_with(super::check, &[&[PACKAGE][..], files].concat(), &expected);
    }

    #[test]
    fn a_file_that_no_module_declares_is_found() {
        check(
            &[("a/src/door.rs", "mod b;"), ("a/src/b.rs", "// mod c;"), ("a/src/c.rs", "")],
            &["a/src/c.rs"],
        );
        check(
            &[("a/src/door.rs", ""), ("a/src/b.rs", "mod c;"), ("a/src/b/c.rs", "")],
            &["a/src/b.rs", "a/src/b/c.rs"],
        );
    }

    #[test]
    fn every_way_to_declare_a_module_counts() {
        let door = "pub mod b;\npub(crate) mod c;\n#[path = \"other.rs\"]\nmod d;\n#[cfg(test)] mod e;\ninclude!(\"f.rs\");";
        let files = [
            ("a/src/door.rs", door),
            ("a/src/b.rs", "mod inner;"),
            ("a/src/b/inner.rs", ""),
            ("a/src/c/mod.rs", "mod inner;"),
            ("a/src/c/inner.rs", ""),
            ("a/src/other.rs", ""),
            ("a/src/e.rs", ""),
            ("a/src/f.rs", ""),
            ("a/build.rs", ""),
            ("a/tests/suite.rs", "mod case;"),
            ("a/tests/case.rs", ""),
            ("a/src/bin/tool/main.rs", ""),
        ];
        check(&files, &[]);
    }
}

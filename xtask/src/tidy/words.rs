//! Words that stand for something missing: unfinished code, ignored tests, modules without a name.

use super::code::without_comments_and_literals;
use super::{Finding, Tree, line_of};

/// In code, and what to do instead.
const CODE: [(&str, &str); 3] = [
    ("todo!", "finish it, or return an error that says what is missing"),
    ("unimplemented!", "finish it, or return an error that says what is missing"),
    ("#[ignore", "make the test run everywhere, or remove it"),
];
/// Names that say nothing about what is inside.
const MODULES: [&str; 6] = ["utils", "util", "common", "helpers", "helper", "misc"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".rs") {
        let code = without_comments_and_literals(text);
        for (word, instead) in CODE {
            for (offset, _) in code.match_indices(word) {
                let message = format!("`{word}`: {instead}");
                findings.push(Finding { path: path.to_owned(), line: line_of(&code, offset), message });
            }
        }
        for name in MODULES {
            for (offset, found) in code.match_indices(&format!("mod {name}")) {
                if code[offset + found.len()..].starts_with([';', ' ', '{']) {
                    let message = format!("module `{name}`: name the thing that is inside");
                    findings.push(Finding { path: path.to_owned(), line: line_of(&code, offset), message });
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::check_with;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        check_with(super::check, &[("a.rs", text)], expected);
    }

    #[test]
    fn unfinished_code_is_found() {
        check(
            "fn a() {\n    todo!()\n}",
            &["a.rs:2: `todo!`: finish it, or return an error that says what is missing"],
        );
        check(
            "unimplemented!(\"x\")",
            &["a.rs:1: `unimplemented!`: finish it, or return an error that says what is missing"],
        );
        check("#[ignore = \"slow\"]", &["a.rs:1: `#[ignore`: make the test run everywhere, or remove it"]);
        check("// todo!()\nlet a = \"#[ignore]\";", &[]);
    }

    #[test]
    fn modules_are_named_after_what_is_inside() {
        check("pub mod utils;", &["a.rs:1: module `utils`: name the thing that is inside"]);
        check("mod helpers {}", &["a.rs:1: module `helpers`: name the thing that is inside"]);
        check("mod common_names;\nmod utilities;", &[]);
    }
}

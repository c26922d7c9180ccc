//! A room says at its door what it does and what it must never do.

use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".rs").filter(|(path, _)| path.starts_with("crates/")) {
        let is_room = path.ends_with("/src/lib.rs");
        if !is_room && !path.ends_with("/src/main.rs") {
            continue;
        }
        let head: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).collect();
        let head = head.join(" ");
        let message = if head.trim().is_empty() {
            "no head comment: open with `//!` and one sentence on what it does"
        } else if is_room && !head.to_lowercase().contains("never") {
            "the head comment does not say what the room must never do: add that sentence"
        } else {
            continue;
        };
        findings.push(Finding { path: path.to_owned(), line: 1, message: message.to_owned() });
    }
    findings
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::check_with;

    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        check_with(super::check, &[(path, text)], expected);
    }

    #[test]
    fn the_head_of_a_room_has_two_sentences() {
        let room = "crates/plumb/a/src/lib.rs";
        check(room, "//! Does things.\n//! It never fails.\n", &[]);
        check(
            room,
            "use x;\n//! Never.\n",
            &[
                "crates/plumb/a/src/lib.rs:1: no head comment: open with `//!` and one sentence on what it does",
            ],
        );
        check(
            room,
            "//! Does things.\n\n// never\n",
            &[
                "crates/plumb/a/src/lib.rs:1: the head comment does not say what the room must never do: add that sentence",
            ],
        );
        check("crates/front/a/src/main.rs", "//! Does things.\n", &[]);
        check("tests/a/src/lib.rs", "", &[]);
    }
}

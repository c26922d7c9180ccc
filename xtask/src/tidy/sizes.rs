//! Files and pages stay small; the exceptions stand in one list that may only shrink.

use super::{Finding, Tree, cycles};
use std::collections::BTreeMap;

/// The list of all exceptions. Here: `PATH LINES` a line, `#` for the reason.
pub(super) const EXCEPTIONS: &str = "xtask/tidy-exceptions.txt";
/// Lines of a source file.
const SOURCE_LINES_MAX: usize = 600;
/// Lines of a page that everyone should read.
const PAGE_LINES_MAX: usize = 500;
/// Those pages.
const PAGES: [&str; 2] = ["README.md", "ARCHITECTURE.md"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let exceptions = exceptions(tree, &mut findings);
    for (path, text) in tree.ending(".rs") {
        let lines = text.lines().count();
        let allowed = exceptions.get(path).map_or(SOURCE_LINES_MAX, |(allowed, _)| *allowed);
        if lines > allowed {
            let message = format!("{lines} lines, over {allowed}: split it (long tests go to NAME/tests.rs)");
            findings.push(Finding { path: path.to_owned(), line: allowed + 1, message });
        }
    }
    for (path, (allowed, line)) in exceptions {
        let message = match tree.files.get(path).map(|text| text.lines().count()) {
            None => format!("{path} does not exist: remove the line"),
            Some(lines) if lines <= SOURCE_LINES_MAX => {
                format!("{path} has {lines} lines now: remove the line")
            }
            Some(lines) if lines < allowed => format!("{path} has {lines} lines now: lower the number"),
            Some(_) => continue,
        };
        findings.push(Finding { path: EXCEPTIONS.to_owned(), line, message });
    }
    for page in PAGES {
        let lines = tree.files.get(page).map_or(0, |text| text.lines().count());
        if lines > PAGE_LINES_MAX {
            let message = format!("{lines} lines, over {PAGE_LINES_MAX}: move details to docs/");
            findings.push(Finding { path: page.to_owned(), line: PAGE_LINES_MAX + 1, message });
        }
    }
    findings
}

/// Path to allowed lines and the line of the list.
fn exceptions<'a>(tree: &'a Tree, findings: &mut Vec<Finding>) -> BTreeMap<&'a str, (usize, usize)> {
    let mut all = BTreeMap::new();
    let text = tree.files.get(EXCEPTIONS).map_or("", String::as_str);
    for (index, line) in text.lines().enumerate() {
        let entry = line.split('#').next().unwrap_or_default().trim();
        if entry.is_empty() || line.starts_with(cycles::EXCEPTION) {
            continue;
        }
        match entry.split_once(' ').and_then(|(path, lines)| Some((path, lines.trim().parse().ok()?))) {
            Some((path, lines)) => drop(all.insert(path, (lines, index + 1))),
            None => findings.push(Finding {
                path: EXCEPTIONS.to_owned(),
                line: index + 1,
                message: "not `PATH LINES`: correct the line".to_owned(),
            }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::EXCEPTIONS;
    use crate::tidy::tests::check_with;

    #[track_caller]
    fn check(lines: usize, list: &str, expected: &[&str]) {
        let text = "x\n".repeat(lines);
        check_with(super::check, &[("a.rs", text.as_str()), (EXCEPTIONS, list)], expected);
    }

    #[test]
    fn a_long_file_is_split_or_stands_in_the_list() {
        check(600, "", &[]);
        check(601, "", &["a.rs:601: 601 lines, over 600: split it (long tests go to NAME/tests.rs)"]);
        check(700, "# why\na.rs 700 # a table\n", &[]);
        check(701, "a.rs 700", &["a.rs:701: 701 lines, over 700: split it (long tests go to NAME/tests.rs)"]);
    }

    #[test]
    fn the_list_only_shrinks() {
        check(650, "a.rs 700", &["xtask/tidy-exceptions.txt:1: a.rs has 650 lines now: lower the number"]);
        check(500, "a.rs 700", &["xtask/tidy-exceptions.txt:1: a.rs has 500 lines now: remove the line"]);
        check(1, "b.rs 700", &["xtask/tidy-exceptions.txt:1: b.rs does not exist: remove the line"]);
        check(1, "b.rs", &["xtask/tidy-exceptions.txt:1: not `PATH LINES`: correct the line"]);
    }

    #[test]
    fn a_page_for_everyone_is_short() {
        let text = "x\n".repeat(501);
        let files = [("README.md", text.as_str()), ("docs/long.md", text.as_str())];
        check_with(super::check, &files, &["README.md:501: 501 lines, over 500: move details to docs/"]);
    }
}

use super::*;

/// Runs one check on a small tree.
#[track_caller]
pub(super) fn check_with(check: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)], expected: &[&str]) {
    let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    let mut found: Vec<String> = check(&Tree { files }).iter().map(ToString::to_string).collect();
    found.sort();
    assert_eq!(found, expected);
}

#[test]
fn the_house_is_tidy() {
    let tree = Tree::read(&root()).unwrap();
    assert!(tree.files.contains_key("xtask/src/tidy.rs"), "the tree was not found at {}", root().display());
    let found: Vec<String> = findings(&tree).iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

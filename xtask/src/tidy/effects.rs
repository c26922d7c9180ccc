//! The first three floors are pure: no runtime, sockets, files, environment, clock or randomness.

use super::code::{without_comments_and_literals, without_tests};
use super::dead::test_files;
use super::floors::floor_of;
use super::manifest::{Kind, manifests};
use super::{Finding, Tree, line_of};

/// Floors without effects.
const PURE: [&str; 3] = ["ground", "engine", "decide"];
/// What an effect looks like in code.
const EFFECTS: [&str; 19] = [
    "tokio::",
    "std::fs",
    "std::env",
    "std::process",
    "std::thread",
    "std::io::stdin",
    "std::os::unix::net",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "UnixListener",
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
    "Zoned::now",
    "Uuid::new_v4",
    "rand::rng",
    "rand::random",
];
/// Crates that are there for effects.
const CRATES: [&str; 7] = ["tokio", "nix", "libc", "socket2", "rtnetlink", "netlink-sys", "hyper"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let is_pure = |path: &str| floor_of(path).is_some_and(|floor| PURE.contains(&floor));
    let mut findings = Vec::new();
    for manifest in manifests(tree).iter().filter(|m| is_pure(m.path)) {
        for dependency in &manifest.dependencies {
            if dependency.kind == Kind::Normal && CRATES.contains(&dependency.name) {
                let message =
                    format!("a pure floor uses {}: move the effect to plumb or serve", dependency.name);
                findings.push(Finding { path: manifest.path.to_owned(), line: dependency.line, message });
            }
        }
    }
    let tests = test_files(tree);
    let is_beside = |path: &str| tests.contains(path) || is_beside(path);
    for (path, text) in tree.ending(".rs").filter(|(path, _)| is_pure(path) && !is_beside(path)) {
        let code = without_comments_and_literals(text);
        let code = without_tests(&code);
        for effect in EFFECTS {
            for (offset, _) in code.match_indices(effect).filter(|(at, _)| starts_word(code, *at)) {
                let line = line_of(code, offset);
                let message = format!("a pure floor uses `{effect}`: take it as an argument, or move it up");
                findings.push(Finding { path: path.to_owned(), line, message });
            }
        }
    }
    findings
}

/// Tests and build scripts run beside the room.
fn is_beside(path: &str) -> bool {
    path.ends_with("/build.rs") || path.ends_with("/tests.rs") || path.contains("/tests/")
}

fn starts_word(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::check_with;

    #[test]
    fn an_effect_in_the_code_of_a_pure_floor_is_found() {
        let text = "//! tokio::spawn\nuse std::fs;\nfn now() { let t = \"std::env\"; MyInstant::now(); }\n\
                    #[cfg(test)]\nmod tests { use std::fs; }\n";
        let finding = "crates/engine/a/src/lib.rs:2: a pure floor uses `std::fs`: take it as an argument, or move it up";
        check_with(super::check, &[("crates/engine/a/src/lib.rs", text)], &[finding]);
    }

    #[test]
    fn higher_floors_tests_and_build_scripts_may_have_effects() {
        let text = "use std::fs;\n";
        for path in
            ["crates/plumb/a/src/lib.rs", "crates/ground/a/build.rs", "crates/ground/a/src/b/tests.rs"]
        {
            check_with(super::check, &[(path, text)], &[]);
        }
    }

    #[test]
    fn a_file_that_is_declared_for_tests_may_have_effects() {
        let door = "pub mod a;\n#[cfg(test)]\n#[rustfmt::skip]\nmod golden;\nmod after;\n";
        let files = [
            ("crates/engine/a/Cargo.toml", "[package]\nname = \"a\"\n"),
            ("crates/engine/a/src/lib.rs", door),
            ("crates/engine/a/src/golden.rs", "use std::fs;\nmod inner;\n"),
            ("crates/engine/a/src/golden/inner.rs", "use std::fs;\n"),
            ("crates/engine/a/src/after.rs", "use std::fs;\n"),
        ];
        let finding = "crates/engine/a/src/after.rs:1: a pure floor uses `std::fs`: take it as an argument, or move it up";
        check_with(super::check, &files, &[finding]);
    }

    #[test]
    fn a_crate_of_effects_is_no_dependency_of_a_pure_floor() {
        let text = "[package]\nname = \"a\"\n[dependencies]\nlibc.workspace = true\n[dev-dependencies]\ntokio = \"1\"\n";
        let finding =
            "crates/decide/a/Cargo.toml:4: a pure floor uses libc: move the effect to plumb or serve";
        check_with(super::check, &[("crates/decide/a/Cargo.toml", text)], &[finding]);
    }
}

//! Imports go strictly down, and every crate has the lints of the workspace.

use super::manifest::{Kind, Manifest, manifests};
use super::{Finding, Tree};
use std::collections::HashMap;

/// The floors, from the ground up.
pub(super) const FLOORS: [&str; 6] = ["ground", "engine", "decide", "plumb", "serve", "front"];
/// Rooms that tests of lower floors may use as fixtures: the real API server, and its types.
const FIXTURES: [&str; 2] = ["ambit-apiserver", "ambit-api"];
/// The first room of its floor, on which the others of the floor may stand: both only hand out words and tools that
/// every room would otherwise have to repeat.
const FOUNDATIONS: [&str; 2] = ["ambit-names", "ambit-runtime"];
/// Crates with lints of their own, and why: `plumb/linux` is the one room with unsafe code, so it lists the
/// workspace's lints without that one; `ground/proto` holds generated code, which has no comments.
const OWN_LINTS: [&str; 2] = ["crates/plumb/linux/Cargo.toml", "crates/ground/proto/Cargo.toml"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = manifests(tree);
    let by_name: HashMap<&str, &Manifest<'_>> = manifests.iter().map(|m| (m.name, m)).collect();
    let mut findings = Vec::new();
    for manifest in &manifests {
        lints(manifest, &mut findings);
        let Some(floor) = floor_of(manifest.path) else { continue };
        let Some(rank) = rank(floor) else {
            findings.push(finding(manifest, 1, format!("{floor:?} is no floor: use one of {FLOORS:?}")));
            continue;
        };
        for dependency in &manifest.dependencies {
            let Some(target) = by_name.get(dependency.name) else { continue };
            if dependency.kind == Kind::Dev && FIXTURES.contains(&dependency.name) {
                continue;
            }
            let target_floor = floor_of(target.path);
            let target_rank = target_floor.and_then(self::rank);
            let stands_on = FOUNDATIONS.contains(&dependency.name) && !FOUNDATIONS.contains(&manifest.name);
            if target_rank.is_some_and(|of_target| of_target < rank || (of_target == rank && stands_on)) {
                continue;
            }
            let place = target_floor.unwrap_or("outside the floors");
            let message = format!(
                "{} ({floor}) imports {} ({place}): imports go strictly down; move the code, or pass data",
                manifest.name, dependency.name
            );
            findings.push(finding(manifest, dependency.line, message));
        }
    }
    findings
}

fn finding(manifest: &Manifest<'_>, line: usize, message: String) -> Finding {
    Finding { path: manifest.path.to_owned(), line, message }
}

fn lints(manifest: &Manifest<'_>, findings: &mut Vec<Finding>) {
    if !manifest.workspace_lints && !OWN_LINTS.contains(&manifest.path) {
        let message = "the workspace's lints are not on: add `[lints]` with `workspace = true`".to_owned();
        findings.push(finding(manifest, 1, message));
    }
}

/// The floor's folder of a path in `crates/`.
pub(super) fn floor_of(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split('/').next()
}

/// How high a floor is.
pub(super) fn rank(floor: &str) -> Option<usize> {
    FLOORS.iter().position(|f| *f == floor)
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::check_with;

    fn package(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n[lints]\nworkspace = true\n{rest}")
    }

    #[track_caller]
    fn check(from: &str, dependency: &str, to: (&str, &str), expected: &[&str]) {
        let from_text = package("from", dependency);
        let to_text = package(to.1, "");
        let files = [(from, from_text.as_str()), (to.0, to_text.as_str())];
        check_with(super::check, &files, expected);
    }

    #[test]
    fn down_is_fine_and_sideways_or_up_is_not() {
        let (serve, plumb) = (("crates/serve/b/Cargo.toml", "b"), "crates/plumb/a/Cargo.toml");
        let plain = "[dependencies]\nb.workspace = true\n";
        check("crates/front/a/Cargo.toml", plain, serve, &[]);
        check(
            "crates/serve/a/Cargo.toml",
            plain,
            serve,
            &[
                "crates/serve/a/Cargo.toml:6: from (serve) imports b (serve): imports go strictly down; move the code, or pass data",
            ],
        );
        check(
            plumb,
            "[build-dependencies]\nb.workspace = true\n",
            serve,
            &[
                "crates/plumb/a/Cargo.toml:6: from (plumb) imports b (serve): imports go strictly down; move the code, or pass data",
            ],
        );
        check(
            plumb,
            plain,
            ("tests/b/Cargo.toml", "b"),
            &[
                "crates/plumb/a/Cargo.toml:6: from (plumb) imports b (outside the floors): imports go strictly down; move the code, or pass data",
            ],
        );
        check("tests/a/Cargo.toml", plain, serve, &[]);
    }

    #[test]
    fn tests_may_go_up_to_the_api_server_only() {
        let server = ("crates/serve/apiserver/Cargo.toml", "ambit-apiserver");
        let plumb = "crates/plumb/a/Cargo.toml";
        check(plumb, "[dev-dependencies]\nambit-apiserver.workspace = true\n", server, &[]);
        check(
            plumb,
            "[dependencies]\nambit-apiserver.workspace = true\n",
            server,
            &[
                "crates/plumb/a/Cargo.toml:6: from (plumb) imports ambit-apiserver (serve): imports go strictly down; move the code, or pass data",
            ],
        );
        check(
            plumb,
            "[dev-dependencies]\nb.workspace = true\n",
            ("crates/serve/b/Cargo.toml", "b"),
            &[
                "crates/plumb/a/Cargo.toml:6: from (plumb) imports b (serve): imports go strictly down; move the code, or pass data",
            ],
        );
    }

    #[test]
    fn the_rooms_of_a_floor_may_stand_on_its_foundation() {
        let runtime = ("crates/plumb/runtime/Cargo.toml", "ambit-runtime");
        check("crates/plumb/a/Cargo.toml", "[dependencies]\nambit-runtime.workspace = true\n", runtime, &[]);
        check(
            "crates/decide/a/Cargo.toml",
            "[dependencies]\nambit-runtime.workspace = true\n",
            runtime,
            &[
                "crates/decide/a/Cargo.toml:6: from (decide) imports ambit-runtime (plumb): imports go strictly down; move the code, or pass data",
            ],
        );
    }

    #[test]
    fn folders_are_floors_and_lints_are_on() {
        let files = [("crates/attic/a/Cargo.toml", "[package]\nname = \"a\"\n")];
        check_with(
            super::check,
            &files,
            &[
                "crates/attic/a/Cargo.toml:1: \"attic\" is no floor: use one of [\"ground\", \"engine\", \"decide\", \"plumb\", \"serve\", \"front\"]",
                "crates/attic/a/Cargo.toml:1: the workspace's lints are not on: add `[lints]` with `workspace = true`",
            ],
        );
        check_with(super::check, &[("crates/plumb/linux/Cargo.toml", "[package]\nname = \"l\"\n")], &[]);
        check_with(super::check, &[("Cargo.toml", "[workspace]\n")], &[]);
    }
}

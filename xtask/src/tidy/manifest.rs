//! The part of `Cargo.toml` that the checks look at, read line by line: packages here are written one key a line.

use super::Tree;

/// One manifest with a `[package]`.
#[derive(Debug, Default)]
pub(super) struct Manifest<'a> {
    pub(super) path: &'a str,
    pub(super) name: &'a str,
    pub(super) dependencies: Vec<Dependency<'a>>,
    pub(super) workspace_lints: bool,
    /// Values of `path` keys outside dependencies: roots of targets.
    pub(super) targets: Vec<&'a str>,
}

/// One dependency.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dependency<'a> {
    pub(super) name: &'a str,
    pub(super) kind: Kind,
    pub(super) line: usize,
}

/// What a dependency is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Dev,
    Build,
}

impl Manifest<'_> {
    /// Folder of the manifest, with a `/` at the end unless it is the root.
    pub(super) fn folder(&self) -> &str {
        self.path.strip_suffix("Cargo.toml").unwrap_or(self.path)
    }
}

/// All manifests with a `[package]`.
pub(super) fn manifests(tree: &Tree) -> Vec<Manifest<'_>> {
    tree.ending("Cargo.toml").map(|(path, text)| parse(path, text)).filter(|m| !m.name.is_empty()).collect()
}

fn parse<'a>(path: &'a str, text: &'a str) -> Manifest<'a> {
    let mut manifest = Manifest { path, ..Manifest::default() };
    let mut section = "";
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_matches(['[', ']']);
            if let Some((kind, name)) = section.split_once('.').and_then(|(s, n)| Some((kind_of(s)?, n))) {
                manifest.dependencies.push(Dependency { name, kind, line: index + 1 });
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) else { continue };
        let (key, value) = (key.trim(), value.trim().trim_matches('"'));
        if let Some(kind) = kind_of(section) {
            let name = key.split('.').next().unwrap_or(key);
            manifest.dependencies.push(Dependency { name, kind, line: index + 1 });
            continue;
        }
        match (section, key) {
            ("package", "name") => manifest.name = value,
            ("lints", "workspace") => manifest.workspace_lints = value == "true",
            ("lib" | "bin" | "test" | "bench" | "example", "path") => manifest.targets.push(value),
            _ => {}
        }
    }
    manifest
}

fn kind_of(section: &str) -> Option<Kind> {
    match section {
        "dependencies" => Some(Kind::Normal),
        "dev-dependencies" => Some(Kind::Dev),
        "build-dependencies" => Some(Kind::Build),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_dependencies_lints_and_targets_are_read() {
        let text = "[package]\nname = \"a\"\n[lib]\npath = \"x.rs\"\n[lints]\nworkspace = true\n\
                    [dependencies]\n# no = 1\nb.workspace = true\nc = { version = \"1\" }\n[dev-dependencies.d]\n\
                    version = \"1\"\n[[bin]]\nname = \"e\"\npath = \"src/e.rs\"\n";
        let manifest = parse("a/Cargo.toml", text);
        assert_eq!((manifest.name, manifest.folder(), manifest.workspace_lints), ("a", "a/", true));
        assert_eq!(manifest.targets, ["x.rs", "src/e.rs"]);
        let dependency = |name, kind, line| Dependency { name, kind, line };
        let expected = [
            dependency("b", Kind::Normal, 9),
            dependency("c", Kind::Normal, 10),
            dependency("d", Kind::Dev, 11),
        ];
        assert_eq!(manifest.dependencies, expected);
    }
}

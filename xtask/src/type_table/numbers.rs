//! Protobuf numbers of the built-in kinds' fields, as the tags of the published Go types have them. A small Go program
//! reflects on the types; nothing else tells which zeros are values of their own: those of pointers, and those that JSON
//! never omits.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::in_scratch_directory;

/// The program that prints one line per field: definition, JSON name, number.
const PROGRAM: &str = include_str!("numbers.go");
/// The version of the Go modules that belongs to the table's version of Kubernetes.
const VERSION: &str = "v0.35.0";
/// The packages whose types the program walks.
const PACKAGES: [&str; 4] = [
    "k8s.io/apimachinery/pkg/apis/meta/v1",
    "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1",
    "k8s.io/client-go/kubernetes/scheme",
    "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1",
];
/// Types of the table whose zero may be the same as absent.
const WITH_ZERO: [&str; 5] = ["bool", "int32", "int64", "number", "string"];

/// Numbers by definition and field.
pub(super) struct Numbers(HashMap<(String, String), String>);

impl Numbers {
    /// The word of a field's line, with a space before it; empty when the field has no protobuf form.
    pub(super) fn word(&self, definition: &str, field: &str, kind: &str) -> String {
        let Some(number) = self.0.get(&(definition.to_owned(), field.to_owned())) else {
            return String::new();
        };
        if WITH_ZERO.contains(&kind) { format!(" {number}") } else { format!(" {}", number.replace('?', "")) }
    }
}

/// The numbers of the published types.
pub(super) fn published() -> Result<Numbers> {
    parse(&in_scratch_directory("numbers", reflect)?)
}

fn reflect(directory: &Path) -> Result<String> {
    std::fs::write(directory.join("main.go"), PROGRAM)?;
    let go = |arguments: &[&str]| -> Result<Vec<u8>> {
        let output = Command::new("go")
            .args(arguments)
            .current_dir(directory)
            .stderr(Stdio::inherit())
            .output()
            .context("run go")?;
        ensure!(output.status.success(), "go {} failed", arguments.join(" "));
        Ok(output.stdout)
    };
    go(&["mod", "init", "numbers"])?;
    let packages = PACKAGES.map(|package| format!("{package}@{VERSION}"));
    go(&std::iter::once("get").chain(packages.iter().map(String::as_str)).collect::<Vec<_>>())?;
    String::from_utf8(go(&["run", "."])?).context("the numbers are not text")
}

fn parse(text: &str) -> Result<Numbers> {
    let mut numbers = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [definition, field, number] = words[..] else { bail!("not a line of numbers: {line}") };
        numbers.insert((definition.to_owned(), field.to_owned()), number.to_owned());
    }
    Ok(Numbers(numbers))
}

//! The CNI plugin: asks the node agent to capture a pod before its first process starts.
//! It never calls the Kubernetes API and never changes a network itself.

mod post;
mod verb;

use std::io::{Read, Write};
use std::process::ExitCode;

/// Largest configuration read from standard input. Real ones have a few kilobytes.
const INPUT_BYTES_MAX: u64 = 4 << 20;

fn main() -> ExitCode {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let environment = verb::Environment {
        command: variable("CNI_COMMAND"),
        container_id: variable("CNI_CONTAINERID"),
        netns: variable("CNI_NETNS"),
        interface: variable("CNI_IFNAME"),
        arguments: variable("CNI_ARGS"),
        notes: verb::Notes::default(),
    };
    let mut input = Vec::new();
    // What cannot be read is reported as an unreadable configuration.
    let _ = std::io::stdin().take(INPUT_BYTES_MAX).read_to_end(&mut input);
    let (text, code) = match verb::run(&environment, &input) {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(object) => (serde_json::to_string(&object).unwrap_or_default(), ExitCode::FAILURE),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

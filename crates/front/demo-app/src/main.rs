//! The demo workload: a small HTTP and TCP server and client in one static binary.
#![expect(clippy::print_stdout, reason = "its output is what it is for")]

mod client;
mod echo;
mod options;
mod server;

use nix::sys::signal::{SigSet, Signal};
use options::Verb;
use std::process::ExitCode;

/// Exit code of a process ended by SIGTERM, as a shell reports it.
const EXIT_TERMINATED: i32 = 143;
/// Exit code of a wrong command line.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let verb = match options::parse_verb(std::env::args().skip(1)) {
        Ok(verb) => verb,
        Err(message) => {
            eprintln!("{message}\n{}", options::USAGE);
            return ExitCode::from(EXIT_USAGE);
        }
    };
    end_on_signals();
    match verb {
        Verb::Serve { port, tcp_echo } => server::serve(port, tcp_echo),
        Verb::Get(get) => client::get(&get),
        Verb::Hold { address } => echo::hold(&address),
        Verb::Idle => loop {
            std::thread::park();
        },
        Verb::Exit { code } => ExitCode::from(code),
    }
}

/// Process 1 of a container gets no default signal handling: a thread waits for the signals and ends the process.
fn end_on_signals() {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    if let Err(e) = signals.thread_block() {
        eprintln!("cannot block signals: {e}");
        return;
    }
    std::thread::spawn(move || {
        if signals.wait().is_ok() {
            std::process::exit(EXIT_TERMINATED);
        }
    });
}

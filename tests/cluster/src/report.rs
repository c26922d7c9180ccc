//! What a check saw, and the lines shown for it.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

/// One check of the demo and how it went.
#[derive(Debug)]
pub struct Line {
    /// What should hold.
    pub promise: &'static str,
    /// What was seen, or why it does not hold.
    pub seen: Result<String, String>,
    /// How long the check took.
    pub took: Duration,
}

/// Collects the lines and prints each as it comes.
#[derive(Debug, Default)]
pub struct Report {
    lines: Vec<Line>,
}

impl Report {
    /// Shows and keeps one line.
    pub fn add(&mut self, line: Line) {
        show(&render(self.lines.len() + 1, &line, std::io::stdout().is_terminal()));
        self.lines.push(line);
    }

    /// The promises that were not held.
    pub fn broken(&self) -> Vec<&'static str> {
        self.lines.iter().filter(|l| l.seen.is_err()).map(|l| l.promise).collect()
    }

    /// How many checks were made.
    pub fn made(&self) -> usize {
        self.lines.len()
    }
}

/// Shows one line of progress.
pub fn progress(text: &str) {
    show(&format!("   {text}"));
}

#[expect(clippy::print_stdout, reason = "the demo's output is for a person at a terminal")]
fn show(text: &str) {
    println!("{text}");
}

fn render(number: usize, line: &Line, colour: bool) -> String {
    let (mark, text) = match &line.seen {
        Ok(seen) => (paint("held", "32", colour), seen),
        Err(why) => (paint("BROKEN", "31", colour), why),
    };
    let mut out = format!("{number:>2} {mark}  {} ({:.1} s)", line.promise, line.took.as_secs_f32());
    for seen in text.lines() {
        let _ = write!(out, "\n      {seen}");
    }
    out
}

fn paint(text: &str, code: &str, colour: bool) -> String {
    if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_promise_and_evidence() {
        let line = Line {
            promise: "names resolve",
            seen: Ok("10.96.0.7".into()),
            took: Duration::from_millis(1500),
        };
        assert_eq!(render(3, &line, false), " 3 held  names resolve (1.5 s)\n      10.96.0.7");
    }

    #[test]
    fn a_broken_line_counts() {
        let mut report = Report::default();
        report.add(Line { promise: "x", seen: Err("refused".into()), took: Duration::ZERO });
        assert_eq!((report.broken(), report.made()), (vec!["x"], 1));
    }
}

//! The harness: repeats work, keeps every sample, and tells the quantiles.

use ambit_runtime::Clock;
use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use std::fmt::Write as _;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

/// Samples taken before the ones that count: caches and the allocator settle.
const WARM_UP_SAMPLES: usize = 3;

/// The result of one benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Measurement {
    /// `room/what`.
    pub(crate) name: String,
    /// Its figures, for one piece of work; none if it could not run here.
    pub(crate) figures: Option<Figures>,
    /// What was measured when it is not time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// Pieces of work done in a second, when several were done at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) per_second: Option<u64>,
    /// Why it could not run.
    pub(crate) skipped: Option<String>,
}

impl Measurement {
    fn named(name: &str) -> Self {
        Self { name: name.to_owned(), figures: None, bytes: None, per_second: None, skipped: None }
    }
}

/// Durations in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Figures {
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) min_ns: u64,
    pub(crate) samples: usize,
}

/// The benchmarks that were asked for, and their results.
#[derive(Debug)]
pub(crate) struct Suite {
    filter: Option<String>,
    done: Vec<Measurement>,
}

impl Suite {
    pub(crate) fn new(filter: Option<String>) -> Self {
        Self { filter, done: Vec::new() }
    }

    /// Whether `name` was asked for.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.filter.as_deref().is_none_or(|part| name.contains(part))
    }

    /// Measures `work`, `samples` times; a sample does it `repeat` times, so that short work is not lost in the clock.
    pub(crate) fn bench<T>(&mut self, name: &str, samples: usize, repeat: u32, mut work: impl FnMut() -> T) {
        if !self.wants(name) {
            return;
        }
        let sample = || {
            let start = Clock.now();
            for _ in 0..repeat {
                black_box(work());
            }
            Clock.now().duration_since(start) / repeat
        };
        let all = std::iter::repeat_with(sample).take(WARM_UP_SAMPLES + samples);
        self.record(name, all.skip(WARM_UP_SAMPLES).collect());
    }

    /// Keeps samples that were measured elsewhere.
    pub(crate) fn record(&mut self, name: &str, samples: Vec<Duration>) {
        self.done.push(Measurement { figures: figures(samples), ..Measurement::named(name) });
    }

    /// Keeps samples of work that was done by several at once, in `took` altogether.
    pub(crate) fn record_rate(&mut self, name: &str, samples: Vec<Duration>, took: Duration) {
        let per_second =
            u128::try_from(samples.len()).ok().map(|n| n * 1_000_000_000 / took.as_nanos().max(1));
        let per_second = per_second.and_then(|rate| u64::try_from(rate).ok());
        self.done.push(Measurement { figures: figures(samples), per_second, ..Measurement::named(name) });
    }

    /// Keeps the mean share of one of many equal pieces of work in a time that was measured for all.
    pub(crate) fn record_each(&mut self, name: &str, all: Duration, pieces: usize) {
        if self.wants(name) {
            let one = all / u32::try_from(pieces.max(1)).unwrap_or(u32::MAX);
            self.record(name, vec![one]);
        }
    }

    /// The path of a program that benchmarks need; `None`, and they have no result, if it was not built.
    pub(crate) fn program(&mut self, path: PathBuf, needed_by: &[impl AsRef<str>]) -> Option<PathBuf> {
        if path.exists() {
            return Some(path);
        }
        let why = format!("{} does not exist: run `make programs`", path.display());
        needed_by.iter().for_each(|name| self.skip(name.as_ref(), &why));
        None
    }

    /// Says why a benchmark has no result.
    pub(crate) fn skip(&mut self, name: &str, why: impl ToString) {
        self.done.push(Measurement { skipped: Some(why.to_string()), ..Measurement::named(name) });
    }

    /// Keeps an amount of memory.
    pub(crate) fn record_bytes(&mut self, name: &str, bytes: u64) {
        if self.wants(name) {
            self.done.push(Measurement { bytes: Some(bytes), ..Measurement::named(name) });
        }
    }

    /// The results, in the order in which they were made.
    pub(crate) fn finish(self) -> Result<Vec<Measurement>> {
        match self.filter {
            Some(filter) if self.done.is_empty() => bail!("no benchmark has {filter:?} in its name"),
            _ => Ok(self.done),
        }
    }
}

fn figures(mut samples: Vec<Duration>) -> Option<Figures> {
    samples.sort();
    let nanoseconds = |duration: &Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let quantile = |percent: usize| samples.get((samples.len() * percent).div_ceil(100).saturating_sub(1));
    Some(Figures {
        p50_ns: nanoseconds(quantile(50)?),
        p99_ns: nanoseconds(quantile(99)?),
        min_ns: nanoseconds(samples.first()?),
        samples: samples.len(),
    })
}

/// The results for people.
pub(crate) fn table(measurements: &[Measurement]) -> String {
    let mut text = format!(
        "{:<48}{:>12}{:>12}{:>12}{:>9}{:>10}\n",
        "benchmark", "p50", "p99", "min", "samples", "per s"
    );
    for Measurement { name, figures, bytes, per_second, skipped } in measurements {
        // Writing to a string cannot fail.
        let _ = match (figures, bytes) {
            (_, Some(bytes)) => writeln!(text, "{name:<48}{:>12}", amount(*bytes)),
            (Some(f), None) => writeln!(
                text,
                "{name:<48}{:>12}{:>12}{:>12}{:>9}{:>10}",
                shown(f.p50_ns),
                shown(f.p99_ns),
                shown(f.min_ns),
                f.samples,
                per_second.map_or(String::new(), |rate| rate.to_string())
            ),
            (None, None) => {
                writeln!(text, "{name:<48}  skipped: {}", skipped.as_deref().unwrap_or("no samples"))
            }
        };
    }
    text
}

/// Bytes with a unit.
fn amount(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes / 1_048_576),
    }
}

/// Three digits and a unit.
fn shown(nanoseconds: u64) -> String {
    let (divisor, unit) = match nanoseconds {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let (whole, thousandths) = (nanoseconds / divisor, nanoseconds % divisor * 1000 / divisor);
    match whole {
        _ if divisor == 1 => format!("{whole} {unit}"),
        0..10 => format!("{whole}.{:02} {unit}", thousandths / 10),
        10..100 => format!("{whole}.{} {unit}", thousandths / 100),
        _ => format!("{whole} {unit}"),
    }
}

/// Resident bytes of this process.
pub(crate) fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Bytes of memory that belong to a process, shared pages counted in part.
pub(crate) fn proportional(process: u32) -> Result<u64> {
    let rollup = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(samples: impl IntoIterator<Item = u64>, expected: Option<(u64, u64, u64)>) {
        let figures = figures(samples.into_iter().map(Duration::from_nanos).collect());
        assert_eq!(figures.map(|f| (f.p50_ns, f.p99_ns, f.min_ns)), expected);
    }

    #[test]
    fn quantiles_are_samples() {
        check([], None);
        check([7], Some((7, 7, 7)));
        check((1..=100).rev(), Some((50, 99, 1)));
        check(1..=1000, Some((500, 990, 1)));
    }

    #[test]
    fn durations_have_three_digits() {
        let all = [7, 1_500, 12_345, 999_999, 1_000_000, 123_456_789, 2_000_000_000].map(shown);
        assert_eq!(all, ["7 ns", "1.50 µs", "12.3 µs", "999 µs", "1.00 ms", "123 ms", "2.00 s"]);
    }

    #[test]
    fn what_was_not_asked_for_does_not_run() {
        let mut suite = Suite::new(Some("dns".into()));
        suite.bench("services/render", 1, 1, || panic!("it ran"));
        assert!(suite.finish().is_err());
    }
}

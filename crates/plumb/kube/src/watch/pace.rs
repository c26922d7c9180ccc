//! How long to wait before the server is asked again: no answer, however wrong, makes an informer ask without a pause.

use crate::error::WatchError;
use ambit_runtime::Backoff;
use std::time::Duration;

/// First delay after a failure.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
/// Longest delay between attempts: an API server that is back is noticed within this.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);
/// Longest delay while access is denied: a token or a role that comes is noticed within this, and a server is not
/// bothered by a client that it has turned away.
const DENIED_DELAY_MAX: Duration = Duration::from_secs(30);
/// Longest delay that a server's `Retry-After` is obeyed for: an hour would be an outage by header.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Watches that fail in a row before a list: a server that lost its store may know the revision no more, and one that
/// never lets us watch is at least read from time to time.
const FAILURES_MAX: u32 = 3;

/// Keeps count of what went wrong since something was learnt from the server.
#[derive(Debug)]
pub(super) struct Pace {
    failed: Backoff,
    denied: Backoff,
    failures: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            failed: Backoff::new(RETRY_DELAY_MIN, RETRY_DELAY_MAX),
            denied: Backoff::new(RETRY_DELAY_MIN, DENIED_DELAY_MAX),
            failures: 0,
        }
    }
}

impl Pace {
    /// Starts over: the server told something new. A list alone is no reason, as one may succeed for ever beside
    /// watches that never do.
    pub(super) fn progressed(&mut self) {
        *self = Self::default();
    }

    /// The delay after this failure.
    pub(super) fn after(&mut self, error: &WatchError) -> Duration {
        let asked = error.retry_after().unwrap_or_default().min(RETRY_AFTER_MAX);
        let backoff =
            if matches!(error.code(), Some(401 | 403)) { &mut self.denied } else { &mut self.failed };
        backoff.next_delay().max(asked)
    }

    /// Counts a watch that failed. Whether so many have failed that what is known is better listed anew; counts from
    /// the beginning then. A server that is too busy to watch is too busy to list.
    pub(super) fn doubts(&mut self, error: &WatchError) -> bool {
        self.failures += u32::from(error.code() != Some(429));
        let doubts = self.failures >= FAILURES_MAX;
        if doubts {
            self.failures = 0;
        }
        doubts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: u16, retry_after: Option<u64>) -> WatchError {
        let retry_after = retry_after.map(Duration::from_secs);
        WatchError::Refused { code, message: String::new(), retry_after }
    }

    /// Delays in milliseconds after failures in a row.
    #[track_caller]
    fn check(error: &WatchError, expected: &[u64]) {
        let mut pace = Pace::default();
        let seen: Vec<u128> = expected.iter().map(|_| pace.after(error).as_millis()).collect();
        assert_eq!(seen, expected.iter().map(|ms| u128::from(*ms)).collect::<Vec<_>>());
        pace.progressed();
        assert_eq!(pace.after(error).as_millis(), u128::from(expected[0]));
    }

    #[test]
    fn delays_grow_to_a_limit_and_obey_the_server_within_one() {
        check(&WatchError::EndedAtOnce, &[50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        check(&refusal(410, None), &[50, 100, 200]);
        let to_denied_max = [50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000];
        check(&refusal(401, None), &to_denied_max);
        check(&refusal(403, None), &to_denied_max);
        check(&refusal(429, Some(2)), &[2000, 2000, 2000, 2000, 2000, 2000, 3200, 5000]);
        check(&refusal(503, Some(3600)), &[60_000, 60_000]);
    }

    #[test]
    fn watches_that_fail_raise_a_doubt_now_and_then_but_not_those_of_a_busy_server() {
        let doubts = |error: &WatchError| {
            let mut pace = Pace::default();
            (0..6).filter(|_| pace.doubts(error)).count()
        };
        assert_eq!(doubts(&refusal(504, None)), 2);
        assert_eq!(doubts(&refusal(403, None)), 2);
        assert_eq!(doubts(&WatchError::EndedAtOnce), 2);
        assert_eq!(doubts(&refusal(429, None)), 0);
    }
}

//! The one place that reads the clock and the source of randomness.

use std::time::{Instant, SystemTime};

/// Reads the system's clocks. Passed to whatever needs the time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock;

impl Clock {
    /// Monotonic time.
    #[expect(clippy::disallowed_methods, reason = "this is the clock that others are given")]
    pub fn now(self) -> Instant {
        Instant::now()
    }

    /// Wall-clock time.
    #[expect(clippy::disallowed_methods, reason = "this is the clock that others are given")]
    pub fn wall(self) -> SystemTime {
        SystemTime::now()
    }

    /// Wall-clock time as an API timestamp.
    pub fn timestamp(self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }
}

/// Hands out random number generators.
#[derive(Debug, Clone, Copy, Default)]
pub struct Entropy;

impl Entropy {
    /// A generator of this thread, seeded by the system.
    #[expect(clippy::disallowed_methods, reason = "this is the source that others are given")]
    pub fn rng(self) -> rand::rngs::ThreadRng {
        rand::rng()
    }
}

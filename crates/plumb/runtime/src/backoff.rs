//! Exponential delays between attempts.

use std::time::Duration;

/// Exponential delays: `first`, doubled after each attempt up to `max`.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Delays from `first` up to `max`.
    pub fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next: first }
    }

    /// The delay before the next attempt; doubles the one after it.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = self.next.saturating_mul(2).min(self.max);
        delay
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_limit_and_starts_over() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(10), ms(35));
        assert_eq!([backoff.next_delay(), backoff.next_delay()], [ms(10), ms(20)]);
        assert_eq!([backoff.next_delay(), backoff.next_delay()], [ms(35), ms(35)]);
        backoff.reset();
        assert_eq!(backoff.next_delay(), ms(10));
    }
}

//! Waiting for something that another process does.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// Pause between two looks.
pub(crate) const POLL: Duration = Duration::from_millis(100);
/// Pause between two looks where the time itself is what is shown.
pub(crate) const POLL_TIMED: Duration = Duration::from_millis(20);

/// What a look saw.
#[derive(Debug)]
pub(crate) enum Seen<T> {
    /// What was waited for.
    Done(T),
    /// Something else, to be told if the time is over.
    NotYet(String),
}

/// Looks again and again until what is waited for is seen.
///
/// # Errors
/// A look failed, or the time was over: the message says what was waited for and what was seen last.
#[expect(clippy::disallowed_methods, reason = "the demo's deadlines are a user's")]
pub(crate) async fn until<T>(
    what: &str,
    limit: Duration,
    pause: Duration,
    mut look: impl AsyncFnMut() -> Result<Seen<T>>,
) -> Result<T> {
    let asked = Instant::now();
    loop {
        match look().await? {
            Seen::Done(done) => return Ok(done),
            Seen::NotYet(seen) if asked.elapsed() > limit => {
                bail!("{what}: not within {limit:?}; last seen: {seen}")
            }
            Seen::NotYet(_) => tokio::time::sleep(pause).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_look_is_told_when_the_time_is_over() {
        let mut looks = 0;
        let error = until::<()>("a sign", Duration::ZERO, Duration::ZERO, async || {
            looks += 1;
            Ok(Seen::NotYet(format!("look {looks}")))
        });
        let error = error.await.unwrap_err().to_string();
        assert!(error.starts_with("a sign: not within 0ns; last seen: look "), "{error}");
    }

    #[tokio::test]
    async fn what_was_waited_for_ends_the_wait() {
        let mut looks = 0;
        let third = until("three", Duration::from_secs(60), Duration::ZERO, async || {
            looks += 1;
            Ok(if looks == 3 { Seen::Done(looks) } else { Seen::NotYet(String::new()) })
        });
        assert_eq!(third.await.unwrap(), 3);
    }
}

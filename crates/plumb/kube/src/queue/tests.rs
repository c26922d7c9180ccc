use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Long enough for any machine; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
#[error("broken")]
struct Broken;

fn state() -> (State<&'static str>, Instant) {
    (State::new(), Clock.now())
}

fn taken(state: &mut State<&'static str>, now: Instant) -> Option<&'static str> {
    match state.take(now) {
        Taken::Key(key) => Some(key),
        Taken::Wait(_) => None,
    }
}

#[test]
fn a_key_waits_once_and_runs_alone() {
    let (mut state, now) = state();
    state.add("a");
    state.add("a");
    state.add("b");
    assert_eq!(taken(&mut state, now), Some("a"));
    state.add("a");
    assert_eq!(taken(&mut state, now), Some("b"));
    assert_eq!(taken(&mut state, now), None, "a is wanted again but still running");
    state.succeed(&"a", Next::Done, now);
    assert_eq!(taken(&mut state, now), Some("a"));
    state.succeed(&"a", Next::Done, now);
    assert_eq!(taken(&mut state, now), None);
}

#[test]
fn the_earliest_time_counts_and_an_add_overtakes_it() {
    let (mut state, now) = state();
    let at = |s| now + Duration::from_secs(s);
    state.add_at("a", at(9));
    state.add_at("a", at(2));
    state.add_at("a", at(5));
    assert_eq!(taken(&mut state, at(1)), None);
    assert_eq!(taken(&mut state, at(2)), Some("a"));
    state.succeed(&"a", Next::After(Duration::from_secs(7)), at(2));
    state.add("a");
    assert_eq!(taken(&mut state, at(2)), Some("a"));
    state.succeed(&"a", Next::Done, at(2));
    assert!(matches!(state.take(at(2)), Taken::Wait(None)), "the old time is gone");
}

#[test]
fn failures_grow_the_delay_up_to_its_bound_and_a_success_starts_over() {
    let (mut state, now) = state();
    let mut delays = Vec::new();
    let mut at = now;
    for _ in 0..12 {
        state.add("a");
        assert_eq!(taken(&mut state, at), Some("a"));
        let (_, delay) = state.fail(&"a", at);
        delays.push(delay.as_millis());
        at += delay;
        assert_eq!(taken(&mut state, at), Some("a"));
        state.release(&"a");
    }
    assert_eq!(delays, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000]);
    state.add("a");
    assert_eq!(taken(&mut state, at), Some("a"));
    state.succeed(&"a", Next::Done, at);
    assert_eq!(state.fail(&"a", at), (1, Duration::from_millis(5)));
}

#[test]
fn many_failing_keys_share_one_rate() {
    let mut state = State::new();
    let now = Clock.now();
    let delays: Vec<Duration> =
        (0..RETRY_BURST + RETRIES_PER_SECOND).map(|key| state.fail(&key, now).1).collect();
    assert_eq!(delays[0], RETRY_DELAY_MIN);
    assert_eq!(delays.last(), Some(&Duration::from_secs(1)));
}

#[tokio::test]
async fn runs_keys_side_by_side_within_the_bound_and_retries_what_failed() {
    let queue = Queue::with_workers("test", 2);
    for key in 0..6 {
        queue.add(key);
    }
    let [running, peak, calls, failed] = [const { AtomicUsize::new(0) }; 4];
    let stop = Shutdown::new();
    let work = queue.run(
        |key: i32| {
            let (running, peak, calls, failed, stop) = (&running, &peak, &calls, &failed, stop.clone());
            async move {
                peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                let call = calls.fetch_add(1, Ordering::SeqCst);
                if call == 6 {
                    stop.cancel();
                }
                if key == 0 && failed.fetch_add(1, Ordering::SeqCst) == 0 {
                    Err(Broken)
                } else {
                    Ok(Next::Done)
                }
            }
        },
        &stop,
    );
    tokio::time::timeout(PATIENCE, work).await.expect("seven calls");
    assert_eq!((calls.into_inner(), peak.into_inner()), (7, 2));
    assert!(queue.is_empty());
}

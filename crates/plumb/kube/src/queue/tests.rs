use super::state::{RETRIES_PER_SECOND, RETRY_BURST, RETRY_DELAY_MIN};
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
        Taken::Key { key, .. } => Some(key),
        Taken::Wait(_) => None,
    }
}

#[test]
fn a_key_waits_once_and_runs_alone() {
    let (mut state, now) = state();
    state.add("a", now);
    state.add("a", now);
    state.add("b", now);
    assert_eq!(taken(&mut state, now), Some("a"));
    state.add("a", now);
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
    state.add("a", now);
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
        state.add("a", now);
        assert_eq!(taken(&mut state, at), Some("a"));
        let delay = state.fail(&"a", at, None).1.expect("no limit of attempts");
        delays.push(delay.as_millis());
        at += delay;
        assert_eq!(taken(&mut state, at), Some("a"));
        state.release(&"a", at);
    }
    assert_eq!(delays, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000]);
    state.add("a", now);
    assert_eq!(taken(&mut state, at), Some("a"));
    state.succeed(&"a", Next::Done, at);
    assert_eq!(state.fail(&"a", at, None), (1, Some(Duration::from_millis(5))));
}

#[test]
fn many_failing_keys_share_one_rate() {
    let mut state = State::new();
    let now = Clock.now();
    let delays: Vec<Duration> =
        (0..RETRY_BURST + RETRIES_PER_SECOND).filter_map(|key| state.fail(&key, now, None).1).collect();
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

#[test]
fn a_key_is_given_up_after_its_attempts_and_starts_over_when_added_again() {
    let (mut state, now) = state();
    let far = now + Duration::from_secs(60);
    state.add("a", now);
    for expected in [(1, true), (2, true), (3, false)] {
        assert_eq!(taken(&mut state, far), Some("a"));
        let (failures, delay) = state.fail(&"a", now, Some(3));
        assert_eq!((failures, delay.is_some()), expected);
    }
    assert_eq!((taken(&mut state, far), state.len()), (None, 0));
    state.add("a", far);
    assert_eq!(taken(&mut state, far), Some("a"));
    assert_eq!(state.fail(&"a", far, Some(3)).0, 1);
}

#[test]
fn a_forgotten_key_has_neither_failures_nor_a_time() {
    let (mut state, now) = state();
    state.add("a", now);
    assert_eq!(taken(&mut state, now), Some("a"));
    state.fail(&"a", now, None);
    state.forget(&"a");
    assert_eq!((state.len(), taken(&mut state, now + Duration::from_secs(9))), (0, None));
}

/// Runs a queue with keys `0..3` until it has handled so many calls; returns whether it had caught up before each.
async fn caught_up_before(
    settings: QueueSettings<i32>,
    calls: usize,
    fail: fn(i32) -> bool,
) -> Vec<(i32, bool)> {
    let queue = Queue::with(settings.workers(1));
    (0..3).for_each(|key| queue.add(key));
    let (seen, stop) = (Mutex::new(Vec::new()), Shutdown::new());
    let work = queue.run(
        |key| {
            let mut all = seen.lock().unwrap();
            all.push((key, queue.has_caught_up()));
            if all.len() == calls {
                stop.cancel();
            } else if key == 2 && all.len() == 3 {
                queue.add(3);
            }
            let failed = fail(key);
            async move {
                assert!(key != 1 || !failed, "a bad key");
                if failed { Err(Broken) } else { Ok(Next::Done) }
            }
        },
        &stop,
    );
    tokio::time::timeout(PATIENCE, work).await.expect("all calls");
    seen.into_inner().unwrap()
}

#[tokio::test]
async fn it_has_caught_up_once_all_that_was_there_has_been_handled() {
    let seen = caught_up_before(QueueSettings::new("test"), 4, |_| false).await;
    assert_eq!(seen, [(0, false), (1, false), (2, false), (3, true)]);
    let queue = Queue::<i32>::new("empty");
    let stop = Shutdown::new();
    let work = queue.run(async |_| Ok::<_, Broken>(Next::Done), &stop);
    tokio::select! {
        () = work => panic!("it works until shutdown"),
        () = queue.caught_up() => {}
    }
}

#[tokio::test]
async fn failures_and_panics_count_as_handled_and_lose_nothing() {
    let given_up = Arc::new(Mutex::new(Vec::new()));
    let (told, metrics) = (given_up.clone(), QueueMetrics::default());
    let settings = QueueSettings::new("test")
        .attempts(2)
        .metrics(&metrics)
        .on_give_up(move |key, error| told.lock().unwrap().push(format!("{key}: {error}")));
    let seen = caught_up_before(settings, 7, |key| key < 3).await;
    let first: Vec<i32> = seen.iter().take(3).map(|(key, _)| *key).collect();
    let mut rest: Vec<i32> = seen.iter().skip(3).map(|(key, _)| *key).collect();
    rest.sort_unstable();
    assert_eq!((first, rest), (vec![0, 1, 2], vec![0, 1, 2, 3]));
    assert!(seen[3..].iter().all(|(_, caught_up)| *caught_up), "{seen:?}");
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in ["workqueue_adds_total{name=\"test\"} 4", "workqueue_retries_total{name=\"test\"} 3"] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    let given_up = given_up.lock().unwrap();
    assert!(given_up.contains(&"1: the handler panicked: a bad key".to_owned()), "{given_up:?}");
}

#[tokio::test]
async fn nothing_is_handed_out_before_the_informers_have_synced() {
    let (synced, when) = Synced::scripted();
    let queue = Queue::with(QueueSettings::new("test").after([synced]));
    queue.add(1);
    let (stop, handled) = (Shutdown::new(), AtomicUsize::new(0));
    let work = queue.run(
        |_| {
            handled.fetch_add(1, Ordering::SeqCst);
            stop.cancel();
            async { Ok::<_, Broken>(Next::Done) }
        },
        &stop,
    );
    let mut work = std::pin::pin!(work);
    assert!(futures::poll!(&mut work).is_pending());
    assert_eq!((handled.load(Ordering::SeqCst), queue.has_caught_up()), (0, false));
    when.send_replace(true);
    tokio::time::timeout(PATIENCE, work).await.expect("it works now");
    assert_eq!(handled.load(Ordering::SeqCst), 1);
}

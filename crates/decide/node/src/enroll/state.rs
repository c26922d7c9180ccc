//! The capture state of a pod: what was asked for, what is, and why.

use super::Decision;
use std::fmt;

/// Whether a pod is to be captured, as shown to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// It is to be captured.
    Captured,
    /// It is to be left alone.
    LeftAlone,
    /// Its namespace is not known yet.
    Undecided,
}

impl Wanted {
    /// The word for tables and answers.
    pub const fn word(self) -> &'static str {
        match self {
            Wanted::Captured => "captured",
            Wanted::LeftAlone => "left-alone",
            Wanted::Undecided => "undecided",
        }
    }
}

/// What is true of a pod's capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Its rules are in place and a proxy has taken it over.
    Captured,
    /// Its rules are in place, and no proxy has taken it over: it has no traffic.
    Pending,
    /// It is to be captured, and is not.
    Failed,
    /// It has no address yet; it is captured when its network is made.
    Starting,
    /// It is not captured, and is not to be.
    LeftAlone,
    /// It is not to be captured any more, and its release has not succeeded.
    Releasing,
    /// Nothing is known of its namespace.
    Undecided,
}

impl State {
    /// All states, each of which has its own time series.
    pub const ALL: [State; 7] = [
        State::Captured,
        State::Pending,
        State::Failed,
        State::Starting,
        State::LeftAlone,
        State::Releasing,
        State::Undecided,
    ];

    /// The word for tables, answers and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            State::Captured => "captured",
            State::Pending => "pending",
            State::Failed => "failed",
            State::Starting => "starting",
            State::LeftAlone => "left-alone",
            State::Releasing => "releasing",
            State::Undecided => "undecided",
        }
    }

    /// Whether something other than what was asked for is true, and people should hear of it.
    pub const fn is_amiss(self) -> bool {
        matches!(self, State::Pending | State::Failed | State::Releasing)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// What came of the last work on a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// Whether the pod has an address.
    pub has_address: bool,
    /// Whether a proxy has taken it over; none if the agent has not enrolled it.
    pub handed_over: Option<bool>,
    /// Why the last work failed.
    pub problem: Option<&'a str>,
}

/// What to show of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// What was asked for.
    pub wanted: Wanted,
    /// What is true.
    pub state: State,
    /// Why: the rule of the decision, or what went wrong.
    pub reason: String,
}

/// Puts the decision about a pod and what came of it together.
pub fn describe(decision: Decision, outcome: Outcome<'_>) -> Capture {
    let (wanted, rule) = match decision {
        Decision::Capture(reason) => (Wanted::Captured, reason.to_string()),
        Decision::LeaveAlone(reason) => (Wanted::LeftAlone, reason.to_string()),
        Decision::Unknown => (Wanted::Undecided, "the pod's namespace is not known yet".to_owned()),
    };
    let state = match (wanted, outcome.handed_over, outcome.problem) {
        (Wanted::Undecided, ..) => State::Undecided,
        (Wanted::LeftAlone, None, None) => State::LeftAlone,
        (Wanted::LeftAlone, ..) => State::Releasing,
        (Wanted::Captured, Some(true), None) => State::Captured,
        (Wanted::Captured, Some(false), _) => State::Pending,
        // A pod that is captured but whose probes or annotation are not in order is not what was asked for.
        (Wanted::Captured, Some(true), Some(_)) => State::Failed,
        (Wanted::Captured, None, None) if !outcome.has_address => State::Starting,
        (Wanted::Captured, None, _) => State::Failed,
    };
    let reason = match outcome.problem {
        Some(problem) => problem.to_owned(),
        None if state == State::Pending => "no node proxy has taken the pod over yet".to_owned(),
        None => rule,
    };
    Capture { wanted, state, reason }
}

/// Whether a pod may not use the network until it is captured, where pods are kept off it.
pub fn is_kept_off(decision: Decision, handed_over: Option<bool>) -> bool {
    matches!(decision, Decision::Capture(_)) && handed_over != Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enroll::Reason;

    const CAPTURE: Decision = Decision::Capture(Reason::PodLabel);
    const LEAVE: Decision = Decision::LeaveAlone(Reason::Ended);

    #[track_caller]
    fn check(
        decision: Decision,
        handed_over: Option<bool>,
        problem: Option<&str>,
        state: State,
        reason: &str,
    ) {
        let shown = describe(decision, Outcome { has_address: true, handed_over, problem });
        assert_eq!((shown.state, shown.reason.as_str()), (state, reason));
    }

    #[test]
    fn the_state_follows_from_the_decision_and_what_came_of_it() {
        let labelled = "the pod is labelled istio.io/dataplane-mode=ambient";
        check(CAPTURE, Some(true), None, State::Captured, labelled);
        check(CAPTURE, Some(true), Some("no set"), State::Failed, "no set");
        check(CAPTURE, Some(false), Some("no proxy"), State::Pending, "no proxy");
        check(CAPTURE, Some(false), None, State::Pending, "no node proxy has taken the pod over yet");
        check(CAPTURE, None, Some("no process"), State::Failed, "no process");
        check(CAPTURE, None, None, State::Failed, labelled);
        check(LEAVE, None, None, State::LeftAlone, "the pod has ended");
        check(LEAVE, Some(true), Some("busy"), State::Releasing, "busy");
        check(LEAVE, None, Some("busy"), State::Releasing, "busy");
        check(Decision::Unknown, None, None, State::Undecided, "the pod's namespace is not known yet");
        let without = Outcome { has_address: false, handed_over: None, problem: None };
        assert_eq!(describe(CAPTURE, without).state, State::Starting);
    }

    #[test]
    fn only_eligible_pods_without_a_proxy_are_kept_off_the_network() {
        for (decision, handed_over, expected) in [
            (CAPTURE, None, true),
            (CAPTURE, Some(false), true),
            (CAPTURE, Some(true), false),
            (LEAVE, None, false),
            (LEAVE, Some(false), false),
            (Decision::Unknown, None, false),
        ] {
            assert_eq!(is_kept_off(decision, handed_over), expected, "{decision:?} {handed_over:?}");
        }
    }

    #[test]
    fn states_have_words_of_their_own() {
        let words: std::collections::BTreeSet<_> = State::ALL.iter().map(|state| state.word()).collect();
        assert_eq!(words.len(), State::ALL.len());
    }
}

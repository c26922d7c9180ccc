//! When to write again a configuration that somebody else keeps rewriting, and who that may be.

use crate::list::plugin_types;
use std::collections::VecDeque;
use std::time::Duration;

/// Repairs within [`WINDOW`] after which another writer is at work: chance and upgrades need fewer.
pub const REPAIRS_MAX: usize = 5;
/// Time within which repairs are counted.
pub const WINDOW: Duration = Duration::from_secs(10);
/// Time without any change after which a contested file is repaired: well within the second in which a repair is due
/// once the other writer has stopped, and the shortest time between two repairs of a contested file.
pub const QUIET: Duration = Duration::from_millis(500);
/// Time that our entry must stay before the contest is over.
pub const PEACE: Duration = Duration::from_secs(10);

/// What to do about a file that lost the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Write it.
    Write,
    /// Look again after this time.
    Wait(Duration),
}

/// The history of the repairs. Times count from any fixed moment.
#[derive(Debug, Clone, Default)]
pub struct Rivalry {
    repairs: VecDeque<Duration>,
    changed_at: Duration,
    contested: bool,
}

impl Rivalry {
    /// Notes that something in the directory changed that we did not write.
    pub fn note_change(&mut self, now: Duration) {
        self.changed_at = now;
    }

    /// Whether another writer is at work.
    pub fn is_contested(&self) -> bool {
        self.contested
    }

    /// The entry is missing: may it be written? A contest begins here.
    pub fn lost(&mut self, now: Duration) -> Move {
        self.forget_before(now);
        self.contested |= self.repairs.len() >= REPAIRS_MAX;
        let quiet = now.saturating_sub(self.changed_at);
        if self.contested && quiet < QUIET {
            return Move::Wait(QUIET - quiet);
        }
        self.repairs.push_back(now);
        // The oldest ones say nothing more than that there were enough.
        if self.repairs.len() > REPAIRS_MAX {
            self.repairs.pop_front();
        }
        Move::Write
    }

    /// The entry is in place. Returns whether a contest has ended with it.
    pub fn held(&mut self, now: Duration) -> bool {
        let since = self.repairs.back().map_or(Duration::ZERO, |last| now.saturating_sub(*last));
        let over = self.contested && since >= PEACE;
        if over {
            *self = Self::default();
        }
        over
    }

    /// When a held file must be looked at again for the contest to end.
    pub fn peace_in(&self, now: Duration) -> Option<Duration> {
        let last = *self.repairs.back().filter(|_| self.contested)?;
        Some((last + PEACE).saturating_sub(now))
    }

    fn forget_before(&mut self, now: Duration) {
        while self.repairs.front().is_some_and(|at| now.saturating_sub(*at) > WINDOW) {
            self.repairs.pop_front();
        }
    }
}

/// Plugins that are known to keep their configuration as they wrote it: the type or a part of the file's name, the
/// program that writes, and what to set so that it lets others in.
const WRITERS: [(&str, &str, &str); 9] = [
    (
        "istio-cni",
        "istio-cni (install-cni)",
        "remove the istio-cni DaemonSet from this node: one agent serves a node",
    ),
    ("cilium", "the Cilium agent", "set its Helm value cni.exclusive=false"),
    ("multus", "Multus", "set the agent's --cni-own-file, or Multus' --multus-conf-file to a fixed file"),
    ("calico", "the Calico installer", "set the agent's --cni-own-file"),
    ("aws", "the AWS VPC CNI", "set the agent's --cni-own-file"),
    ("azure", "the Azure CNI", "set the agent's --cni-own-file"),
    ("ovn", "OVN-Kubernetes", "set the agent's --cni-own-file"),
    ("antrea", "the Antrea agent", "set the agent's --cni-own-file"),
    ("flannel", "the flannel DaemonSet", "set the agent's --cni-own-file"),
];

/// Who may be the other writer of a file, and what to do about it.
pub fn suspect(name: &str, text: &str) -> (String, &'static str) {
    let types = plugin_types(text);
    let known = |sign: &str| types.iter().any(|kind| kind.contains(sign)) || name.contains(sign);
    match WRITERS.iter().find(|(sign, ..)| known(sign)) {
        Some((_, writer, remedy)) => ((*writer).to_owned(), remedy),
        None => {
            let first = types.first().map_or("unknown", String::as_str);
            (format!("the installer of the plugin {first}"), "set the agent's --cni-own-file")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(200);

    #[test]
    fn a_writer_every_200_ms_for_30_s_meets_few_repairs_and_then_one_within_a_second() {
        let (mut rivalry, mut writes, mut contests) = (Rivalry::default(), 0, 0);
        let mut now = Duration::ZERO;
        while now < Duration::from_secs(30) {
            now += STEP;
            rivalry.note_change(now);
            let before = rivalry.is_contested();
            writes += usize::from(rivalry.lost(now) == Move::Write);
            contests += usize::from(rivalry.is_contested() && !before);
        }
        assert_eq!((writes, contests), (REPAIRS_MAX, 1));
        let Move::Wait(wait) = rivalry.lost(now) else { panic!("the file is still contested") };
        assert!(wait < Duration::from_secs(1));
        assert_eq!(rivalry.lost(now + wait), Move::Write);
        now += wait;
        assert!(!rivalry.held(now), "peace takes a while");
        now += rivalry.peace_in(now).unwrap();
        assert!(rivalry.held(now));
        assert!(!rivalry.is_contested());
    }

    #[test]
    fn repairs_now_and_then_are_no_contest() {
        let mut rivalry = Rivalry::default();
        for minute in 1..100 {
            let now = Duration::from_secs(60 * minute);
            rivalry.note_change(now);
            assert_eq!(rivalry.lost(now), Move::Write);
            assert!(!rivalry.is_contested());
        }
    }

    #[test]
    fn a_slow_contest_repairs_after_every_change() {
        let mut rivalry = Rivalry::default();
        let mut writes = 0;
        for second in 1..=30 {
            let now = Duration::from_secs(second);
            rivalry.note_change(now);
            writes += match rivalry.lost(now) {
                Move::Write => 1,
                Move::Wait(wait) => usize::from(rivalry.lost(now + wait) == Move::Write),
            };
        }
        assert!(rivalry.is_contested());
        assert_eq!(writes, 30);
    }

    #[track_caller]
    fn check(name: &str, text: &str, writer: &str, remedy: &str) {
        let (found, does) = suspect(name, text);
        assert!(found.contains(writer) && does.contains(remedy), "{found}: {does}");
    }

    #[test]
    fn writers_are_known_by_their_plugins_and_files() {
        check("05-cilium.conflist", "", "Cilium", "cni.exclusive=false");
        check(
            "10-x.conflist",
            r#"{"plugins":[{"type":"calico"},{"type":"istio-cni"}]}"#,
            "istio-cni",
            "one agent",
        );
        check("10-x.conf", r#"{"type":"calico"}"#, "Calico", "--cni-own-file");
        check("10-x.conf", r#"{"type":"bridge"}"#, "plugin bridge", "--cni-own-file");
        check("10-x.conf", "garbage", "plugin unknown", "--cni-own-file");
    }
}

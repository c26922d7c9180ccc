//! Conditions of a status, as the API's conventions have them.

use ambit_api::meta::{Condition, Time};

/// What a controller says of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding<'a> {
    /// Type of the condition, such as `Ready`.
    pub type_: &'a str,
    /// Whether it holds; none if that is not known.
    pub holds: Option<bool>,
    /// Why, in one CamelCase word.
    pub reason: &'a str,
    /// Why, for people.
    pub message: String,
}

/// The conditions that say this of `generation` of an object whose conditions are `held`: to be applied as they are, since
/// conditions are a list by type and everybody applies only their own. The time of the last transition moves with the status
/// only.
pub fn conditions<'a>(
    held: Option<&[Condition]>,
    findings: impl IntoIterator<Item = Finding<'a>>,
    generation: Option<i64>,
    now: jiff::Timestamp,
) -> Vec<Condition> {
    let held = held.unwrap_or_default();
    findings.into_iter().map(|finding| condition(held, finding, generation, now)).collect()
}

fn condition(
    held: &[Condition],
    finding: Finding<'_>,
    generation: Option<i64>,
    now: jiff::Timestamp,
) -> Condition {
    let status = match finding.holds {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let same = held.iter().find(|one| one.type_ == finding.type_ && one.status == status);
    Condition {
        type_: finding.type_.to_owned(),
        status: status.to_owned(),
        reason: finding.reason.to_owned(),
        message: finding.message,
        observed_generation: generation,
        last_transition_time: same.map_or(Time(now), |one| one.last_transition_time.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> jiff::Timestamp {
        jiff::Timestamp::from_second(second).unwrap()
    }

    fn ready(holds: Option<bool>, message: &str) -> Finding<'_> {
        Finding { type_: "Ready", holds, reason: "Checked", message: message.to_owned() }
    }

    #[track_caller]
    fn check(held: &[Condition], finding: Finding<'_>, status: &str, since: i64) -> Vec<Condition> {
        let all = conditions(Some(held), [finding], Some(2), at(50));
        assert_eq!((all.len(), all[0].status.as_str()), (1, status));
        assert_eq!(all[0].last_transition_time.0, at(since));
        assert_eq!(all[0].observed_generation, Some(2));
        all
    }

    #[test]
    fn the_transition_moves_with_the_status_only() {
        let first = conditions(None, [ready(Some(true), "a")], Some(1), at(10));
        let same = check(&first, ready(Some(true), "another message"), "True", 10);
        assert_eq!(same[0].message, "another message");
        check(&first, ready(Some(false), "a"), "False", 50);
        check(&first, ready(None, "a"), "Unknown", 50);
        let other = Condition { type_: "Other".into(), ..first[0].clone() };
        check(&[other], ready(Some(true), "a"), "True", 50);
    }
}

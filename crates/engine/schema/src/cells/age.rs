//! Lengths of time as kubectl prints them. Source: apimachinery `pkg/util/duration/duration.go`.

use jiff::Timestamp;

/// How long ago the time was; `<unknown>` when there is none.
pub(super) fn since(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => human_duration(now.as_second() - time.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// A length of time in two units at most. Clocks that differ a little do no harm.
pub(super) fn human_duration(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let years = days / 365;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ if years < 2 => format!("{days}d"),
        _ if years < 8 => two(years, "y", days % 365, "d"),
        _ => format!("{years}y"),
    }
}

fn two(large: i64, large_unit: &str, small: i64, small_unit: &str) -> String {
    if small == 0 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit}{small}{small_unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::human_duration;

    #[track_caller]
    fn check(seconds: i64, expected: &str) {
        assert_eq!(human_duration(seconds), expected);
    }

    #[test]
    fn durations() {
        const DAY: i64 = 86_400;
        check(-2, "<invalid>");
        check(-1, "0s");
        check(0, "0s");
        check(119, "119s");
        check(120, "2m");
        check(130, "2m10s");
        check(600, "10m");
        check(179 * 60, "179m");
        check(180 * 60, "3h");
        check(181 * 60, "3h1m");
        check(8 * 3600, "8h");
        check(47 * 3600, "47h");
        check(48 * 3600, "2d");
        check(49 * 3600, "2d1h");
        check(8 * DAY, "8d");
        check(729 * DAY, "729d");
        check(730 * DAY, "2y");
        check(731 * DAY, "2y1d");
        check(8 * 365 * DAY + DAY, "8y");
    }
}

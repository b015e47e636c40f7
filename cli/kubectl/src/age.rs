//! How long ago something was, as kubectl writes it. Pure.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

/// What stands where nothing is known.
pub(crate) const UNKNOWN: &str = "-";

/// `12s`, `5m`, `3h40m`, `2d`; `-` where the time is not known. What lies ahead, by another machine's clock, was just now.
pub(crate) fn age(then: Option<&Time>, now: Timestamp) -> String {
    let Some(then) = then else { return UNKNOWN.to_owned() };
    let seconds = now.duration_since(then.0).as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let two = |large: i64, one: &str, small: i64, other: &str| match small {
        0 => format!("{large}{one}"),
        _ => format!("{large}{one}{small}{other}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_kubectls() {
        let now = Timestamp::from_second(10_000_000).unwrap();
        for (seconds, text) in [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (700, "11m"),
            (10_800, "3h"),
            (13_200, "3h40m"),
            (90_000, "25h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (900_000, "10d"),
        ] {
            let then = Time(Timestamp::from_second(10_000_000 - seconds).unwrap());
            assert_eq!(age(Some(&then), now), text);
        }
        assert_eq!(age(None, now), "-");
    }
}

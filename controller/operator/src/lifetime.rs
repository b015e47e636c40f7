//! When a sandbox is due to be deleted, and when a pod that ended is made again. Pure.

use std::time::Duration;

use berth_api::status::LastExit;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::judge;

/// The pause after the second pod in a row that ended; the first is made again at once, and each further one doubles it.
const PAUSE: Duration = Duration::from_secs(40);

/// The longest pause.
const LONGEST: Duration = Duration::from_mins(5);

/// A pod that lived for longer than this was a good one: what ends after it counts from the beginning.
const GOOD: SignedDuration = SignedDuration::from_mins(15);

/// When a sandbox that was made then, and is to live for so long, is to be deleted.
pub(crate) fn expires_at(made_at: Option<Timestamp>, lives: Option<Duration>) -> Option<Timestamp> {
    made_at?.checked_add(SignedDuration::try_from(lives?).ok()?).ok()
}

/// For how long `at` is still ahead; nothing once it is reached.
pub(crate) fn left(at: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(at.duration_since(now)).ok().filter(|left| !left.is_zero())
}

/// When the next pod may be made, after these ends, the last one first; nothing where it may be made at once.
pub(crate) fn next_pod_at(exits: &[LastExit]) -> Option<Timestamp> {
    let ends: Vec<Timestamp> = exits
        .iter()
        .filter(|exit| exit.container == judge::POD)
        .filter_map(|exit| exit.at.as_ref().map(|at| at.0))
        .collect();
    let close = ends.windows(2).take_while(|pair| pair[0].duration_since(pair[1]) < GOOD).count();
    let doublings = u32::try_from(close).ok()?.checked_sub(1)?;
    let pause = PAUSE.saturating_mul(1_u32.checked_shl(doublings)?).min(LONGEST);
    ends.first()?.checked_add(SignedDuration::try_from(pause).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use berth_api::layout;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn end(container: &str, second: i64) -> LastExit {
        LastExit { container: container.to_owned(), at: Some(Time(at(second))), ..LastExit::default() }
    }

    #[test]
    fn a_sandbox_lives_from_when_it_was_made() {
        let hour = Some(Duration::from_hours(1));
        assert_eq!(expires_at(Some(at(100)), hour), Some(at(3700)));
        assert_eq!(expires_at(Some(at(100)), None), None);
        assert_eq!(expires_at(None, hour), None);
        assert_eq!(expires_at(Some(at(0)), Some(Duration::MAX)), None);
        assert_eq!(left(at(3700), at(3699)), Some(Duration::from_secs(1)));
        assert_eq!((left(at(3700), at(3700)), left(at(3700), at(3701))), (None, None));
    }

    #[test]
    fn pods_that_end_one_after_the_other_are_made_again_later_and_later() {
        for (ends, expected) in [
            (vec![], None),
            (vec![1000], None),
            (vec![1000, 990], Some(1040)),
            (vec![1000, 990, 980], Some(1080)),
            (vec![1000, 990, 980, 970], Some(1160)),
            (vec![1000, 990, 980, 970, 960], Some(1300)),
            (vec![2000, 1000, 990], None),
            (vec![2000, 1990, 1000, 990], Some(2040)),
        ] {
            let exits: Vec<LastExit> = ends.iter().map(|&second| end(judge::POD, second)).collect();
            assert_eq!(next_pod_at(&exits), expected.map(at), "{ends:?}");
        }
        let others = [end(layout::SANDBOX, 1000), end(layout::SIDECAR, 999), end(judge::POD, 998)];
        assert_eq!(next_pod_at(&others), None, "a container that ends is started again by the kubelet");
    }
}

//! What one operator remembers of sandboxes between passes, and can do without: the next one begins anew. Pure.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use crate::judge;

/// How often the door of a pod to which nothing happens is asked.
const EVERY: Duration = Duration::from_mins(5);

/// How long something is remembered that is not asked for.
const KEPT: Duration = Duration::from_hours(1);

/// Of all sandboxes.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// When doors were asked last, by the pod's UID, and since when the pod was ready or not then.
    asked: Mutex<HashMap<String, (String, Instant)>>,
    /// Since when turns are to end, by the pod's UID.
    ending: Mutex<HashMap<String, Instant>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Whether the door of a ready pod is to be asked how its opencode fares: each time that the pod has become ready, and
    /// every few minutes. It counts as asked then.
    pub(crate) fn asks(&self, pod: &Pod, now: Instant) -> bool {
        let Some(uid) = pod.metadata.uid.clone().filter(|_| judge::is_sidecar_ready(pod)) else {
            return false;
        };
        let since = judge::ready_since(pod).map(|since| since.to_string()).unwrap_or_default();
        let mut asked = lock(&self.asked);
        let known = asked.get(&uid).filter(|(known, _)| *known == since);
        if known.is_some_and(|(_, at)| now.saturating_duration_since(*at) < EVERY) {
            return false;
        }
        asked.retain(|_, (_, at)| now.saturating_duration_since(*at) < KEPT);
        asked.insert(uid, (since, now));
        true
    }

    /// For how long the turns of this pod are to end, in seconds.
    pub(crate) fn ends_for(&self, uid: &str, now: Instant) -> i64 {
        let mut ending = lock(&self.ending);
        ending.retain(|_, at| now.saturating_duration_since(*at) < KEPT);
        let since = *ending.entry(uid.to_owned()).or_insert(now);
        i64::try_from(now.saturating_duration_since(since).as_secs()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(ready: bool, since: &str) -> Pod {
        serde_json::from_value(json!({ "metadata": { "uid": "pod-1" }, "status": {
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": since }],
            "initContainerStatuses": [
                { "name": "sidecar", "ready": ready, "restartCount": 0, "image": "", "imageID": "" },
            ],
        } }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_door_is_asked_when_its_pod_flips_and_now_and_then() {
        let (memory, start) = (Memory::default(), Instant::now());
        let (first, second) = ("2026-11-30T12:00:00Z", "2026-11-30T12:05:00Z");
        for (second_of, ready, since, expected) in [
            (0, false, first, false),
            (1, true, first, true),
            (2, true, first, false),
            (3, true, second, true),
            (4, true, second, false),
            (302, true, second, false),
            (303, true, second, true),
        ] {
            let now = start + Duration::from_secs(second_of);
            assert_eq!(memory.asks(&pod(ready, since), now), expected, "{second_of}");
        }
    }

    #[tokio::test]
    async fn the_time_that_turns_have_counts_from_the_first_look() {
        let (memory, start) = (Memory::default(), Instant::now());
        for (second, expected) in [(0, 0), (7, 7), (20, 20)] {
            assert_eq!(memory.ends_for("pod-1", start + Duration::from_secs(second)), expected);
        }
        assert_eq!(memory.ends_for("pod-2", start + Duration::from_secs(20)), 0);
    }
}

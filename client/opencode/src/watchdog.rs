//! When a turn must not go on: bounds on its start, its silence, its steps and its wall clock. Pure: the caller brings
//! the times.
//!
//! A [`Watchdog`] is fed what is heard and asked now and then; what it says ends the turn, by an abort once opencode has
//! begun it. Three steps running without a finish reason are noticed by the translator itself, from the events alone.

use std::time::Duration;

use berth_wire::turn::{TurnError, TurnErrorReason};
use jiff::{SignedDuration, Timestamp};
// Its own clock, which tests may stop.
use tokio::time::Instant;

use crate::translate::{Awaits, DueRetry, Observation};

/// A stream without any event for this long is broken or about to be found so: opencode sends a heartbeat each 10 s.
const ALIVE: Duration = Duration::from_secs(30);

/// Bounds on a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchdogLimits {
    /// From the prompt, or the boot of the opencode that has it, to the first sign that it runs.
    pub start: Duration,
    /// Without an event of the session or its subagents, while nothing explains that.
    pub silence: Duration,
    /// Wall clock, not counting the time that a person is waited for.
    pub turn: Duration,
    /// Calls of the model.
    pub steps: u64,
}

impl Default for WatchdogLimits {
    fn default() -> Self {
        Self {
            start: Duration::from_mins(1),
            silence: Duration::from_secs(200),
            turn: Duration::from_mins(15),
            steps: 300,
        }
    }
}

/// Watches one turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watchdog {
    limits: WatchdogLimits,
    /// When it must have started; none before the prompt was handed over.
    start_by: Option<Instant>,
    /// Last event of the session or its subagents, or last time that silence was explained.
    heard: Instant,
    /// Last event of any kind.
    alive: Instant,
    /// Wall clock used.
    active: Duration,
    /// When `active` was moved last.
    counted: Instant,
}

impl Watchdog {
    /// For a turn of which so much wall clock is used, by an owner before this one.
    pub fn new(limits: WatchdogLimits, active: Duration, now: Instant) -> Self {
        Self { limits, start_by: None, heard: now, alive: now, active, counted: now }
    }

    /// The prompt was handed over, for the first time or once more: from now on it has its time to start.
    pub fn prompted(&mut self, now: Instant) {
        self.start_by = Some(now + self.limits.start);
    }

    /// opencode has booted: a prompt that waits for its start has all its time again.
    pub fn booted(&mut self, now: Instant) {
        if let Some(start_by) = &mut self.start_by {
            *start_by = now + self.limits.start;
        }
    }

    /// Any event came, a heartbeat for example.
    pub fn alive(&mut self, now: Instant) {
        self.alive = now;
    }

    /// An event of the session or its subagents came.
    pub fn heard(&mut self, now: Instant) {
        (self.heard, self.alive) = (now, now);
    }

    /// How much wall clock is used, as of the last [`Self::check`].
    pub fn active(&self) -> Duration {
        self.active
    }

    /// Why the turn must end, if it must. Ask about once a second: time counts as what is seen now. `clock` is the wall
    /// clock, in which retries are due.
    pub fn check(&mut self, seen: &Observation, now: Instant, clock: Timestamp) -> Option<TurnError> {
        self.count(seen, now);
        if seen.aborting {
            return None;
        }
        if !seen.started {
            return self.start_by.filter(|start_by| *start_by <= now).map(|_| self.not_started());
        }
        if self.active >= self.limits.turn {
            return Some(self.deadline_exceeded());
        }
        if seen.steps >= self.limits.steps {
            return Some(self.step_limit_reached());
        }
        if let Some(retry) = &seen.retry
            && self.is_too_late(retry, clock)
        {
            return Some(rate_limited(retry));
        }
        (now.saturating_duration_since(self.heard) >= self.limits.silence).then(|| self.stalled())
    }

    /// Moves the clocks: a person stops the wall clock, and all that explains silence starts that anew.
    fn count(&mut self, seen: &Observation, now: Instant) {
        if seen.awaits != Awaits::Person {
            self.active += now.saturating_duration_since(self.counted);
        }
        self.counted = now;
        let heartbeats = now.saturating_duration_since(self.alive) < ALIVE;
        if seen.awaits != Awaits::Model || seen.retry.is_some() || !heartbeats {
            self.heard = self.heard.max(now);
        }
    }

    /// Due only when the turn would have run out of time.
    fn is_too_late(&self, retry: &DueRetry, clock: Timestamp) -> bool {
        let left = self.limits.turn.saturating_sub(self.active);
        let left = SignedDuration::try_from(left).unwrap_or(SignedDuration::MAX);
        let due = SignedDuration::from_millis(retry.at_ms.saturating_sub(clock.as_millisecond()));
        retry.at_ms > 0 && due > left
    }

    fn not_started(&self) -> TurnError {
        let seconds = self.limits.start.as_secs();
        error(
            TurnErrorReason::NotStarted,
            format!("opencode took the prompt and did not begin within {seconds} s: send it again"),
        )
    }

    fn deadline_exceeded(&self) -> TurnError {
        let minutes = self.limits.turn.as_secs() / 60;
        error(
            TurnErrorReason::DeadlineExceeded,
            format!("the turn took more than {minutes} min and was ended: ask for less at once"),
        )
    }

    fn step_limit_reached(&self) -> TurnError {
        let steps = self.limits.steps;
        error(
            TurnErrorReason::StepLimitReached,
            format!("the turn called the model {steps} times and was ended: send another prompt to go on"),
        )
    }

    fn stalled(&self) -> TurnError {
        let seconds = self.limits.silence.as_secs();
        error(
            TurnErrorReason::Stalled,
            format!(
                "nothing was heard of the turn for {seconds} s, though opencode is alive and no tool runs: the model's \
                 provider may hang. Send another prompt to go on"
            ),
        )
    }
}

fn error(reason: TurnErrorReason, message: String) -> TurnError {
    TurnError { reason, message, retry_at: None, cause: None }
}

fn rate_limited(retry: &DueRetry) -> TurnError {
    let retry_at = Timestamp::from_millisecond(retry.at_ms).ok();
    let message = format!(
        "The model's provider wants a wait that is longer than the turn may take: {}. Send the prompt again then.",
        retry.message
    );
    TurnError { retry_at, ..error(TurnErrorReason::RateLimited, message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: WatchdogLimits = WatchdogLimits {
        start: Duration::from_mins(1),
        silence: Duration::from_secs(200),
        turn: Duration::from_mins(15),
        steps: 300,
    };

    fn seen(awaits: Awaits) -> Observation {
        Observation { started: true, aborting: false, steps: 1, awaits, retry: None }
    }

    fn retry_in(seconds: i64) -> DueRetry {
        let at_ms = clock(0).as_millisecond() + seconds * 1000;
        DueRetry { message: "stub says 429".to_owned(), at_ms }
    }

    fn clock(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_796_034_639 + seconds).unwrap()
    }

    /// Asks each second, with heartbeats all the while, until the turn must end: when, and why.
    fn first_verdict(seen: &Observation, seconds: u64) -> Option<(u64, TurnErrorReason)> {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(LIMITS, Duration::ZERO, start);
        watchdog.prompted(start);
        (0..=seconds).find_map(|second| {
            let now = start + Duration::from_secs(second);
            if second % 10 == 0 {
                watchdog.alive(now);
            }
            let error = watchdog.check(seen, now, clock(i64::try_from(second).unwrap()))?;
            Some((second, error.reason))
        })
    }

    #[test]
    fn each_rule_has_its_time_and_its_reason() {
        use TurnErrorReason as R;
        let not_started = Observation { started: false, ..seen(Awaits::Model) };
        let with_retry = |awaits, seconds| Observation { retry: Some(retry_in(seconds)), ..seen(awaits) };
        let cases = [
            ("not started", not_started.clone(), Some((60, R::NotStarted))),
            ("silent", seen(Awaits::Model), Some((200, R::Stalled))),
            ("a tool runs", seen(Awaits::Tool), Some((900, R::DeadlineExceeded))),
            ("a person is waited for", seen(Awaits::Person), None),
            ("a retry in ten minutes", with_retry(Awaits::Model, 600), Some((900, R::DeadlineExceeded))),
            ("a retry in a day", with_retry(Awaits::Model, 86_400), Some((0, R::RateLimited))),
            (
                "a subagent's retry in a day, beside a tool",
                with_retry(Awaits::Tool, 86_400),
                Some((0, R::RateLimited)),
            ),
            (
                "a retry that tells no time",
                Observation {
                    retry: Some(DueRetry { message: String::new(), at_ms: 0 }),
                    ..seen(Awaits::Model)
                },
                Some((900, R::DeadlineExceeded)),
            ),
            (
                "too many steps",
                Observation { steps: 300, ..seen(Awaits::Tool) },
                Some((0, R::StepLimitReached)),
            ),
            ("steps enough", Observation { steps: 299, ..seen(Awaits::Person) }, None),
            (
                "aborted already",
                Observation { aborting: true, steps: 300, ..with_retry(Awaits::Model, 86_400) },
                None,
            ),
            ("aborted before the start", Observation { aborting: true, ..not_started }, None),
        ];
        for (name, observation, expected) in cases {
            assert_eq!(first_verdict(&observation, 2_000), expected, "{name}");
        }
    }

    #[test]
    fn a_retry_is_told_in_the_providers_words_with_its_time() {
        let now = Instant::now();
        let mut watchdog = Watchdog::new(LIMITS, Duration::ZERO, now);
        let observation = Observation { retry: Some(retry_in(86_400)), ..seen(Awaits::Model) };
        let error = watchdog.check(&observation, now, clock(0)).unwrap();
        assert!(error.message.contains("stub says 429"), "{}", error.message);
        assert_eq!(error.retry_at, Some(clock(86_400)));
    }

    #[test]
    fn a_retry_that_is_due_in_time_stays_so_until_the_time_is_used_up() {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(LIMITS, Duration::from_mins(10), start);
        let observation = Observation { retry: Some(retry_in(301)), ..seen(Awaits::Model) };
        assert_eq!(
            watchdog.check(&observation, start, clock(0)).map(|error| error.reason),
            Some(TurnErrorReason::RateLimited)
        );
        let observation = Observation { retry: Some(retry_in(299)), ..seen(Awaits::Model) };
        assert_eq!(watchdog.check(&observation, start, clock(0)), None);
    }

    #[test]
    fn what_is_heard_starts_silence_anew_and_so_does_a_broken_stream() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut watchdog = Watchdog::new(LIMITS, Duration::ZERO, start);
        let check = |watchdog: &mut Watchdog, second: u64| {
            watchdog.check(&seen(Awaits::Model), at(second), clock(0)).map(|error| error.reason)
        };
        watchdog.heard(at(150));
        assert_eq!(check(&mut watchdog, 151), None);
        // No heartbeat for 100 s: what was sent is not known.
        assert_eq!(check(&mut watchdog, 250), None);
        watchdog.alive(at(251));
        assert_eq!(check(&mut watchdog, 260), None);
        watchdog.alive(at(440));
        assert_eq!(check(&mut watchdog, 449), None, "199 s since the stream was known to be broken");
        assert_eq!(check(&mut watchdog, 450), Some(TurnErrorReason::Stalled));
    }

    #[test]
    fn a_person_stops_the_wall_clock() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut watchdog = Watchdog::new(LIMITS, Duration::ZERO, start);
        assert_eq!(watchdog.check(&seen(Awaits::Tool), at(899), clock(0)), None);
        assert_eq!(watchdog.check(&seen(Awaits::Person), at(10_000), clock(0)), None);
        assert_eq!(watchdog.check(&seen(Awaits::Tool), at(10_000), clock(0)), None);
        let error = watchdog.check(&seen(Awaits::Tool), at(10_001), clock(0)).unwrap();
        assert_eq!(error.reason, TurnErrorReason::DeadlineExceeded);
    }

    #[test]
    fn a_boot_gives_the_start_its_time_again() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut watchdog = Watchdog::new(LIMITS, Duration::ZERO, start);
        let waiting = Observation { started: false, ..seen(Awaits::Model) };
        assert_eq!(watchdog.check(&waiting, at(500), clock(0)), None, "it was not handed over yet");
        watchdog.prompted(at(500));
        assert!(watchdog.clone().check(&waiting, at(560), clock(0)).is_some());
        watchdog.prompted(at(540));
        assert_eq!(watchdog.clone().check(&waiting, at(599), clock(0)), None, "it was handed over again");
        watchdog.booted(at(550));
        assert_eq!(watchdog.check(&waiting, at(609), clock(0)), None);
        assert!(watchdog.check(&waiting, at(610), clock(0)).is_some());
    }
}

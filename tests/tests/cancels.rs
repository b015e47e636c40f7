//! A cancel at each point of a turn's life: one end, a clean next prompt, and how long it took; and aborts that did not
//! come from here. On a real opencode.

use berth_tests::{Options, Scale, SessionLog, Stack, within};
use berth_wire::{
    api::CancelRequest,
    event::{EventPayload, SessionEvent, Voice},
    turn::{TurnErrorReason, TurnState},
};
use serde_json::json;
use tokio::time::{Duration, Instant};
use uuid::Uuid;

/// Cancels the turn; the time until a client that follows the session's events hears of its end.
async fn cancel(stack: &Stack, session: Uuid, turn: Uuid) -> Duration {
    let after = stack.client.get_session(session).await.expect("it is there").last_seq;
    let mut events = stack.client.events(session, after);
    let began = Instant::now();
    stack.client.cancel(session, CancelRequest::only(turn)).await.expect("it is taken");
    within("the turn's end", async {
        loop {
            let event = events.next().await.expect("the event stream goes on");
            if event.turn_id == Some(turn) && matches!(event.payload, EventPayload::TurnEnded(_)) {
                return began.elapsed();
            }
        }
    })
    .await
}

/// The turn has one end, which is this; the next prompt is answered.
async fn check(stack: &Stack, session: Uuid, turn: Uuid, ends: &[TurnState]) {
    let log = SessionLog::until_end(&stack.client, session, turn).await;
    let state = log.outcome(turn).state;
    assert!(ends.contains(&state), "{:?}", log.outcome(turn));
    let (next, log) = stack.prompt(session, "@stub say:clean").await;
    assert_eq!(log.text(next.id, Voice::Message), "clean");
    assert_eq!(log.outcome(turn).state, state, "one end");
}

fn milliseconds(mut times: Vec<Duration>) -> (u64, u64) {
    times.sort();
    let of =
        |time: Option<&Duration>| time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    (of(times.get(times.len() / 2)), of(times.last()))
}

const CANCELLED: &[TurnState] = &[TurnState::Cancelled];

/// A point in a turn's life, and how a turn that is cancelled there may end.
struct Point {
    name: &'static str,
    prompt: String,
    /// The event of the turn after which it is cancelled; none: at once.
    after: Option<fn(&EventPayload) -> bool>,
    ends: &'static [TurnState],
}

fn says(payload: &EventPayload) -> bool {
    payload.as_chunk().is_some()
}

fn runs_a_tool(payload: &EventPayload) -> bool {
    let (kind, value) = payload.to_parts();
    kind == "tool_call_update" && value["status"] == "in_progress"
}

fn asks(payload: &EventPayload) -> bool {
    matches!(payload, EventPayload::PermissionRequested(_))
}

fn points() -> [Point; 5] {
    let bash = |command: &str| {
        format!(r#"@stub tool:bash:{{"command":"{command}","description":"x"}} >> say:never"#)
    };
    let long = || "@stub text:n=2000,d=20".to_owned();
    let sleep = bash("sleep 60; echo late > too-late");
    let last = "@stub say:last words".to_owned();
    let either = &[TurnState::Cancelled, TurnState::Succeeded];
    [
        Point { name: "posted", prompt: long(), after: None, ends: CANCELLED },
        Point { name: "streaming", prompt: long(), after: Some(says), ends: CANCELLED },
        Point { name: "tool", prompt: sleep, after: Some(runs_a_tool), ends: CANCELLED },
        Point { name: "person", prompt: bash("touch ran"), after: Some(asks), ends: CANCELLED },
        Point { name: "ending", prompt: last, after: Some(says), ends: either },
    ]
}

/// Plays a turn up to the point and cancels it there.
async fn cancel_at(stack: &Stack, session: Uuid, point: &Point) -> Duration {
    let turn = stack.post(session, &point.prompt).await;
    if let Some(after) = point.after {
        let reached = |event: &SessionEvent| event.turn_id == Some(turn.id) && after(&event.payload);
        SessionLog::until(&stack.client, session, 0, point.name, reached).await;
    }
    let time = if point.ends == CANCELLED {
        cancel(stack, session, turn.id).await
    } else {
        cancel_or_ended(stack, session, turn.id).await
    };
    check(stack, session, turn.id, point.ends).await;
    time
}

/// Cancels the second of two turns, and then the first.
async fn cancel_queued(stack: &Stack, session: Uuid) -> Duration {
    let running = stack.post(session, "@stub text:n=2000,d=20").await;
    let queued = stack.post(session, "@stub say:never").await;
    let said = |event: &SessionEvent| event.turn_id == Some(running.id) && says(&event.payload);
    SessionLog::until(&stack.client, session, 0, "text", said).await;
    let time = cancel(stack, session, queued.id).await;
    cancel(stack, session, running.id).await;
    check(stack, session, queued.id, CANCELLED).await;
    time
}

#[tokio::test]
async fn a_cancel_at_each_point_of_a_turns_life() {
    let scale = Scale::current();
    let rounds = scale.pick(3, 40);
    let permission = json!({ "bash": { "*": "allow", "touch *": "ask" } });
    let stack = Stack::with(Options { permission, ..Options::default() }).await;
    let session = stack.session().await.id;
    stack.prompt(session, "@stub say:warm").await;
    let mut times: Vec<(&str, Vec<Duration>)> = vec![("queued", Vec::new())];
    for _ in 0..rounds {
        times[0].1.push(cancel_queued(&stack, session).await);
    }
    for point in points() {
        let mut of_point = Vec::new();
        for _ in 0..rounds {
            of_point.push(cancel_at(&stack, session, &point).await);
        }
        times.push((point.name, of_point));
    }
    assert!(!stack.work.join("ran").exists() && !stack.work.join("too-late").exists());
    let figures = times.into_iter().flat_map(|(name, times)| {
        let (median, longest) = milliseconds(times);
        [(format!("{name}_median_ms"), median), (format!("{name}_longest_ms"), longest)]
    });
    let figures: Vec<(String, u64)> = figures.collect();
    let counts: Vec<(&str, u64)> = figures.iter().map(|(name, figure)| (name.as_str(), *figure)).collect();
    scale.report("a_cancel_at_each_point_of_a_turns_life", rounds, &counts);
    stack.stop().await;
}

/// As [`cancel`], where the turn may have ended by itself before the cancel came.
async fn cancel_or_ended(stack: &Stack, session: Uuid, turn: Uuid) -> Duration {
    let began = Instant::now();
    stack.client.cancel(session, CancelRequest::only(turn)).await.expect("it is taken");
    SessionLog::until_end(&stack.client, session, turn).await;
    began.elapsed()
}

/// Through the door an abort is a person's wish; where nobody asked, opencode broke the turn off.
#[tokio::test]
async fn an_abort_by_another_client_cancels_a_turn_and_one_by_nobody_fails_it() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    let directory = stack.work.to_str().expect("a plain name");
    for past_the_door in [false, true] {
        let turn = stack.post(session, "@stub text:n=2000,d=20").await;
        let said = |event: &SessionEvent| event.turn_id == Some(turn.id) && says(&event.payload);
        SessionLog::until(&stack.client, session, 0, "text", said).await;
        let root = stack.client.get_session(session).await.expect("it is there").opencode_session_id;
        let root = root.expect("a prompt was sent");
        let client = if past_the_door { stack.opencode_past_its_door().await } else { stack.opencode() };
        client.abort(directory, &root).await.expect("it is taken");
        let log = SessionLog::until_end(&stack.client, session, turn.id).await;
        log.check();
        let reason = log.outcome(turn.id).error.as_ref().map(|error| error.reason);
        let expected = if past_the_door {
            (TurnState::Failed, Some(TurnErrorReason::Interrupted))
        } else {
            (TurnState::Cancelled, None)
        };
        assert_eq!((log.outcome(turn.id).state, reason), expected, "{:?}", log.outcome(turn.id));
        let (next, log) = stack.prompt(session, "@stub say:clean").await;
        assert_eq!(log.text(next.id, Voice::Message), "clean");
    }
    stack.stop().await;
}

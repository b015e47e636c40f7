//! Every fault of the fake opencode, and every watchdog, through the API: each ends its turn for a reason of its own, or
//! is borne, and the session is usable after it.

use std::{sync::Arc, time::Duration};

use berth_opencode::{ClientError, FenceHolder, NewSession, WatchdogLimits, model::Role};
use berth_server::Limits;
use berth_testkit::fake_serve::{AnswerFault, Fault, StreamFault, TurnFault};
use berth_tests::{FAKE_DIRECTORY, FakeStack, SessionLog, within};
use berth_wire::{
    api::{CancelRequest, PostMessage},
    event::{EventPayload, SessionEvent, Voice},
    problem::ProblemType,
    turn::{TurnErrorReason as R, TurnState},
};
use futures_util::{StreamExt, future::BoxFuture, stream};
use uuid::Uuid;

const PROMPT: &str = "@stub think:n=2 | say:one | say: two | say: three";
const TEXT: &str = "one two three";
const HANG: &str = "@stub say:one | hang";
/// Stacks at a time: each has a door, a server and a database.
const AT_ONCE: usize = 8;

/// Bounds that a test can wait for, and a busy machine can keep.
fn limits() -> Limits {
    let seconds = Duration::from_secs;
    let watchdog = WatchdogLimits { start: seconds(5), silence: seconds(5), turn: seconds(20), steps: 300 };
    Limits {
        watchdog,
        unreachable: seconds(5),
        call: seconds(3),
        stop: seconds(2),
        linger: seconds(5),
        ..Limits::default()
    }
}

/// What a turn's end is: the reason of its failure, or what was said, or its state.
fn ending(log: &SessionLog, turn: Uuid) -> String {
    let outcome = log.outcome(turn);
    match &outcome.error {
        Some(error) => format!("{:?}", error.reason),
        None if outcome.state == TurnState::Succeeded => log.text(turn, Voice::Message),
        None => format!("{:?}", outcome.state),
    }
}

/// Plays one turn in the session.
async fn play(stack: &FakeStack, session: Uuid, prompt: &str) -> String {
    let turn = stack.post(session, prompt).await;
    ending(&stack.end_of(session, turn.id).await, turn.id)
}

/// How a turn ends whose prompt asks for this fault.
fn expected(fault: Fault) -> &'static str {
    use TurnFault as T;
    match fault {
        // The call has its effect all the same, or is made again where it had none; a stream is opened again.
        Fault::Answer(AnswerFault::Unauthorized(_)) => "SandboxUnavailable",
        Fault::Answer(_) | Fault::Stream(_) => TEXT,
        Fault::Turn(fault) => match fault {
            T::NeverStarts => "NotStarted",
            T::RefusedLate => "AgentNotFound",
            T::Swallows => "PromptSwallowed",
            T::DoubledErrors => "ProviderError",
            T::LeftOpen => "OpencodeError",
            T::NeverIdle | T::Stalls | T::Deaf => "Stalled",
            T::Endless => "ProviderStreamIncomplete",
            T::StartsLate(_)
            | T::LostIdle
            | T::IdleTwice
            | T::IdleEarly
            | T::LostBusy
            | T::LateType
            | T::OutOfOrder
            | T::Doubled
            | T::LostDeltas
            | T::NoFinal
            | T::LateWords
            | T::LostAsk => TEXT,
        },
    }
}

/// opencode works on for ever at what has ended for us: nothing else is sent to that session, whose next prompt has an end of
/// its own, and other sessions go on.
async fn check_endless(stack: &FakeStack, session: Uuid) {
    let prompts = || stack.fake.requests().iter().filter(|seen| seen.path.ends_with("/prompt_async")).count();
    let sent = prompts();
    assert_eq!(play(stack, session, PROMPT).await, "SessionBusy");
    assert_eq!(prompts(), sent);
    let other = stack.session().await;
    assert_eq!(play(stack, other, PROMPT).await, TEXT);
}

#[tokio::test]
async fn each_fault_of_a_turn_has_its_end_and_leaves_the_session_usable() {
    let faults = Fault::all(200).filter(|fault| !matches!(fault, Fault::Stream(StreamFault::Dies(_))));
    let play = |fault: Fault| async move {
        let never_ends = [TurnFault::Deaf, TurnFault::NeverIdle].map(Fault::Turn).contains(&fault);
        // A prompt behind a turn that never ends waits for as long as a turn may take.
        let (silence, turn) = (Duration::from_secs(3), Duration::from_secs(6));
        let short = WatchdogLimits { silence, turn, ..limits().watchdog };
        let watchdog = if never_ends { short } else { limits().watchdog };
        let stack = FakeStack::start(Limits { watchdog, ..limits() }).await;
        let session = stack.session().await;
        // An abort must not have its effect where none comes.
        let prompt = if fault == Fault::Turn(TurnFault::Deaf) { HANG } else { PROMPT };
        let first = play(&stack, session, &format!("fault:{fault}\n{prompt}")).await;
        if never_ends {
            check_endless(&stack, session).await;
            stack.kill_and_restart();
        }
        let next = play(&stack, session, PROMPT).await;
        stack.stop().await;
        (fault, first, next)
    };
    let seen: Vec<_> = stream::iter(faults.map(play)).buffered(AT_ONCE).collect().await;
    let wrong: Vec<_> =
        seen.iter().filter(|(fault, first, next)| first != expected(*fault) || next != TEXT).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// How turns end that are asked for while every answer of opencode is spoiled: the first one of a session, before which
/// opencode is looked at, and one of a session that had a turn before, whose prompt has its effect with some faults.
fn expected_of_an_outage(fault: AnswerFault) -> [&'static str; 2] {
    use AnswerFault as A;
    match fault {
        A::Slow(_) => [TEXT, TEXT],
        A::OtherLine | A::Html | A::Empty | A::OtherJson | A::WrongType | A::CutGzip => {
            ["UnsupportedVersion", TEXT]
        }
        A::Error500 | A::Redirect | A::Flood => ["SandboxUnavailable", TEXT],
        A::NoAnswer | A::Unauthorized(_) | A::NoEnd | A::CutBody | A::HugeHeader | A::NotHttp | A::Closed => {
            ["SandboxUnavailable", "SandboxUnavailable"]
        }
    }
}

#[tokio::test]
async fn an_opencode_whose_answers_are_spoiled_fails_a_turn_and_makes_no_second_session() {
    let faults = Fault::all(0).filter_map(|fault| match fault {
        Fault::Answer(fault) => Some(fault),
        _ => None,
    });
    let play = |fault: AnswerFault| async move {
        let stack = FakeStack::start(limits()).await;
        let fresh = stack.session().await;
        let known = stack.session().await;
        let before = play(&stack, known, PROMPT).await;
        stack.fake.spoil(fault);
        let first = play(&stack, fresh, PROMPT).await;
        let again = play(&stack, known, PROMPT).await;
        stack.fake.mend();
        let after = [play(&stack, fresh, PROMPT).await, play(&stack, known, PROMPT).await];
        let made = stack
            .fake
            .requests()
            .iter()
            .filter(|request| request.method == "POST" && request.path == "/session")
            .count();
        stack.stop().await;
        assert_eq!(before, TEXT);
        (fault, [first, again], after, made)
    };
    let seen: Vec<_> = stream::iter(faults.map(play)).buffered(AT_ONCE).collect().await;
    let right = |(fault, during, after, made): &&(AnswerFault, [String; 2], [String; 2], usize)| {
        *during == expected_of_an_outage(*fault) && *after == [TEXT, TEXT] && *made == 2
    };
    let wrong: Vec<_> = seen.iter().filter(|seen| !right(seen)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Owns whatever it is asked about: the door alone keeps healers apart.
#[derive(Debug)]
struct Healer;

impl FenceHolder for Healer {
    fn holds(&self) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }

    fn renew(&self) -> BoxFuture<'_, bool> {
        self.holds()
    }
}

/// The second comes when opencode has seen so many calls of the first, which goes on.
#[tokio::test]
async fn two_healers_at_once_make_one_session_of_opencode() {
    let stack = FakeStack::start(limits()).await;
    let heal = async |fence: u64, new: &NewSession| {
        let healer = stack.door.clone().fenced(fence, Arc::new(Healer));
        healer.raise_fence().await?;
        healer.ensure_session(FAKE_DIRECTORY, None, new).await
    };
    for calls in 0..=2 {
        // A millisecond for each byte.
        stack.fake.spoil(AnswerFault::Slow(1));
        let new = NewSession { title: None, berth_session_id: Uuid::now_v7(), permission: Vec::new() };
        let seen = || stack.fake.requests().iter().filter(|request| request.path == "/session").count();
        let (before, fence) = (seen(), 10 * (calls as u64 + 1));
        let second = async {
            within("the first one's calls", async {
                while seen() < before + calls {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
            heal(fence + 1, &new).await
        };
        let (first, second) = tokio::join!(heal(fence, &new), second);
        stack.fake.mend();
        let listed = stack.door.list_sessions(FAKE_DIRECTORY).await.expect("they are listed");
        let made = listed.iter().filter(|session| session.berth_session_id() == Some(new.berth_session_id));
        let made: Vec<&str> = made.map(|session| session.id.as_str()).collect();
        assert_eq!(made.len(), 1, "after {calls} calls: {first:?}, {second:?}");
        assert_eq!(second.expect("it owns the sandbox").session.id, made[0], "after {calls} calls");
        match first {
            Ok(first) => assert_eq!(first.session.id, made[0], "after {calls} calls"),
            // Its look, too, is refused while the second one makes the session.
            Err(error) => {
                let lost = matches!(error, ClientError::StaleFence) || error.is_transient();
                assert!(lost, "after {calls} calls: {error:?}");
            }
        }
    }
    stack.stop().await;
}

#[tokio::test]
async fn each_watchdog_has_its_reason_and_leaves_the_session_usable() {
    let short = Duration::from_secs(3);
    let tools = r#"@stub tool:bash:{"command":"a","description":"a"} >> tool:bash:{"command":"b","description":"b"} >> tool:bash:{"command":"c","description":"c"} >> text:n=2000,d=50"#;
    let cases = [
        (
            "the wall clock",
            WatchdogLimits { turn: short, ..limits().watchdog },
            "@stub text:n=2000,d=50",
            R::DeadlineExceeded,
        ),
        ("the steps", WatchdogLimits { steps: 3, ..limits().watchdog }, tools, R::StepLimitReached),
        ("the silence", limits().watchdog, "@stub say:one | hang", R::Stalled),
        ("the start", limits().watchdog, "fault:never-starts\n@stub say:one", R::NotStarted),
        ("a retry in a day", limits().watchdog, "@stub status:429,ra=86400", R::RateLimited),
        ("no finish", limits().watchdog, "fault:endless\n@stub say:one", R::ProviderStreamIncomplete),
    ];
    let play = |(name, watchdog, prompt, reason): (&'static str, _, &'static str, R)| async move {
        let stack = FakeStack::start(Limits { watchdog, ..limits() }).await;
        let session = stack.session().await;
        let turn = stack.post(session, prompt).await;
        let log = stack.end_of(session, turn.id).await;
        let error = log.outcome(turn.id).error.as_ref().map(|error| error.reason);
        assert_eq!(error, Some(reason), "{name}: {:?}", log.outcome(turn.id));
        assert_eq!(play(&stack, session, PROMPT).await, TEXT, "after {name}");
        stack.stop().await;
    };
    Box::pin(stream::iter(cases.map(play)).buffered(AT_ONCE).for_each(|()| async {})).await;
}

#[tokio::test]
async fn a_prompt_that_opencode_passes_over_once_is_sent_again() {
    let stack = FakeStack::start(limits()).await;
    let session = stack.session().await;
    assert_eq!(play(&stack, session, PROMPT).await, TEXT);
    stack.fake.spoil_once(TurnFault::Swallows);
    assert_eq!(play(&stack, session, PROMPT).await, TEXT);
    let prompts = stack.fake.requests().iter().filter(|seen| seen.path.ends_with("/prompt_async")).count();
    assert_eq!(prompts, 3);
    stack.stop().await;
}

#[tokio::test]
async fn an_opencode_that_is_killed_ends_what_it_had_begun_and_gets_the_next_prompt() {
    let stack = FakeStack::start(limits()).await;
    let session = stack.session().await;
    let turn = stack.post(session, "@stub say:one | hang").await;
    stack.wait_for(session, "text", |payload| payload.as_chunk().map(|_| ())).await;
    stack.kill_and_restart();
    assert_eq!(ending(&stack.end_of(session, turn.id).await, turn.id), "OpencodeExited");
    assert_eq!(play(&stack, session, PROMPT).await, TEXT);
    stack.stop().await;
}

/// What a person removes from opencode's session.
#[tokio::test]
async fn sv_9_messages_that_are_removed_behind_our_back() {
    let stack = FakeStack::start(limits()).await;
    let session = stack.session().await;
    assert_eq!(play(&stack, session, PROMPT).await, TEXT);
    let root = stack.client.get_session(session).await.expect("it is there").opencode_session_id;
    let root = root.expect("a prompt was sent");
    let running_prompt = async || {
        let messages = stack.door.list_messages(FAKE_DIRECTORY, &root, 100).await.expect("they are listed");
        let prompts = messages.iter().filter(|message| message.info.role == Role::User);
        prompts.map(|message| message.info.id.clone()).next_back().expect("a prompt")
    };
    // Of an earlier turn, and of one that nobody knows, while a turn runs: that one goes on.
    let earlier = running_prompt().await;
    let turn = stack.post(session, "@stub say:one | sleep:300 | say: two").await;
    let said = |event: &SessionEvent| event.turn_id == Some(turn.id) && event.payload.as_chunk().is_some();
    SessionLog::until(&stack.client, session, 0, "text", said).await;
    stack.fake.remove_message(&root, &earlier);
    stack.fake.remove_message(&root, "msg_unknown");
    let log = stack.end_of(session, turn.id).await;
    assert_eq!(ending(&log, turn.id), "one two");
    let removed: Vec<&str> = log
        .events
        .iter()
        .filter_map(|event| match &event.payload {
            EventPayload::MessageRemoved(removed) => Some(removed.message_id.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(removed, [earlier.as_str()]);

    // The running turn's own prompt.
    let turn = stack.post(session, "@stub say:one | hang").await;
    let said = |event: &SessionEvent| event.turn_id == Some(turn.id) && event.payload.as_chunk().is_some();
    SessionLog::until(&stack.client, session, 0, "text", said).await;
    stack.fake.remove_message(&root, &running_prompt().await);
    assert_eq!(ending(&stack.end_of(session, turn.id).await, turn.id), "PromptRemoved");
    assert_eq!(play(&stack, session, PROMPT).await, TEXT);
    stack.stop().await;
}

#[tokio::test]
async fn a_queue_is_bounded_and_takes_prompts_again_when_one_has_ended() {
    let stack = FakeStack::start(Limits { queue: 3, ..limits() }).await;
    let session = stack.session().await;
    let turns = [
        stack.post(session, "@stub say:one | hang").await,
        stack.post(session, PROMPT).await,
        stack.post(session, PROMPT).await,
    ];
    let refused = stack.client.post_message(session, &PostMessage::text(PROMPT), "one-more").await;
    let problem = refused.expect_err("the queue is full").problem().cloned().expect("a problem");
    assert_eq!((problem.status, problem.problem_type()), (429, Some(ProblemType::QueueFull)));
    stack.client.cancel(session, CancelRequest::only(turns[0].id)).await.expect("it is taken");
    assert_eq!(ending(&stack.end_of(session, turns[0].id).await, turns[0].id), "Cancelled");
    let last = stack
        .client
        .post_message(session, &PostMessage::text(PROMPT), "one-more")
        .await
        .expect("there is room");
    for turn in [turns[1].id, turns[2].id, last.id] {
        assert_eq!(ending(&stack.end_of(session, turn).await, turn), TEXT);
    }
    stack.stop().await;
}

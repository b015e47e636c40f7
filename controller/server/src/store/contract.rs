//! What every store must keep to. Each test takes a store that is new and empty.

use std::{sync::Arc, time::Duration};

use berth_wire::{
    api::{ModelChoice, PermissionDecision, PromptPart},
    event::{EventPayload, PermissionRequested, Question, QuestionRequested, SessionEvent, Voice},
    turn::{TurnErrorReason, TurnOutcome, TurnState, TurnStopReason},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tempfile::TempDir;
use uuid::Uuid;

use super::{
    Acquired, Answer, Answered, AskKind, Cancel, Change, Commit, Enqueued, LogBounds, NewEvent, NewSession,
    NewTurn, Ownership, SandboxKey, SessionCommit, SessionQuery, Sharing, SqliteStore, Store, StoreError,
    TurnOptions,
};

const LEASE: Duration = Duration::from_secs(15);

mod lists;

use lists::*;

fn sandbox() -> SandboxKey {
    SandboxKey { namespace: "local".to_owned(), name: "default".to_owned() }
}

async fn new_session(store: &dyn Store) -> Uuid {
    let new = NewSession {
        id: Uuid::now_v7(),
        sandbox: sandbox(),
        directory: "/workspace/work".to_owned(),
        title: None,
    };
    store.create_session(new).await.unwrap().id
}

fn new_turn(session_id: Uuid, key: Option<&str>, text: &str) -> NewTurn {
    NewTurn {
        id: Uuid::now_v7(),
        session_id,
        prompt: vec![PromptPart::Text { text: text.to_owned() }],
        files: vec![],
        caller: "me".to_owned(),
        idempotency_key: key.map(str::to_owned),
        body_hash: text.as_bytes().to_vec(),
        options: TurnOptions::default(),
    }
}

/// Takes the sandbox over, from whom it was taken over before.
async fn take(store: &dyn Store) -> Ownership {
    taken(acquire(store, Uuid::nil(), LEASE).await)
}

async fn enqueue(store: &dyn Store, session: Uuid, text: &str) -> Uuid {
    match store.enqueue_turn(new_turn(session, None, text), 100).await.unwrap() {
        Enqueued::New(turn) => turn.id,
        other => panic!("{other:?}"),
    }
}

fn commit(fence: i64, session_id: Uuid, events: Vec<NewEvent>, changes: Vec<Change>) -> Commit {
    let session = SessionCommit { session_id, translator: Some("state".to_owned()), events, changes };
    Commit {
        sandbox: sandbox(),
        fence,
        lease: LEASE,
        cursor: Some("e-7".to_owned()),
        boot_id: Some("boot".to_owned()),
        sessions: vec![session],
    }
}

fn text(offset: u64, text: &str) -> NewEvent {
    NewEvent { turn_id: None, payload: EventPayload::chunk(Voice::Message, "p", offset, text) }
}

async fn log(store: &dyn Store, session: Uuid) -> Vec<SessionEvent> {
    store.events_after(session, 0, 10_000).await.unwrap()
}

fn kinds(log: &[SessionEvent]) -> Vec<String> {
    log.iter().map(|event| event.payload.to_parts().0).collect()
}

async fn sessions_are_listed_newest_first_and_renamed(store: Arc<dyn Store>) {
    let (first, second) = (new_session(&*store).await, new_session(&*store).await);
    let listed = store.list_sessions(&SessionQuery::newest(sandbox(), 10)).await.unwrap();
    assert_eq!(listed.iter().map(|session| session.id).collect::<Vec<_>>(), [second, first]);
    assert_eq!(store.list_sessions(&SessionQuery::newest(sandbox(), 1)).await.unwrap().len(), 1);
    let renamed = store.rename_session(first, "mine").await.unwrap().unwrap();
    assert_eq!(renamed.title.as_deref(), Some("mine"));
    let fence = take(&*store).await.fence;
    let title = Change::Title { title: "opencode's".to_owned() };
    for session in [first, second] {
        store.commit(commit(fence, session, vec![], vec![title.clone()])).await.unwrap();
    }
    let title_of = |session: Uuid| {
        let store = Arc::clone(&store);
        async move { store.session(session).await.unwrap().unwrap().title }
    };
    assert_eq!(title_of(first).await.as_deref(), Some("mine"), "a person's title stays");
    assert_eq!(title_of(second).await.as_deref(), Some("opencode's"));
    assert_eq!(store.session(Uuid::now_v7()).await.unwrap(), None);
    assert_eq!(store.rename_session(Uuid::now_v7(), "x").await.unwrap(), None);
}

async fn a_key_queues_once_whoever_races(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let mut posts = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let store = Arc::clone(&store);
        posts.spawn(
            async move { store.enqueue_turn(new_turn(session, Some("k"), "same"), 100).await.unwrap() },
        );
    }
    let (mut new, mut ids) = (0, std::collections::HashSet::new());
    while let Some(enqueued) = posts.join_next().await {
        match enqueued.unwrap() {
            Enqueued::New(turn) => {
                new += 1;
                ids.insert(turn.id);
            }
            Enqueued::Repeated(turn) => {
                ids.insert(turn.id);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((new, ids.len()), (1, 1));
    assert_eq!(kinds(&log(&*store, session).await), ["turn_queued"]);
    let other = store.enqueue_turn(new_turn(session, Some("k"), "other"), 100).await.unwrap();
    assert_eq!(other, Enqueued::KeyTaken);
}

async fn the_queue_is_bounded_and_ordered(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    for expected in 1..=3 {
        let Enqueued::New(turn) = store.enqueue_turn(new_turn(session, None, "x"), 3).await.unwrap() else {
            panic!("queue is not full yet")
        };
        assert_eq!((turn.ordinal, turn.state), (expected, TurnState::Queued));
    }
    assert_eq!(store.enqueue_turn(new_turn(session, None, "x"), 3).await.unwrap(), Enqueued::QueueFull);
    let nobody = store.enqueue_turn(new_turn(Uuid::now_v7(), None, "x"), 3).await.unwrap();
    assert_eq!(nobody, Enqueued::NoSession);
}

async fn seq_is_dense_however_many_write(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let fence = take(&*store).await.fence;
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..20 {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            if number % 2 == 0 {
                enqueue(&*store, session, "x").await;
            } else {
                store.commit(commit(fence, session, vec![text(0, "a"), text(1, "b")], vec![])).await.unwrap();
            }
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer.unwrap();
    }
    let log = log(&*store, session).await;
    assert_eq!(log.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=30).collect::<Vec<_>>());
    assert_eq!(store.session(session).await.unwrap().unwrap().last_seq, 30);
    let page = store.events_after(session, 10, 5).await.unwrap();
    assert_eq!(page.iter().map(|event| event.seq).collect::<Vec<_>>(), [11, 12, 13, 14, 15]);
}

async fn a_page_of_the_log_is_bounded_in_entries_and_in_bytes(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let fence = take(&*store).await.fence;
    let long = "x".repeat(1000);
    let events = (0..10).map(|index| text(index * 1000, &long)).collect();
    store.commit(commit(fence, session, events, vec![])).await.unwrap();
    let seqs = |entries, bytes, after| {
        let store = Arc::clone(&store);
        async move {
            let page = store.read_log(session, after, LogBounds { entries, bytes }).await.unwrap();
            (page.events.iter().map(|event| event.seq).collect::<Vec<_>>(), page.cut)
        }
    };
    assert_eq!(seqs(3, usize::MAX, 0).await, (vec![1, 2, 3], true));
    assert_eq!(seqs(100, 2_500, 0).await, (vec![1, 2, 3], true));
    assert_eq!(seqs(100, 1, 4).await, (vec![5], true), "one entry at least");
    assert_eq!(seqs(100, usize::MAX, 8).await, (vec![9, 10], false));
    assert_eq!(seqs(100, usize::MAX, 10).await, (vec![], false));
    let page = store.read_log(session, 0, LogBounds::default()).await.unwrap().events;
    let read = store.events_after(session, 0, 100).await.unwrap();
    let texts: Vec<_> =
        page.iter().map(|event| serde_json::from_str::<Value>(&event.to_json()).unwrap()).collect();
    assert_eq!(texts, read.iter().map(|event| serde_json::to_value(event).unwrap()).collect::<Vec<_>>());
}

async fn an_earlier_owner_writes_nothing(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let first = take(&*store).await;
    store.commit(commit(first.fence, session, vec![text(0, "a")], vec![])).await.unwrap();
    let second = take(&*store).await;
    assert!(second.fence > first.fence);
    assert_eq!((second.cursor.as_deref(), second.boot_id.as_deref()), (Some("e-7"), Some("boot")));
    let late = store.commit(commit(first.fence, session, vec![text(1, "b")], vec![])).await;
    assert!(matches!(late, Err(StoreError::Fenced)), "{late:?}");
    let gone = store.delete_session(&sandbox(), first.fence, session).await;
    assert!(matches!(gone, Err(StoreError::Fenced)), "{gone:?}");
    assert_eq!(log(&*store, session).await.len(), 1);
}

async fn acquire(store: &dyn Store, owner: Uuid, lease: Duration) -> Acquired {
    store.acquire(&sandbox(), owner, lease).await.unwrap()
}

fn taken(acquired: Acquired) -> Ownership {
    match acquired {
        Acquired::Taken(taken) => taken,
        Acquired::Held { remaining } => panic!("somebody owns it for {remaining:?}"),
    }
}

async fn a_lease_keeps_others_out_until_it_is_given_up(store: Arc<dyn Store>) {
    let (mine, other) = (Uuid::now_v7(), Uuid::now_v7());
    let first = taken(acquire(&*store, mine, LEASE).await);
    let Acquired::Held { remaining } = acquire(&*store, other, LEASE).await else { panic!("it is held") };
    assert!(remaining > LEASE / 2 && remaining <= LEASE, "{remaining:?}");
    let elsewhere = SandboxKey { name: "other".to_owned(), ..sandbox() };
    taken(store.acquire(&elsewhere, other, LEASE).await.unwrap());
    let again = taken(acquire(&*store, mine, LEASE).await);
    assert!(again.fence > first.fence, "from itself an owner takes over at once");
    store.release(&sandbox(), first.fence).await.unwrap();
    assert!(
        matches!(acquire(&*store, other, LEASE).await, Acquired::Held { .. }),
        "an earlier fence gives nothing up"
    );
    store.release(&sandbox(), again.fence).await.unwrap();
    assert!(taken(acquire(&*store, other, LEASE).await).fence > again.fence);
    let late = store.renew(&sandbox(), again.fence, LEASE).await;
    assert!(matches!(late, Err(StoreError::Fenced)), "{late:?}");
}

async fn a_lease_runs_out_unless_it_is_renewed(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let (mine, other, short) = (Uuid::now_v7(), Uuid::now_v7(), Duration::from_millis(50));
    let first = taken(acquire(&*store, mine, short).await);
    store.renew(&sandbox(), first.fence, LEASE).await.unwrap();
    tokio::time::sleep(short).await;
    assert!(matches!(acquire(&*store, other, LEASE).await, Acquired::Held { .. }), "it was renewed");
    store.renew(&sandbox(), first.fence, short).await.unwrap();
    let mut renewal = commit(first.fence, session, vec![], vec![]);
    store.commit(renewal.clone()).await.unwrap();
    tokio::time::sleep(short).await;
    assert!(matches!(acquire(&*store, other, LEASE).await, Acquired::Held { .. }), "by a commit, too");
    renewal.lease = short;
    store.commit(renewal).await.unwrap();
    tokio::time::sleep(short).await;
    store.renew(&sandbox(), first.fence, short).await.unwrap();
    tokio::time::sleep(short).await;
    let second = taken(acquire(&*store, other, LEASE).await);
    let late = store.commit(commit(first.fence, session, vec![text(0, "a")], vec![])).await;
    assert!(matches!(late, Err(StoreError::Fenced)), "{late:?}");
    store.commit(commit(second.fence, session, vec![text(0, "a")], vec![])).await.unwrap();
}

async fn of_many_who_want_a_sandbox_one_gets_it(store: Arc<dyn Store>) {
    for _ in 0..10 {
        let mut takers = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let store = Arc::clone(&store);
            takers.spawn(async move { acquire(&*store, Uuid::now_v7(), LEASE).await });
        }
        let acquired = takers.join_all().await;
        let taken: Vec<_> = acquired
            .into_iter()
            .filter_map(|one| matches!(one, Acquired::Taken(_)).then(|| taken(one)))
            .collect();
        assert_eq!(taken.len(), 1);
        store.release(&sandbox(), taken[0].fence).await.unwrap();
    }
}

async fn what_a_prompt_asks_for_reaches_its_owner(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let earlier = enqueue(&*store, session, "x").await;
    store.request_cancel(session, Cancel::All).await.unwrap();
    let model = ModelChoice { provider_id: "acme".to_owned(), model_id: "small/1".to_owned() };
    let options = TurnOptions {
        model: Some(model),
        agent: Some("plan".to_owned()),
        retry_of: Some(earlier),
        traceparent: Some("00-1-2-01".to_owned()),
    };
    let new = NewTurn { options: options.clone(), ..new_turn(session, None, "x") };
    let turn_id = new.id;
    let Enqueued::New(turn) = store.enqueue_turn(new, 10).await.unwrap() else { panic!("it is new") };
    assert_eq!(
        (turn.model, turn.agent, turn.retry_of),
        (options.model.clone(), options.agent.clone(), Some(earlier))
    );
    let queued = store.load_work(&sandbox()).await.unwrap().remove(0).queued.unwrap();
    assert_eq!((queued.options, queued.active), (options.clone(), Duration::ZERO));
    let fence = take(&*store).await.fence;
    let started = Change::TurnStarted { turn_id, message_id: "msg_1".to_owned() };
    let active = Duration::from_millis(1234);
    let used = Change::TurnActive { turn_id, active };
    store.commit(commit(fence, session, vec![], vec![started, used])).await.unwrap();
    let running = store.load_work(&sandbox()).await.unwrap().remove(0).running.unwrap();
    assert_eq!((running.options, running.active), (options, active));
}

async fn a_turn_ends_once(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let turn_id = enqueue(&*store, session, "x").await;
    let fence = take(&*store).await.fence;
    let started = Change::TurnStarted { turn_id, message_id: "msg_1".to_owned() };
    store.commit(commit(fence, session, vec![], vec![started.clone()])).await.unwrap();
    let again = store.commit(commit(fence, session, vec![text(0, "a")], vec![started])).await;
    assert!(matches!(again, Err(StoreError::TurnNotQueued)), "{again:?}");
    assert_eq!(log(&*store, session).await.len(), 1, "a refused commit leaves nothing");
    let work = store.load_work(&sandbox()).await.unwrap();
    assert_eq!(work[0].running.as_ref().unwrap().message_id.as_deref(), Some("msg_1"));
    assert_eq!(work[0].translator.as_deref(), Some("state"));
    let first = TurnOutcome::succeeded(TurnStopReason::EndTurn);
    for outcome in [first, TurnOutcome::failed(TurnErrorReason::OpencodeError, "late")] {
        let ended = Change::TurnEnded { turn_id, outcome };
        store.commit(commit(fence, session, vec![], vec![ended])).await.unwrap();
    }
    let turn = store.turn(turn_id).await.unwrap().unwrap();
    assert_eq!((turn.state, turn.stop_reason), (TurnState::Succeeded, Some(TurnStopReason::EndTurn)));
    assert!(store.load_work(&sandbox()).await.unwrap().is_empty());
}

async fn a_turn_that_was_cancelled_meanwhile_is_not_ended_again(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let turn_id = enqueue(&*store, session, "x").await;
    let fence = take(&*store).await.fence;
    assert_eq!(store.request_cancel(session, Cancel::Oldest).await.unwrap(), [turn_id]);
    let outcome = TurnOutcome::failed(TurnErrorReason::SandboxUnavailable, "gave up");
    let end = NewEvent { turn_id: Some(turn_id), payload: EventPayload::TurnEnded(outcome.clone()) };
    let ended = Change::TurnEnded { turn_id, outcome };
    store.commit(commit(fence, session, vec![text(0, "a"), end], vec![ended])).await.unwrap();
    let log = log(&*store, session).await;
    assert_eq!(kinds(&log), ["turn_queued", "turn_ended", "agent_message_chunk"]);
    assert_eq!(store.turn(turn_id).await.unwrap().unwrap().state, TurnState::Cancelled);
}

async fn cancel_ends_what_waits_and_marks_what_runs(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let (first, second, third) = (
        enqueue(&*store, session, "1").await,
        enqueue(&*store, session, "2").await,
        enqueue(&*store, session, "3").await,
    );
    let fence = take(&*store).await.fence;
    let started = Change::TurnStarted { turn_id: first, message_id: "msg_1".to_owned() };
    store.commit(commit(fence, session, vec![], vec![started])).await.unwrap();
    assert_eq!(store.request_cancel(session, Cancel::Oldest).await.unwrap(), [first]);
    let running = store.load_work(&sandbox()).await.unwrap().remove(0).running.unwrap();
    assert!(running.cancel_requested, "a running turn gets a mark; its owner ends it");
    assert_eq!(store.request_cancel(session, Cancel::One(second)).await.unwrap(), [second]);
    assert!(store.request_cancel(session, Cancel::One(second)).await.unwrap().is_empty(), "it has ended");
    let foreign = new_session(&*store).await;
    assert!(store.request_cancel(foreign, Cancel::One(third)).await.unwrap().is_empty());
    assert_eq!(store.request_cancel(session, Cancel::All).await.unwrap(), [first, third]);
    for turn in [second, third] {
        assert_eq!(store.turn(turn).await.unwrap().unwrap().state, TurnState::Cancelled);
    }
    let ended = kinds(&log(&*store, session).await).iter().filter(|kind| *kind == "turn_ended").count();
    assert_eq!(ended, 2);
    let open = store.session(session).await.unwrap().unwrap().open_turns;
    assert_eq!(open, [first]);
    assert!(store.request_cancel(Uuid::now_v7(), Cancel::All).await.unwrap().is_empty());
}

fn permission() -> EventPayload {
    EventPayload::PermissionRequested(PermissionRequested {
        permission_id: "per_1".to_owned(),
        permission: "bash".to_owned(),
        patterns: vec!["ls -la".to_owned()],
        always: vec!["ls *".to_owned()],
        tool_call_id: None,
        title: "ls -la".to_owned(),
        metadata: Value::Null,
        expires_at: None,
    })
}

fn questions() -> EventPayload {
    let question = |text: &str| Question {
        question: text.to_owned(),
        header: String::new(),
        multiple: false,
        options: vec![],
    };
    EventPayload::QuestionRequested(QuestionRequested {
        question_id: "que_1".to_owned(),
        questions: vec![question("A?"), question("B?")],
        tool_call_id: None,
    })
}

async fn open_asks(store: &dyn Store) -> (Uuid, i64) {
    let session = new_session(store).await;
    let turn_id = enqueue(store, session, "x").await;
    let fence = take(store).await.fence;
    let expires_at = Timestamp::now() + SignedDuration::from_mins(5);
    let open =
        |id: &str, kind, request| Change::AskOpened { id: id.to_owned(), kind, turn_id, expires_at, request };
    let changes =
        vec![open("per_1", AskKind::Permission, permission()), open("que_1", AskKind::Question, questions())];
    store.commit(commit(fence, session, vec![], changes)).await.unwrap();
    (session, fence)
}

async fn an_ask_is_answered_once(store: Arc<dyn Store>) {
    let (session, fence) = open_asks(&*store).await;
    let decide = |decision| Answer::Permission { decision, message: None };
    let answer = |id: &'static str, answer: Answer| {
        let store = Arc::clone(&store);
        async move { store.answer_ask(session, id, answer).await.unwrap() }
    };
    assert_eq!(answer("per_2", decide(PermissionDecision::Once)).await, Answered::NotFound);
    assert_eq!(
        answer("que_1", decide(PermissionDecision::Once)).await,
        Answered::NotFound,
        "of another kind"
    );
    assert_eq!(answer("per_1", decide(PermissionDecision::Always)).await, Answered::Accepted);
    assert_eq!(answer("per_1", decide(PermissionDecision::Always)).await, Answered::Accepted, "said again");
    assert_eq!(answer("per_1", decide(PermissionDecision::Reject)).await, Answered::Conflict);
    let work = store.load_work(&sandbox()).await.unwrap().remove(0);
    let asked = work.asks.iter().find(|ask| ask.id == "per_1").unwrap();
    assert_eq!(asked.answer, Some(decide(PermissionDecision::Always)));
    assert_eq!(work.rules.len(), 1, "always leaves a rule");
    let resolved = Change::AskResolved { id: "per_1".to_owned() };
    store.commit(commit(fence, session, vec![], vec![resolved])).await.unwrap();
    assert_eq!(answer("per_1", decide(PermissionDecision::Once)).await, Answered::Conflict, "too late");
    assert_eq!(store.load_work(&sandbox()).await.unwrap()[0].asks.len(), 1);
}

async fn an_answer_after_the_deadline_is_too_late(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let turn_id = enqueue(&*store, session, "x").await;
    let fence = take(&*store).await.fence;
    let (id, kind, request) = ("per_1".to_owned(), AskKind::Permission, permission());
    let opened = Change::AskOpened { id, kind, turn_id, expires_at: Timestamp::now(), request };
    store.commit(commit(fence, session, vec![], vec![opened])).await.unwrap();
    let answer = Answer::Permission { decision: PermissionDecision::Once, message: None };
    let answered = store.answer_ask(session, "per_1", answer).await.unwrap();
    assert_eq!(answered, Answered::Conflict, "its owner rejects it, if it has not done so yet");
}

async fn an_answer_of_the_wrong_shape_leaves_the_question_open(store: Arc<dyn Store>) {
    let (session, _) = open_asks(&*store).await;
    let answers = |answers: &[&str]| Answer::Question {
        answers: Some(answers.iter().map(|&answer| vec![answer.to_owned()]).collect()),
    };
    let short = store.answer_ask(session, "que_1", answers(&["x"])).await.unwrap();
    assert_eq!(short, Answered::WrongCount { questions: 2 });
    let right = store.answer_ask(session, "que_1", answers(&["x", "free text"])).await.unwrap();
    assert_eq!(right, Answered::Accepted);
}

async fn a_deleted_session_is_gone_at_once_and_then_for_good(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let turn = enqueue(&*store, session, "x").await;
    assert!(store.has_session(session).await.unwrap());
    assert!(store.request_delete(session).await.unwrap());
    assert!(!store.request_delete(session).await.unwrap());
    assert_eq!(store.session(session).await.unwrap(), None);
    assert!(!store.has_session(session).await.unwrap());
    assert_eq!(store.turn(turn).await.unwrap(), None);
    assert!(store.list_sessions(&SessionQuery::newest(sandbox(), 10)).await.unwrap().is_empty());
    assert_eq!(store.enqueue_turn(new_turn(session, None, "x"), 9).await.unwrap(), Enqueued::NoSession);
    assert!(store.load_work(&sandbox()).await.unwrap()[0].deleted, "its owner still has to end it");
    let fence = take(&*store).await.fence;
    store.delete_session(&sandbox(), fence, session).await.unwrap();
    assert!(store.load_work(&sandbox()).await.unwrap().is_empty());
    assert!(log(&*store, session).await.is_empty());
}

async fn readers_and_owners_are_woken(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let (mut log, mut work) = (store.watch_session(session), store.watch_work(&sandbox()));
    enqueue(&*store, session, "x").await;
    assert!(log.has_changed().unwrap() && work.has_changed().unwrap());
    log.borrow_and_update();
    work.borrow_and_update();
    let fence = take(&*store).await.fence;
    store.commit(commit(fence, session, vec![text(0, "a")], vec![])).await.unwrap();
    assert!(log.has_changed().unwrap());
    store.release(&sandbox(), fence).await.unwrap();
    assert!(work.has_changed().unwrap(), "whoever waited for the lease");
}

/// A store that is new and empty, and what it lies in.
async fn new_sqlite() -> (Arc<dyn Store>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("berth.db"), Sharing::Alone).await.unwrap();
    (Arc::new(store), folder)
}

/// One test for each property, on the stores that this function makes.
async fn sandboxes_with_work_are_those_with_open_turns_or_with_sessions_to_delete(store: Arc<dyn Store>) {
    let named = |name: &str| SandboxKey { namespace: "team".to_owned(), name: name.to_owned() };
    let mut sessions = Vec::new();
    for name in ["rest", "queued", "deleted", "queued"] {
        let (id, directory) = (Uuid::now_v7(), "/work".to_owned());
        let new = NewSession { id, sandbox: named(name), directory, title: None };
        sessions.push(store.create_session(new).await.unwrap().id);
    }
    assert_eq!(store.sandboxes_with_work().await.unwrap(), []);
    let first = enqueue(&*store, sessions[1], "a").await;
    enqueue(&*store, sessions[3], "b").await;
    assert!(store.request_delete(sessions[2]).await.unwrap());
    let mut found = store.sandboxes_with_work().await.unwrap();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    assert_eq!(found, [named("deleted"), named("queued")]);
    store.request_cancel(sessions[1], Cancel::One(first)).await.unwrap();
    store.request_cancel(sessions[3], Cancel::All).await.unwrap();
    assert_eq!(store.sandboxes_with_work().await.unwrap(), [named("deleted")]);
}

macro_rules! contract {
    ($store:ident, $new:ident) => {
        contract!(
            $store,
            $new,
            sessions_are_listed_newest_first_and_renamed,
            lists_are_filtered_and_keep_their_places,
            sandboxes_with_work_are_those_with_open_turns_or_with_sessions_to_delete,
            turns_are_paged_and_know_where_their_history_is,
            what_is_removed_is_marked,
            removals_of_somebody_elses_messages_are_left_out,
            a_turn_that_did_not_succeed_is_retried_with_all_it_had,
            usage_is_summed_over_turns,
            a_key_queues_once_whoever_races,
            the_queue_is_bounded_and_ordered,
            seq_is_dense_however_many_write,
            a_page_of_the_log_is_bounded_in_entries_and_in_bytes,
            an_earlier_owner_writes_nothing,
            a_lease_keeps_others_out_until_it_is_given_up,
            a_lease_runs_out_unless_it_is_renewed,
            of_many_who_want_a_sandbox_one_gets_it,
            what_a_prompt_asks_for_reaches_its_owner,
            a_turn_ends_once,
            a_turn_that_was_cancelled_meanwhile_is_not_ended_again,
            cancel_ends_what_waits_and_marks_what_runs,
            an_ask_is_answered_once,
            an_answer_after_the_deadline_is_too_late,
            an_answer_of_the_wrong_shape_leaves_the_question_open,
            a_deleted_session_is_gone_at_once_and_then_for_good,
            readers_and_owners_are_woken,
        );
    };
    ($store:ident, $new:ident, $($property:ident),+ $(,)?) => {
        mod $store {
            $(
                #[tokio::test]
                async fn $property() {
                    let (store, _place) = super::$new().await;
                    super::$property(store).await;
                }
            )+
        }
    };
}

contract!(sqlite, new_sqlite);

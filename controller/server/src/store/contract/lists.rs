//! Lists, pages, retries, and what is kept of prompts.

use berth_opencode::ids;
use berth_wire::{
    api::{PromptPart, SessionState, shown_prompt},
    event::{EventPayload, MessageRemoved, Voice},
    turn::{TurnOutcome, TurnStopReason, Usage},
};

use super::{
    super::{HistoryRow, PromptFile, Removed, Retried, Retry, TurnQuery},
    *,
};

pub(super) async fn lists_are_filtered_and_keep_their_places(store: Arc<dyn Store>) {
    let mut ids = Vec::new();
    for title in [Some("Fix ÄPFEL"), None, Some("fix pears"), Some("other")] {
        let new = NewSession {
            id: Uuid::now_v7(),
            sandbox: sandbox(),
            directory: if title.is_none() { "/elsewhere" } else { "/workspace/work" }.to_owned(),
            title: title.map(str::to_owned),
        };
        ids.push(store.create_session(new).await.unwrap().id);
    }
    let all = SessionQuery::newest(sandbox(), 10);
    let listed = async |query: &SessionQuery| -> Vec<usize> {
        let sessions = store.list_sessions(query).await.unwrap();
        sessions.iter().map(|session| ids.iter().position(|id| *id == session.id).unwrap()).collect()
    };
    assert_eq!(listed(&all).await, [3, 2, 1, 0]);
    assert_eq!(listed(&SessionQuery { before: Some(ids[2]), limit: 1, ..all.clone() }).await, [1]);
    let titled = |title: &str| SessionQuery { title: Some(title.to_owned()), ..all.clone() };
    assert_eq!(listed(&titled("FIX")).await, [2, 0]);
    assert_eq!(listed(&titled("äpfel")).await, [0], "letters beyond ASCII too");
    assert_eq!(listed(&titled("%")).await, [0_usize; 0], "no wildcards");
    let elsewhere = SessionQuery { directory: Some("/elsewhere".to_owned()), ..all.clone() };
    assert_eq!(listed(&elsewhere).await, [1]);

    let turn = enqueue(&*store, ids[1], "x").await;
    let in_state = |state| SessionQuery { state: Some(state), ..all.clone() };
    assert_eq!(listed(&in_state(SessionState::Queued)).await, [1]);
    assert_eq!(listed(&in_state(SessionState::Idle)).await, [3, 2, 0]);
    let fence = take(&*store).await.fence;
    let started = Change::TurnStarted { turn_id: turn, message_id: "msg_1".to_owned() };
    store.commit(commit(fence, ids[1], vec![], vec![started])).await.unwrap();
    assert_eq!(listed(&in_state(SessionState::Running)).await, [1]);
    let asked = Change::AskOpened {
        id: "per_1".to_owned(),
        kind: AskKind::Permission,
        turn_id: turn,
        expires_at: Timestamp::now() + SignedDuration::from_mins(5),
        request: permission(),
    };
    store.commit(commit(fence, ids[1], vec![], vec![asked])).await.unwrap();
    assert_eq!(listed(&in_state(SessionState::Waiting)).await, [1]);
    assert_eq!(listed(&in_state(SessionState::Running)).await, [0_usize; 0]);
    let changed = store.session(ids[1]).await.unwrap().unwrap().updated_at;
    let later = SessionQuery { updated_after: Some(changed), ..all.clone() };
    assert_eq!(listed(&later).await, [0_usize; 0]);
    let before =
        SessionQuery { updated_after: Some(changed - SignedDuration::from_millis(1)), ..all.clone() };
    assert!(listed(&before).await.contains(&1));
}

pub(super) async fn turns_are_paged_and_know_where_their_history_is(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let fence = take(&*store).await.fence;
    let mut ids = Vec::new();
    for number in 0..3 {
        ids.push(enqueue(&*store, session, &number.to_string()).await);
    }
    let started = Change::TurnStarted { turn_id: ids[0], message_id: "msg_1".to_owned() };
    let said = |text: &str, offset| NewEvent {
        turn_id: Some(ids[0]),
        payload: EventPayload::chunk(Voice::Message, "p", offset, text),
    };
    store.commit(commit(fence, session, vec![said("a", 0)], vec![started])).await.unwrap();
    let outcome = TurnOutcome::succeeded(TurnStopReason::EndTurn);
    let end = Change::TurnEnded { turn_id: ids[0], outcome };
    store.commit(commit(fence, session, vec![said("b", 1)], vec![end])).await.unwrap();
    let query = |behind, newest_first, limit| TurnQuery { session_id: session, behind, newest_first, limit };
    let rows = store.list_turns(&query(None, false, 2)).await.unwrap();
    let seen = |rows: &[HistoryRow]| -> Vec<_> { rows.iter().map(|row| row.turn.id).collect() };
    assert_eq!(seen(&rows), ids[..2]);
    assert_eq!((rows[0].first_seq, rows[0].last_seq), (Some(4), Some(5)));
    assert_eq!((rows[1].first_seq, rows[1].last_seq), (None, None));
    assert_eq!(seen(&store.list_turns(&query(Some(2), false, 5)).await.unwrap()), ids[2..]);
    assert_eq!(seen(&store.list_turns(&query(None, true, 1)).await.unwrap()), ids[2..]);
    assert_eq!(seen(&store.list_turns(&query(Some(2), true, 5)).await.unwrap()), ids[..1]);
    store.commit(commit(fence, session, vec![said("c", 2)], vec![])).await.unwrap();
    assert_eq!(store.turn_row(ids[0]).await.unwrap().unwrap().last_seq, Some(6), "what comes late counts");
}

pub(super) async fn what_is_removed_is_marked(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let fence = take(&*store).await.fence;
    let mut ids = Vec::new();
    for message in ["msg_10", "msg_20", "msg_30"] {
        let turn = enqueue(&*store, session, message).await;
        let started = Change::TurnStarted { turn_id: turn, message_id: message.to_owned() };
        let end =
            Change::TurnEnded { turn_id: turn, outcome: TurnOutcome::succeeded(TurnStopReason::EndTurn) };
        store.commit(commit(fence, session, vec![], vec![started, end])).await.unwrap();
        ids.push(turn);
    }
    let removed = |message: &str| NewEvent {
        turn_id: Some(ids[2]),
        payload: EventPayload::MessageRemoved(MessageRemoved { message_id: message.to_owned() }),
    };
    let events = vec![removed("msg_25"), removed("msg_20"), removed("msg_35"), removed("msg_05")];
    store.commit(commit(fence, session, events, vec![])).await.unwrap();
    let mut marks = Vec::new();
    for id in ids {
        marks.push(store.turn_row(id).await.unwrap().unwrap().removed);
    }
    assert_eq!(marks, [Removed::Nothing, Removed::Wholly, Removed::Partly]);
}

/// What the log never told of is not in it as removed either.
pub(super) async fn removals_of_somebody_elses_messages_are_left_out(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let fence = take(&*store).await.fence;
    let turn = enqueue(&*store, session, "x").await;
    let (message, answer) = (ids::message_id(), ids::message_id());
    let later = Timestamp::now().as_millisecond().cast_unsigned() + 60_000;
    let foreign = format!("msg_{:012x}BnfjGYH1RshWeX", (later * 0x1000) & 0xffff_ffff_ffff);
    let started = Change::TurnStarted { turn_id: turn, message_id: message };
    let outcome = TurnOutcome::succeeded(TurnStopReason::EndTurn);
    let change = vec![started, Change::TurnEnded { turn_id: turn, outcome }];
    store.commit(commit(fence, session, vec![], change)).await.unwrap();
    let root = Change::OpencodeSession { id: "ses_1".to_owned() };
    let removed = |message: &str| {
        let removed = MessageRemoved { message_id: message.to_owned() };
        NewEvent { turn_id: None, payload: EventPayload::MessageRemoved(removed) }
    };
    store.commit(commit(fence, session, vec![removed(&foreign)], vec![root])).await.unwrap();
    let removed_of = async || store.turn_row(turn).await.unwrap().unwrap().removed;
    assert_eq!(removed_of().await, Removed::Nothing);
    store.commit(commit(fence, session, vec![removed(&answer), removed("before")], vec![])).await.unwrap();
    assert_eq!(removed_of().await, Removed::Partly);
    let log = store.events_after(session, 0, 100).await.unwrap();
    let told: Vec<_> = log.iter().filter(|event| event.payload.to_parts().0 == "message_removed").collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].payload, removed(&answer).payload);
    assert!(log.iter().map(|event| event.seq).eq(1..=2), "without a hole: {log:?}");

    assert_eq!(store.session_of_root(&sandbox(), "ses_1").await.unwrap(), Some(session));
    assert_eq!(store.session_of_root(&sandbox(), "ses_2").await.unwrap(), None);
    store.request_delete(session).await.unwrap();
    assert_eq!(store.session_of_root(&sandbox(), "ses_1").await.unwrap(), None);
}

pub(super) async fn a_turn_that_did_not_succeed_is_retried_with_all_it_had(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let id = Uuid::now_v7();
    let posted = vec![
        PromptPart::text("see"),
        PromptPart::File {
            mime: "image/png".to_owned(),
            filename: Some("a.png".to_owned()),
            url: "data:image/png;base64,AAEC".to_owned(),
        },
    ];
    let file = PromptFile { part: 1, mime: "image/png".to_owned(), content: vec![0, 1, 2] };
    let options = TurnOptions { agent: Some("plan".to_owned()), ..TurnOptions::default() };
    let new = NewTurn {
        id,
        prompt: shown_prompt(id, posted.clone()),
        files: vec![file.clone()],
        options,
        ..new_turn(session, None, "x")
    };
    assert!(matches!(store.enqueue_turn(new, 2).await.unwrap(), Enqueued::New(_)));
    assert_eq!(store.load_prompt(id).await.unwrap(), Some(posted.clone()));
    assert_eq!(store.prompt_file(id, 1).await.unwrap(), Some(file.clone()));
    assert_eq!(store.prompt_file(id, 0).await.unwrap(), None);
    let retry = |of: Uuid, key: &str| Retry {
        id: Uuid::now_v7(),
        of,
        caller: "me".to_owned(),
        idempotency_key: Some(key.to_owned()),
        body_hash: of.as_bytes().to_vec(),
        traceparent: Some("00-3-4-00".to_owned()),
    };
    assert!(matches!(store.retry_turn(retry(id, "k"), 2).await.unwrap(), Retried::NotRetryable(_)));
    assert_eq!(store.retry_turn(retry(Uuid::now_v7(), "k"), 2).await.unwrap(), Retried::NoTurn);
    store.request_cancel(session, Cancel::All).await.unwrap();
    let Retried::New(again) = store.retry_turn(retry(id, "k"), 2).await.unwrap() else {
        panic!("it is queued")
    };
    assert_eq!((again.retry_of, again.agent.as_deref()), (Some(id), Some("plan")));
    let queued = store.load_work(&sandbox()).await.unwrap().remove(0).queued.unwrap();
    assert_eq!(queued.options.traceparent.as_deref(), Some("00-3-4-00"), "it came in a trace of its own");
    assert_eq!(again.prompt, shown_prompt(again.id, posted.clone()), "its file is its own");
    assert_eq!(store.load_prompt(again.id).await.unwrap(), Some(posted));
    assert_eq!(store.retry_turn(retry(id, "k"), 2).await.unwrap(), Retried::Repeated(again.clone()));
    store.request_cancel(session, Cancel::All).await.unwrap();
    assert_eq!(store.retry_turn(retry(again.id, "k"), 2).await.unwrap(), Retried::KeyTaken);
    let full = [enqueue(&*store, session, "a").await, enqueue(&*store, session, "b").await];
    assert_eq!(store.retry_turn(retry(again.id, "l"), 2).await.unwrap(), Retried::QueueFull, "{full:?}");
    assert!(store.request_delete(session).await.unwrap());
    assert_eq!(store.load_prompt(id).await.unwrap(), None);
}

pub(super) async fn usage_is_summed_over_turns(store: Arc<dyn Store>) {
    let session = new_session(&*store).await;
    let fence = take(&*store).await.fence;
    let one = Usage { input_tokens: 10, output_tokens: 3, cost_usd: 0.25, ..Usage::default() };
    for usage in [Some(one), None, Some(one)] {
        let turn_id = enqueue(&*store, session, "x").await;
        let started = Change::TurnStarted { turn_id, message_id: turn_id.to_string() };
        let outcome = TurnOutcome { usage, ..TurnOutcome::succeeded(TurnStopReason::EndTurn) };
        let end = Change::TurnEnded { turn_id, outcome };
        store.commit(commit(fence, session, vec![], vec![started, end])).await.unwrap();
    }
    assert_eq!(store.session(session).await.unwrap().unwrap().usage, one + one);
}

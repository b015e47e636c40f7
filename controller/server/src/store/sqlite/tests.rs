//! What only SQLite must keep to: databases of earlier versions, and files that cannot be used.

use std::path::Path;

use berth_wire::{
    api::PromptPart,
    event::{EventPayload, PartVoided, Unreadable, Voice},
    turn::{TurnErrorReason, TurnState},
};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use uuid::Uuid;

use super::{
    super::{Store, Unusable},
    *,
};

mod faults;

/// A new session, and its sandbox.
async fn new_session(store: &dyn Store) -> (SandboxKey, Uuid) {
    let sandbox = SandboxKey { namespace: "local".to_owned(), name: "default".to_owned() };
    let directory = "/work".to_owned();
    let new = NewSession { id: Uuid::now_v7(), sandbox: sandbox.clone(), directory, title: None };
    (sandbox, store.create_session(new).await.unwrap().id)
}

async fn enqueue(store: &dyn Store, session_id: Uuid) -> Uuid {
    let id = Uuid::now_v7();
    let new = NewTurn {
        id,
        session_id,
        prompt: vec![PromptPart::text("go")],
        files: vec![],
        caller: "me".to_owned(),
        idempotency_key: None,
        body_hash: vec![],
        options: super::super::TurnOptions::default(),
    };
    assert!(matches!(store.enqueue_turn(new, 10).await.unwrap(), Enqueued::New(_)));
    id
}

/// A database as the version wrote whose newest migration was this.
async fn old_database(path: &Path, migration: i64) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::migrate!("../../migrations/sqlite").run_to(migration, &mut connection).await.unwrap();
    connection
}

#[tokio::test]
async fn a_database_of_the_version_before_opens_and_keeps_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("berth.db");
    let (session, turn) = (Uuid::now_v7(), Uuid::now_v7());
    let mut old = old_database(&path, 1).await;
    for (query, id) in [
        ("INSERT INTO sandbox (namespace, name, fence, cursor) SELECT 'local', 'default', 7, 'e-3' WHERE ?1 = ?1", session),
        ("INSERT INTO build_session (id, namespace, sandbox, directory, title, next_seq, next_ordinal, created_at, updated_at)
          VALUES (?1, 'local', 'default', '/work', 'kept', 2, 2, 1, 2)", session),
        ("INSERT INTO turn (id, session_id, ordinal, state, prompt, caller, body_hash, created_at)
          SELECT ?1, id, 1, 'queued', '[{\"type\":\"text\",\"text\":\"hi\"}]', 'local', x'00', 1 FROM build_session", turn),
        ("INSERT INTO session_event SELECT id, 1, ?1, 'turn_queued', '{\"prompt\":[]}', 1, 1 FROM build_session", turn),
    ] {
        sqlx::query(query).bind(id).execute(&mut old).await.unwrap();
    }
    old.close().await.unwrap();

    let store = SqliteStore::open(&path, Sharing::Alone).await.unwrap();
    let kept = store.session(session).await.unwrap().unwrap();
    assert_eq!((kept.title.as_deref(), kept.last_seq, kept.open_turns), (Some("kept"), 1, vec![turn]));
    assert_eq!(store.events_after(session, 0, 10).await.unwrap().len(), 1);
    let kept = store.turn(turn).await.unwrap().unwrap();
    assert_eq!(
        (kept.state, kept.prompt),
        (TurnState::Queued, vec![PromptPart::Text { text: "hi".to_owned() }])
    );
    let key = SandboxKey { namespace: "local".to_owned(), name: "default".to_owned() };
    let work = store.load_work(&key).await.unwrap().remove(0).queued.unwrap();
    assert_eq!((work.options, work.active), (super::super::TurnOptions::default(), Duration::ZERO));
    let Acquired::Taken(taken) = store.acquire(&key, Uuid::now_v7(), Duration::from_secs(1)).await.unwrap()
    else {
        panic!("nobody owned it")
    };
    assert_eq!((taken.fence, taken.cursor.as_deref()), (8, Some("e-3")));
}

#[tokio::test]
async fn entries_of_other_versions_are_read_or_said_to_be_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("berth.db");
    let store = SqliteStore::open(&path, Sharing::Alone).await.unwrap();
    let (_, session) = new_session(&store).await;
    let old = r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"old"},"partId":"p","offset":0}"#;
    for (seq, kind, payload, version) in [
        (1, "agent_message_chunk", old, 0),
        (2, "turn_ended", r#"{"of":"the future"}"#, 2),
        (3, "part_voided", r#"{"part_id":"p"}"#, 1),
    ] {
        sqlx::query("INSERT INTO session_event VALUES (?, ?, NULL, ?, ?, ?, 0)")
            .bind(session)
            .bind(seq)
            .bind(kind)
            .bind(payload)
            .bind(version)
            .execute(&store.file.writer)
            .await
            .unwrap();
    }
    let log = store.events_after(session, 0, 10).await.unwrap();
    let payloads: Vec<EventPayload> = log.into_iter().map(|event| event.payload).collect();
    let expected = [
        EventPayload::chunk(Voice::Message, "p", 0, "old"),
        EventPayload::Unreadable(Unreadable { kind: "turn_ended".to_owned(), version: 2 }),
        EventPayload::PartVoided(PartVoided { part_id: "p".to_owned() }),
    ];
    assert_eq!(payloads, expected);
}

#[tokio::test]
async fn a_damaged_session_takes_its_own_turns_out_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("berth.db"), Sharing::Alone).await.unwrap();
    let (key, spoilt) = new_session(&store).await;
    let (_, whole) = new_session(&store).await;
    let turns = [enqueue(&store, spoilt).await, enqueue(&store, spoilt).await, enqueue(&store, whole).await];
    let spoil = |query: &'static str, id| {
        let query = sqlx::query(query).bind(id);
        let writer = store.file.writer.clone();
        async move { assert_eq!(query.execute(&writer).await.unwrap().rows_affected(), 1, "{id}") }
    };
    let found = || async {
        let work = store.load_work(&key).await.unwrap();
        let other = work.iter().find(|work| work.id == whole).expect("the other session");
        assert_eq!(other.queued.as_ref().unwrap().id, turns[2]);
        work.iter().find(|work| work.id == spoilt).cloned()
    };
    let listed = || async {
        let query = SessionQuery::newest(key.clone(), 10);
        store.list_sessions(&query).await.unwrap()
    };

    let text = "UPDATE build_session SET title = CAST(x'61ff' AS TEXT), translator = CAST(x'ff' AS TEXT) WHERE id = ?";
    spoil(text, spoilt).await;
    let work = found().await.unwrap();
    assert!(work.unreadable.is_empty() && work.queued.is_some(), "what can be done without: {work:?}");
    let shown = store.session(spoilt).await.unwrap().unwrap();
    assert_eq!(shown.title.as_deref(), Some("a\u{fffd}"));
    assert!(listed().await.contains(&shown));

    for spoiling in [
        "UPDATE build_session SET directory = CAST(x'ff' AS TEXT) WHERE id = ?",
        "UPDATE build_session SET directory = '/work', opencode_session_id = CAST(x'ff' AS TEXT) WHERE id = ?",
    ] {
        spoil(spoiling, spoilt).await;
        let work = found().await.unwrap();
        let blamed: Vec<_> = work.unreadable.iter().map(|turn| (turn.id, turn.runs, turn.why)).collect();
        assert_eq!(blamed, [(turns[0], false, Unusable::Session), (turns[1], false, Unusable::Session)]);
        assert_eq!((work.running, work.queued, work.opencode_session_id), (None, None, None));
        assert_eq!(listed().await.len(), 2, "both can be seen");
    }

    spoil("UPDATE turn SET id = x'01' WHERE id = ?", turns[0]).await;
    assert_eq!(found().await, None, "no turn of it can be named, and nothing written");
}

#[tokio::test]
async fn a_damaged_turn_hides_no_other_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("berth.db"), Sharing::Alone).await.unwrap();
    let (key, session_id) = new_session(&store).await;
    let turns = [enqueue(&store, session_id).await, enqueue(&store, session_id).await];
    for spoiling in [
        "UPDATE turn SET usage = '{', state = 'failed' WHERE id = ?",
        "UPDATE turn SET usage = NULL, prompt = CAST(x'ff' AS TEXT) WHERE id = ?",
        "UPDATE turn SET prompt = '[]', retry_of = x'01' WHERE id = ?",
    ] {
        sqlx::query(spoiling).bind(turns[0]).execute(&store.file.writer).await.unwrap();
        let query = TurnQuery { session_id, behind: None, newest_first: false, limit: 10 };
        let listed = store.list_turns(&query).await.unwrap();
        let ids: Vec<_> = listed.iter().map(|row| (row.turn.id, row.turn.state)).collect();
        assert_eq!(ids, [(turns[0], TurnState::Failed), (turns[1], TurnState::Queued)], "{spoiling}");
        let error = listed[0].turn.error.as_ref().unwrap();
        assert_eq!((error.reason, &listed[1].turn.error), (TurnErrorReason::StateUnreadable, &None));
        assert!(store.turn(turns[0]).await.unwrap_err().is_of_a_value(), "{spoiling}");
        assert_eq!(store.session(session_id).await.unwrap().unwrap().open_turns, [turns[1]]);
        assert_eq!(store.list_sessions(&SessionQuery::newest(key.clone(), 10)).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn damage_to_where_an_owner_stood_makes_the_next_one_look_anew() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("berth.db"), Sharing::Alone).await.unwrap();
    let (key, _) = new_session(&store).await;
    let lease = Duration::from_secs(15);
    store.acquire(&key, Uuid::nil(), lease).await.unwrap();
    sqlx::query("UPDATE sandbox SET cursor = CAST(x'ff' AS TEXT), boot_id = 'kept'")
        .execute(&store.file.writer)
        .await
        .unwrap();
    let taken = store.acquire(&key, Uuid::nil(), lease).await.unwrap();
    let expected = super::super::Ownership { fence: 2, cursor: None, boot_id: Some("kept".to_owned()) };
    assert_eq!(taken, Acquired::Taken(expected));
}

#[tokio::test]
async fn damage_to_an_entry_of_the_log_hides_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("berth.db"), Sharing::Alone).await.unwrap();
    let (_, session) = new_session(&store).await;
    enqueue(&store, session).await;
    enqueue(&store, session).await;
    let spoil = "UPDATE session_event SET payload = CAST(x'ff' AS TEXT) WHERE seq = 1";
    sqlx::query(spoil).execute(&store.file.writer).await.unwrap();
    let log = store.events_after(session, 0, 10).await.unwrap();
    assert_eq!(log.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2]);
    assert!(matches!(log[0].payload, EventPayload::Unreadable(_)), "{log:?}");
}

#[tokio::test]
async fn a_row_that_is_not_understood_takes_its_own_turn_out_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("berth.db"), Sharing::Alone).await.unwrap();
    let (key, spoilt) = new_session(&store).await;
    let (_, whole) = new_session(&store).await;
    let mut turns = Vec::new();
    for session_id in [spoilt, spoilt, whole] {
        turns.push(enqueue(&store, session_id).await);
    }
    let spoil = |query: &'static str, id| {
        let query = sqlx::query(query).bind(id);
        let writer = store.file.writer.clone();
        async move { query.execute(&writer).await.unwrap().rows_affected() }
    };
    let found = || async {
        let work = store.load_work(&key).await.unwrap();
        assert_eq!(work.len(), 2, "both sessions");
        let of = |id| work.iter().find(|work| work.id == id).unwrap().clone();
        assert_eq!(of(whole).queued.unwrap().id, turns[2]);
        assert!(of(whole).unreadable.is_empty());
        of(spoilt)
    };
    let blamed = |work: &SessionWork| -> Vec<(Uuid, bool)> {
        work.unreadable.iter().map(|turn| (turn.id, turn.runs)).collect()
    };

    assert_eq!(spoil("UPDATE turn SET prompt = '{' WHERE id = ?", turns[0]).await, 1);
    let work = found().await;
    assert_eq!((blamed(&work), work.queued), (vec![(turns[0], false)], None));

    spoil("UPDATE turn SET state = 'running', model = 'x' WHERE id = ?", turns[0]).await;
    let work = found().await;
    assert_eq!(blamed(&work), [(turns[0], true)]);
    assert_eq!((work.running, work.queued.unwrap().id), (None, turns[1]));

    spoil("UPDATE turn SET prompt = '[]', model = NULL WHERE id = ?", turns[0]).await;
    let ask = "INSERT INTO ask (session_id, id, kind, turn_id, request, expires_at)
               SELECT session_id, 'per_1', 'permission', id, 'x', 0 FROM turn WHERE id = ?";
    spoil(ask, turns[0]).await;
    let work = found().await;
    assert_eq!((blamed(&work), work.running.unwrap().id), (vec![(turns[0], true)], turns[0]));
    spoil("UPDATE turn SET model = 'x' WHERE id = ?", turns[0]).await;
    assert_eq!(blamed(&found().await), [(turns[0], true)], "once for both");

    spoil("UPDATE turn SET state = 'failed', model = NULL WHERE id = ?", turns[0]).await;
    let work = found().await;
    assert!(work.unreadable.is_empty() && work.asks.is_empty(), "an ask of a turn that has ended");
    spoil("UPDATE turn SET model = CAST(x'ff' AS TEXT) WHERE id = ?", turns[1]).await;
    assert_eq!(blamed(&found().await), [(turns[1], false)], "what is no text");
}

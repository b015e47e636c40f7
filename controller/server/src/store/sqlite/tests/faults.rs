//! Files that cannot be used: at the start, and while the server runs.

use std::{fs, os::unix::fs::FileExt, path::Path};

use berth_wire::event::{EventPayload, Voice};
use uuid::Uuid;

use super::{
    super::{
        super::{
            Acquired, Fault, NewEvent, Ownership, SessionCommit, Store, StoreError, small_disk::SmallDisk,
        },
        *,
    },
    new_session, old_database,
};

async fn open_fault(path: &Path) -> (Option<Fault>, String) {
    let error = SqliteStore::open(path, Sharing::Alone).await.unwrap_err();
    let words = error.to_string();
    assert!(words.contains(path.to_str().unwrap()), "the file is named: {words}");
    match error {
        StoreOpenError::Unusable { fault, .. } => (Some(fault), words),
        _ => (None, words),
    }
}

fn fault<T: std::fmt::Debug>(result: Result<T, StoreError>, path: &Path) -> Fault {
    let error = result.unwrap_err();
    assert!(error.to_string().contains(path.to_str().unwrap()), "the file is named: {error}");
    match error {
        StoreError::Unusable { fault, .. } => fault,
        other => panic!("{other:?}"),
    }
}

async fn take(store: &dyn Store, sandbox: &SandboxKey) -> Ownership {
    match store.acquire(sandbox, Uuid::nil(), Duration::from_secs(15)).await.unwrap() {
        Acquired::Taken(taken) => taken,
        held @ Acquired::Held { .. } => panic!("{held:?}"),
    }
}

fn commit(sandbox: &SandboxKey, fence: i64, session_id: Uuid, text: &str) -> Commit {
    let event = NewEvent { turn_id: None, payload: EventPayload::chunk(Voice::Message, "p", 0, text) };
    let session = SessionCommit { session_id, translator: None, events: vec![event], changes: vec![] };
    let lease = Duration::from_secs(15);
    Commit { sandbox: sandbox.clone(), fence, lease, cursor: None, boot_id: None, sessions: vec![session] }
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_named_at_the_start_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("text"), "neither a database nor short ".repeat(100)).unwrap();
    let (found, words) = open_fault(&at("text")).await;
    assert_eq!(found, Some(Fault::NotADatabase));
    assert!(words.contains("name another file"), "{words}");
    fs::create_dir(at("folder")).unwrap();
    assert_eq!(open_fault(&at("folder")).await.0, Some(Fault::NoAccess));
    assert_eq!(open_fault(&at("nowhere/berth.db")).await.0, None, "its folder cannot be locked");

    let path = at("newer.db");
    let mut newer = old_database(&path, 1).await;
    sqlx::query("INSERT INTO _sqlx_migrations SELECT 9999, 'later', installed_on, 1, checksum, 0 FROM _sqlx_migrations")
        .execute(&mut newer)
        .await
        .unwrap();
    drop(newer);
    let (_, words) = open_fault(&path).await;
    assert!(words.contains("newer Berth") && words.contains("9999"), "{words}");
}

#[tokio::test]
async fn a_file_on_a_read_only_disk_is_named_at_the_start() {
    let disk = SmallDisk::mount();
    let path = disk.path().join("berth.db");
    SqliteStore::open(&path, Sharing::Alone).await.unwrap().close().await;
    disk.make_read_only().await;
    let (found, words) = open_fault(&path).await;
    assert!(matches!(found, Some(Fault::ReadOnly | Fault::NoAccess)), "{words}");
}

#[tokio::test]
async fn a_damaged_file_says_so_while_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("berth.db");
    let store = SqliteStore::open(&path, Sharing::Alone).await.unwrap();
    let (sandbox, session) = new_session(&store).await;
    let fence = take(&store, &sandbox).await.fence;
    let long = "x".repeat(3000);
    for _ in 0..200 {
        store.commit(commit(&sandbox, fence, session, &long)).await.unwrap();
    }
    store.close().await;
    let length = fs::metadata(&path).unwrap().len();
    let file = fs::File::options().write(true).open(&path).unwrap();
    // The first pages hold the schema, all others what was logged.
    file.write_at(&vec![0xa5; usize::try_from(length / 2).unwrap()], length / 2).unwrap();
    let store = SqliteStore::open(&path, Sharing::Alone).await.unwrap();
    let bounds = LogBounds { entries: 1000, bytes: usize::MAX };
    assert_eq!(fault(store.read_log(session, 0, bounds).await, &path), Fault::Damaged);
}

#[tokio::test]
async fn a_full_disk_loses_nothing_and_is_over_when_there_is_space_again() {
    let disk = SmallDisk::mount();
    let path = disk.path().join("berth.db");
    let store = SqliteStore::open(&path, Sharing::Alone).await.unwrap();
    let (sandbox, session) = new_session(&store).await;
    let fence = take(&store, &sandbox).await.fence;
    store.commit(commit(&sandbox, fence, session, "before")).await.unwrap();
    disk.fill();
    let long = "x".repeat(64 * 1024);
    for _ in 0..3 {
        let full = store.commit(commit(&sandbox, fence, session, &long)).await;
        assert_eq!(fault(full, &path), Fault::DiskFull);
    }
    assert_eq!(store.events_after(session, 0, 10).await.unwrap().len(), 1, "what was there can be read");
    disk.clear();
    store.commit(commit(&sandbox, fence, session, "after")).await.unwrap();
    let log = store.events_after(session, 0, 10).await.unwrap();
    assert_eq!(log.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2], "no hole");
    store.close().await;
}

#[tokio::test]
async fn a_file_of_one_process_has_no_neighbour_that_is_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("berth.db");
    let store = SqliteStore::open(&path, Sharing::Alone).await.unwrap();
    let (sandbox, session) = new_session(&store).await;
    let fence = take(&store, &sandbox).await.fence;
    store.commit(commit(&sandbox, fence, session, "x")).await.unwrap();
    assert_eq!(store.events_after(session, 0, 10).await.unwrap().len(), 1);
    assert!(!folder.path().join("berth.db-shm").exists(), "a write into it could end the process");
    store.close().await;
    let shared = SqliteStore::open(&path, Sharing::Shared).await.unwrap();
    assert_eq!(shared.events_after(session, 0, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn processes_that_make_a_file_at_the_same_moment_do_not_meet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("berth.db");
    let mut opening = JoinSet::new();
    for _ in 0..8 {
        let path = path.clone();
        opening.spawn(async move { SqliteStore::open(&path, Sharing::Shared).await.map(drop) });
    }
    for opened in opening.join_all().await {
        opened.unwrap();
    }
}

#[tokio::test]
async fn what_another_process_writes_wakes_those_who_wait_here() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("berth.db");
    let here = SqliteStore::open(&path, Sharing::Shared).await.unwrap();
    let there = SqliteStore::open(&path, Sharing::Shared).await.unwrap();
    let (sandbox, session) = new_session(&there).await;
    let (mut log, mut work) = (here.watch_session(session), here.watch_work(&sandbox));
    let fence = take(&there, &sandbox).await.fence;
    there.commit(commit(&sandbox, fence, session, "x")).await.unwrap();
    let bound = Duration::from_secs(20);
    tokio::time::timeout(bound, log.changed()).await.unwrap().unwrap();
    tokio::time::timeout(bound, work.changed()).await.unwrap().unwrap();
    tokio::time::timeout(bound, async {
        while here.events_after(session, 0, 10).await.unwrap().is_empty() {
            log.changed().await.unwrap();
        }
    })
    .await
    .unwrap();
}

//! Logs that are there before a benchmark begins, written with the server's own store. IO.

use std::{path::Path, time::Duration};

use anyhow::bail;
use berth_server::{
    Sharing,
    store::{Acquired, Commit, NewEvent, NewSession, SandboxKey, SessionCommit, SqliteStore, Store},
};
use berth_wire::event::{EventPayload, Voice};
use uuid::Uuid;

/// Events of one commit.
const BATCH: usize = 500;

/// Longer than a benchmark.
const LEASE: Duration = Duration::from_mins(1);

/// What a translator's state takes, in bytes.
const STATE: usize = 1_024;

/// A store whose one sandbox is owned.
pub(super) struct Owned {
    store: SqliteStore,
    sandbox: SandboxKey,
    fence: i64,
}

/// A session and how far its text has come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    /// The session.
    pub(super) id: Uuid,
    /// Bytes of its text so far.
    offset: u64,
}

impl Written {
    /// The next piece of its text: two words, as the server gathers them at 50 words a second.
    fn chunk(&mut self) -> NewEvent {
        let text = "twenty-one words of ";
        let payload =
            EventPayload::chunk(Voice::Message, "prt_22ace5b32001k12AoBPEpaUL8Y", self.offset, text);
        self.offset += text.len() as u64;
        NewEvent { turn_id: Some(self.id), payload }
    }
}

impl Owned {
    /// Opens a database, and takes the sandbox over.
    pub(super) async fn open(path: &Path) -> anyhow::Result<Self> {
        let store = SqliteStore::open(path, Sharing::Alone).await?;
        let sandbox = SandboxKey { namespace: "local".to_owned(), name: "default".to_owned() };
        let Acquired::Taken(owned) = store.acquire(&sandbox, Uuid::nil(), LEASE).await? else {
            bail!("somebody owns the sandbox of a new database");
        };
        Ok(Self { store, sandbox, fence: owned.fence })
    }

    /// New sessions.
    pub(super) async fn sessions(&self, count: usize) -> anyhow::Result<Vec<Written>> {
        let mut sessions = Vec::with_capacity(count);
        for _ in 0..count {
            let id = Uuid::now_v7();
            let (sandbox, directory) = (self.sandbox.clone(), "/workspace".to_owned());
            self.store.create_session(NewSession { id, sandbox, directory, title: None }).await?;
            sessions.push(Written { id, offset: 0 });
        }
        Ok(sessions)
    }

    /// One commit, of as many chunks in each of these sessions.
    pub(super) async fn commit(&self, sessions: &mut [Written], chunks: usize) -> anyhow::Result<()> {
        let sessions = sessions.iter_mut().map(|session| SessionCommit {
            session_id: session.id,
            translator: Some("x".repeat(STATE)),
            events: (0..chunks).map(|_| session.chunk()).collect(),
            changes: Vec::new(),
        });
        let commit = Commit {
            sandbox: self.sandbox.clone(),
            fence: self.fence,
            lease: LEASE,
            cursor: Some("01890a5d-ac96-774b-bcce-b302099a8057-123456".to_owned()),
            boot_id: Some("1".to_owned()),
            sessions: sessions.collect(),
        };
        Ok(self.store.commit(commit).await?)
    }

    /// Writes a session with so many events.
    pub(super) async fn session_of(&self, events: usize) -> anyhow::Result<Uuid> {
        let mut sessions = self.sessions(1).await?;
        let mut left = events;
        while left > 0 {
            let chunks = left.min(BATCH);
            self.commit(&mut sessions, chunks).await?;
            left -= chunks;
        }
        Ok(sessions[0].id)
    }

    /// Gives the sandbox up, and closes the database.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        self.store.release(&self.sandbox, self.fence).await?;
        self.store.close().await;
        Ok(())
    }
}

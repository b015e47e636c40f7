//! What the link tells, handed on to the sandbox's state and the sessions, and the reading of state after a gap.

use berth_opencode::{Event, GlobalEvent, Snapshot};
use berth_wire::event::{EventPayload, MessageRemoved};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    super::{
        calls,
        link::LinkEvent,
        sandbox::{News, SandboxInput},
        session::Input,
    },
    Owner, OwnerError,
};
use crate::{http::error_chain, store::NewEvent};

impl Owner {
    /// Takes one event of the link.
    pub(in super::super) async fn take_event(&mut self, event: LinkEvent) -> Result<(), OwnerError> {
        match event {
            LinkEvent::Opened(state) => {
                let epoch = state.epoch.clone();
                self.cursor = Some(berth_wire::door::Cursor { epoch, seq: state.seq });
                self.tell(&SandboxInput::Opened(&state)).await?;
                // A turn that runs is one of an owner whose position is not known any more.
                let running: Vec<Uuid> =
                    self.sessions.iter().filter(|(_, session)| session.runs()).map(|(&id, _)| id).collect();
                for session in running {
                    self.feed(session, Input::Gap).await?;
                }
                self.read_states().await?;
            }
            LinkEvent::Connected => self.tell(&SandboxInput::Connected).await?,
            LinkEvent::Lost => self.tell(&SandboxInput::Lost).await?,
            LinkEvent::TakenOver => return Err(OwnerError::TakenOver),
            LinkEvent::Item(item) => {
                if item.cursor.is_some() {
                    self.cursor.clone_from(&item.cursor);
                }
                match &item.event.event {
                    Event::Door(event) => self.tell(&SandboxInput::Door(event)).await?,
                    _ => self.translate(&item.event).await?,
                }
            }
        }
        self.finish().await
    }

    /// Tells the sandbox what happened, and the sessions what that means for them.
    async fn tell(&mut self, input: &SandboxInput<'_>) -> Result<(), OwnerError> {
        for news in self.sandbox.take(input) {
            match news {
                News::Open { booted } => self.feed_all(|| Input::Open { booted }).await?,
                News::Lost => self.feed_all(|| Input::Lost).await?,
                News::BootEnded(detail) => self.end_boot(&detail).await?,
                News::Foreign(root) => self.tell_one(&root, Input::Foreign).await?,
                News::Ended { root, prompt, ending } => {
                    self.tell_one(&root, Input::EndedAtDoor(prompt.as_deref(), ending)).await?;
                }
                News::Gap => {
                    tracing::info!(
                        namespace = self.key.namespace,
                        sandbox = self.key.name,
                        "events were missed"
                    );
                    self.feed_all(|| Input::Gap).await?;
                    self.read_again().await?;
                }
                News::ToolsKilled(count) => {
                    let (namespace, sandbox) = (&self.key.namespace, &self.key.name);
                    tracing::warn!(namespace, sandbox, count, "tools were killed for memory");
                }
            }
        }
        Ok(())
    }

    async fn end_boot(&mut self, detail: &str) -> Result<(), OwnerError> {
        self.sizes.clear();
        let sessions: Vec<Uuid> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.feed(session, Input::BootEnded(detail)).await?;
        }
        Ok(())
    }

    /// Tells the session of ours that stands for this one of opencode's.
    async fn tell_one(&mut self, root: &str, input: Input<'_>) -> Result<(), OwnerError> {
        let found = self.sessions.iter().find(|(_, session)| session.root() == Some(root));
        let Some(id) = found.map(|(&id, _)| id) else { return Ok(()) };
        self.feed(id, input).await
    }

    /// Gives an event of opencode's to the sessions that it concerns.
    async fn translate(&mut self, event: &GlobalEvent) -> Result<(), OwnerError> {
        let sessions: Vec<(Uuid, bool)> =
            self.sessions.iter().map(|(&id, session)| (id, session.concerns(event))).collect();
        if let Event::MessageRemoved { session_id, message_id } = &event.event
            && !sessions.iter().any(|(_, concerned)| *concerned)
        {
            self.note_removal(session_id, message_id).await?;
        }
        for (session, concerned) in sessions {
            if concerned {
                self.feed(session, Input::Event(event)).await?;
                self.size_model(session).await?;
            } else {
                self.feed(session, Input::Alive).await?;
            }
        }
        Ok(())
    }

    /// A message was removed from a session of opencode's with which nothing is to do: the log of ours is told.
    async fn note_removal(&mut self, root: &str, message_id: &str) -> Result<(), OwnerError> {
        if let Some(session) = self.store.session_of_root(&self.key, root).await? {
            let payload = EventPayload::MessageRemoved(MessageRemoved { message_id: message_id.to_owned() });
            let event = NewEvent { turn_id: None, payload };
            self.batch.push(session, event, Instant::now(), self.limits.batch);
        }
        Ok(())
    }

    /// Asks the door which run of opencode it serves where that is not sure, then reads each session's state. Inline, so
    /// that no event is applied in between. What fails is tried again at a later tick.
    pub(super) async fn read_again(&mut self) -> Result<(), OwnerError> {
        if self.reads_pause() {
            return Ok(());
        }
        if self.sandbox.is_unsure() && !self.sessions.is_empty() {
            let since = Instant::now();
            let read = calls::bounded(self.client.door_state());
            match self.shutdown.run_until_cancelled(read).await {
                Some(Ok(state)) => Box::pin(self.tell(&SandboxInput::State(&state))).await?,
                Some(Err(error)) => {
                    self.pause_reads(since);
                    tracing::debug!(error = error_chain(&error), "door state could not be read");
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
        self.read_states().await
    }

    /// Nothing else goes on while state is read: after reads that failed, all else has twice the time that they took.
    fn pause_reads(&mut self, since: Instant) {
        let now = Instant::now();
        self.reads_not_before = Some(now + now.saturating_duration_since(since) * 2);
    }

    fn reads_pause(&self) -> bool {
        self.reads_not_before.is_some_and(|moment| moment > Instant::now())
    }

    /// Reads the state of the sessions that may have missed something, all at once, each within a bound.
    async fn read_states(&mut self) -> Result<(), OwnerError> {
        if self.reads_pause() {
            return Ok(());
        }
        let (mut reads, since) = (Vec::new(), Instant::now());
        for (&id, session) in self.sessions.iter().filter(|(_, session)| session.wants_snapshot(since)) {
            let (target, prompt) = (self.target(session), session.prompt().map(str::to_owned));
            let read = calls::snapshot(target, prompt);
            reads.push(async move { (id, read.await) });
        }
        if !reads.is_empty() {
            self.flush().await?;
        }
        let reads = self.shutdown.run_until_cancelled(futures_util::future::join_all(reads)).await;
        let Some(read): Option<Vec<(Uuid, Result<Snapshot, _>)>> = reads else { return Ok(()) };
        if read.iter().any(|(_, snapshot)| snapshot.is_err()) {
            self.pause_reads(since);
        }
        for (session, snapshot) in read {
            self.feed(session, Input::Snapshot(snapshot.map(Box::new))).await?;
        }
        Ok(())
    }
}

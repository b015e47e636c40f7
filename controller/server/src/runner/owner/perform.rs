//! Performs what sessions decide: entries and changes into the batch, calls into tasks, commits where they must stand
//! before anything else happens.

use std::collections::{BTreeMap, VecDeque};

use berth_opencode::{ClientError, ModelReference, PromptContent};
use berth_wire::event::{EventPayload, TurnStarted};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    super::{
        calls::{self, Done, End, Request},
        session::{Beginning, Input, Output, content_of},
    },
    Owner, OwnerError,
};
use crate::{
    http::error_chain,
    store::{Change, NewEvent, SessionCommit, StoreError},
};

impl Owner {
    /// Performs in order what a session decided.
    pub(super) async fn perform(&mut self, session: Uuid, outputs: Vec<Output>) -> Result<(), OwnerError> {
        let mut left = VecDeque::from(outputs);
        while let Some(output) = left.pop_front() {
            let now = Instant::now();
            match output {
                Output::Log(event) => self.batch.push(session, event, now, self.limits.batch),
                Output::Change(change) => self.batch.change(session, change, now),
                Output::Call(turn, request) => {
                    let request = self.with_files(turn, request).await?;
                    self.call(session, turn, request);
                }
                Output::Reread => self.reread = true,
                Output::Begin(beginning) => {
                    let begun = self.commit_beginning(session, *beginning).await?;
                    let at = self.moment();
                    if let Some(live) = self.sessions.get_mut(&session) {
                        left.extend(live.step(Input::Begun(begun), &at));
                    }
                }
                Output::Remove => {
                    self.flush().await?;
                    self.sessions.remove(&session);
                    self.store.delete_session(&self.key, self.lease.fence(), session).await?;
                }
            }
        }
        Ok(())
    }

    /// Prompts are remembered as they are shown: what `data:` URLs in them held is read when they are sent.
    async fn with_files(&self, turn: Option<Uuid>, mut request: Request) -> Result<Request, OwnerError> {
        let (Some(turn), Request::Post(prompt)) = (turn, &mut request) else { return Ok(request) };
        if prompt.parts.iter().any(|part| matches!(part.content, PromptContent::File { .. }))
            && let Some(whole) = self.store.load_prompt(turn).await?
        {
            for (part, whole) in prompt.parts.iter_mut().zip(&whole) {
                part.content = content_of(whole);
            }
        }
        Ok(request)
    }

    /// Starts a call; its end comes back to the loop.
    fn call(&mut self, session: Uuid, turn: Option<Uuid>, request: Request) {
        let Some(target) = self.sessions.get(&session).map(|session| self.target(session)) else { return };
        self.calls.spawn(async move {
            let end = End::Session(turn, calls::perform(target, request).await);
            Done { session, end }
        });
    }

    /// Writes that a turn runs; false when it is not queued any more.
    async fn commit_beginning(&mut self, session_id: Uuid, beginning: Beginning) -> Result<bool, OwnerError> {
        let Beginning { turn, message_id, translator } = beginning;
        self.flush().await?;
        let started = EventPayload::TurnStarted(TurnStarted { prompt: turn.prompt });
        let commit = vec![SessionCommit {
            session_id,
            translator,
            events: vec![NewEvent { turn_id: Some(turn.id), payload: started }],
            changes: vec![Change::TurnStarted { turn_id: turn.id, message_id }],
        }];
        match self.commit(commit).await {
            Ok(()) => Ok(true),
            Err(OwnerError::Store(StoreError::TurnNotQueued)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Tells a session how much its model takes; asks opencode once for each directory.
    pub(super) async fn size_model(&mut self, session: Uuid) -> Result<(), OwnerError> {
        let Some(live) = self.sessions.get(&session) else { return Ok(()) };
        let Some(model) = live.unsized_model() else { return Ok(()) };
        let directory = live.directory();
        if let Some(sizes) = self.sizes.get(directory) {
            let Some(&tokens) = sizes.get(model) else { return Ok(()) };
            let input = Input::Size(model.clone(), tokens);
            return self.feed(session, input).await;
        }
        // Empty until the answer is there, so that nobody asks meanwhile.
        let (client, directory) = (self.client.clone(), directory.to_owned());
        self.sizes.insert(directory.clone(), BTreeMap::new());
        self.calls.spawn(async move {
            let sizes = client.context_sizes(&directory).await;
            Done { session, end: End::Sized(directory, sizes) }
        });
        Ok(())
    }

    /// Sizes that cannot be read are not told; they are asked for again after the next boot.
    pub(super) async fn take_sizes(
        &mut self,
        directory: String,
        result: Result<BTreeMap<ModelReference, u64>, ClientError>,
    ) -> Result<(), OwnerError> {
        match result {
            Ok(sizes) => {
                self.sizes.insert(directory, sizes);
                let sessions: Vec<Uuid> = self.sessions.keys().copied().collect();
                for session in sessions {
                    self.size_model(session).await?;
                }
            }
            Err(error) => {
                tracing::debug!(error = error_chain(&error), "sizes of models could not be read");
            }
        }
        Ok(())
    }
}

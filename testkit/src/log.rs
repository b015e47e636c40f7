//! What the scripted model was asked: a bounded list, for tests and for people. Pure but for a lock.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::Serialize;
use tokio::sync::watch;

use crate::{conversation::Conversation, wire::ModelWire};

/// Number of requests that are kept; older ones are counted only.
pub const MAX_REQUESTS: usize = 1_000;
/// Longest prompt and script in the list, in characters.
const SHOWN: usize = 2_000;

/// A request, as far as it is kept: no headers but the session's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordedRequest {
    /// Number of the request, from 1.
    pub number: u64,
    /// The wire it came on.
    pub wire: ModelWire,
    /// Model name as sent.
    pub model: String,
    /// Whether it asks for a title.
    pub title: bool,
    /// opencode's session id, from its `x-session-id` header.
    pub session: Option<String>,
    /// The agent's working directory, from the system prompt.
    pub directory: Option<String>,
    /// The user message that decided, shortened to 2,000 characters.
    pub prompt: String,
    /// The script that was played, as far as there is one, shortened to 2,000 characters.
    pub script: Option<String>,
    /// The step of the script, from 0.
    pub step: usize,
    /// Number of messages.
    pub messages: usize,
    /// Size of the body, in bytes.
    pub bytes: usize,
    /// Names of the tools that it offers.
    pub tools: Vec<String>,
    /// Whether it asks for a stream.
    pub stream: bool,
    /// What became of it.
    pub outcome: RequestOutcome,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestOutcome {
    /// It is being answered.
    Running,
    /// It was answered to the end, or as far as `eof` goes.
    Ended,
    /// It got this HTTP status instead.
    Refused(u16),
    /// Its connection was closed by the script.
    Cut,
    /// The client left before the end.
    ClientLeft,
    /// The scripted model was stopped before the end.
    Stopped,
}

/// Handle to the list.
#[derive(Debug, Clone)]
pub struct ModelLog {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    kept: Mutex<Kept>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Number of the newest request.
    newest: u64,
    /// Number of requests that had to go.
    dropped: u64,
    requests: VecDeque<RecordedRequest>,
}

impl ModelLog {
    pub(crate) fn new() -> Self {
        let shared = Shared { kept: Mutex::default(), changes: watch::Sender::new(0) };
        Self { shared: Arc::new(shared) }
    }

    /// The requests so far, oldest first, at most [`MAX_REQUESTS`].
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.kept().requests.iter().cloned().collect()
    }

    /// Number of requests that the bound pushed out of the list.
    pub fn dropped(&self) -> u64 {
        self.kept().dropped
    }

    /// Waits until the list meets a condition. The caller bounds the wait.
    pub async fn wait_until(&self, mut condition: impl FnMut(&[RecordedRequest]) -> bool) {
        let mut changes = self.shared.changes.subscribe();
        while !condition(&self.requests()) {
            // The sender lives in `self`, so this does not fail.
            let _ = changes.changed().await;
        }
    }

    /// Empties the list. Numbers go on: ids that a model gave out are not given out again.
    pub(crate) fn clear(&self) {
        let mut kept = self.kept();
        kept.requests.clear();
        kept.dropped = 0;
        drop(kept);
        self.announce();
    }

    /// Adds a request; the entry tells what becomes of it.
    pub(crate) fn add(&self, request: NewRequest<'_>) -> Entry {
        let mut kept = self.kept();
        kept.newest += 1;
        let number = kept.newest;
        if kept.requests.len() == MAX_REQUESTS {
            kept.requests.pop_front();
            kept.dropped += 1;
        }
        kept.requests.push_back(request.recorded(number));
        drop(kept);
        self.announce();
        Entry { log: self.clone(), number, settled: false }
    }

    fn settle(&self, number: u64, outcome: RequestOutcome) {
        if let Some(request) = self.kept().requests.iter_mut().rev().find(|request| request.number == number)
        {
            request.outcome = outcome;
        }
        self.announce();
    }

    fn announce(&self) {
        self.shared.changes.send_modify(|changes| *changes += 1);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // A panic under this lock leaves a whole list behind.
        self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is to be recorded.
#[derive(Debug)]
pub(crate) struct NewRequest<'a> {
    pub(crate) wire: ModelWire,
    pub(crate) session: Option<String>,
    pub(crate) bytes: usize,
    pub(crate) conversation: &'a Conversation,
    pub(crate) script: Option<&'a str>,
}

impl NewRequest<'_> {
    fn recorded(self, number: u64) -> RecordedRequest {
        let conversation = self.conversation;
        let shorten = |text: &str| text.chars().take(SHOWN).collect();
        RecordedRequest {
            number,
            wire: self.wire,
            model: conversation.model.clone(),
            title: conversation.wants_title(),
            session: self.session,
            directory: conversation.directory.clone(),
            prompt: shorten(&conversation.prompt.text),
            script: self.script.map(shorten),
            step: conversation.prompt.step,
            messages: conversation.messages,
            bytes: self.bytes,
            tools: conversation.tools.clone(),
            stream: conversation.stream,
            outcome: RequestOutcome::Running,
        }
    }
}

/// The entry of a request that is being answered. Dropped without a word it says that the client left, for that
/// is when the server drops an answer.
#[derive(Debug)]
pub(crate) struct Entry {
    log: ModelLog,
    number: u64,
    settled: bool,
}

impl Entry {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn settle(&mut self, outcome: RequestOutcome) {
        if !self.settled {
            self.settled = true;
            tracing::debug!(number = self.number, ?outcome, "request settled");
            self.log.settle(self.number, outcome);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.settle(RequestOutcome::ClientLeft);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(log: &ModelLog, prompt: &str) -> Entry {
        let body =
            serde_json::json!({"model": "m", "messages": [{"role": "user", "content": prompt}]}).to_string();
        let conversation = Conversation::read(body.as_bytes()).unwrap();
        let wire = ModelWire::OpenAi;
        log.add(NewRequest { wire, session: None, bytes: 7, conversation: &conversation, script: None })
    }

    #[test]
    fn the_list_is_bounded_and_counts_what_it_dropped() {
        let log = ModelLog::new();
        for _ in 0..MAX_REQUESTS + 3 {
            add(&log, "x").settle(RequestOutcome::Ended);
        }
        let requests = log.requests();
        assert_eq!((requests.len(), requests[0].number, log.dropped()), (MAX_REQUESTS, 4, 3));
        log.clear();
        assert_eq!((log.requests().len(), log.dropped()), (0, 0));
        assert_eq!(add(&log, "y").number(), 1_004);
    }

    #[test]
    fn an_entry_keeps_its_first_outcome_and_a_dropped_one_says_that_the_client_left() {
        let log = ModelLog::new();
        let mut cut = add(&log, &"é".repeat(3_000));
        let left = add(&log, "x");
        assert_eq!(log.requests()[1].outcome, RequestOutcome::Running);
        cut.settle(RequestOutcome::Cut);
        drop((cut, left));
        let requests = log.requests();
        assert_eq!(requests[0].outcome, RequestOutcome::Cut);
        assert_eq!(requests[0].prompt, "é".repeat(2_000));
        assert_eq!(requests[1].outcome, RequestOutcome::ClientLeft);
    }

    #[tokio::test]
    async fn a_change_wakes_who_waits() {
        let log = ModelLog::new();
        let mut entry = add(&log, "x");
        let waiting = log.wait_until(|requests| requests[0].outcome == RequestOutcome::Ended);
        let settling = async { entry.settle(RequestOutcome::Ended) };
        let both = async { tokio::join!(waiting, settling) };
        tokio::time::timeout(std::time::Duration::from_secs(5), both).await.unwrap();
    }
}

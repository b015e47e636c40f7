//! A session's events as a test sees them, and what must hold of every log.

use berth_client::BerthClient;
use berth_testkit::validate::{Entry, Extent, check};
use berth_wire::{
    event::{EventPayload, Fold, SessionEvent, Voice, acp},
    turn::TurnOutcome,
};
use uuid::Uuid;

use crate::wait::within;

/// Events of one session, in the order in which they came.
#[derive(Debug, Clone, Default)]
pub struct SessionLog {
    /// The events.
    pub events: Vec<SessionEvent>,
}

impl SessionLog {
    /// Reads the session's events from the first one until `turn` has ended.
    pub async fn until_end(client: &BerthClient, session: Uuid, turn: Uuid) -> Self {
        let ends = |event: &SessionEvent| {
            event.turn_id == Some(turn) && matches!(event.payload, EventPayload::TurnEnded(_))
        };
        Self::until(client, session, 0, "the turn's end", ends).await
    }

    /// Reads the session's events after `after` until one satisfies `last`.
    pub async fn until(
        client: &BerthClient,
        session: Uuid,
        after: i64,
        what: &str,
        mut last: impl FnMut(&SessionEvent) -> bool,
    ) -> Self {
        let mut stream = client.events(session, after);
        let mut events = Vec::new();
        within(what, async {
            loop {
                let event = stream.next().await.expect("the event stream goes on");
                let done = last(&event);
                events.push(event);
                if done {
                    return;
                }
            }
        })
        .await;
        Self { events }
    }

    /// Kinds of the events of `turn`, neighbours of one kind once.
    pub fn kinds(&self, turn: Uuid) -> Vec<String> {
        let mut kinds: Vec<String> = self.of(turn).map(|event| event.payload.to_parts().0).collect();
        kinds.dedup();
        kinds
    }

    /// Events of `turn`.
    pub fn of(&self, turn: Uuid) -> impl Iterator<Item = &SessionEvent> {
        self.events.iter().filter(move |event| event.turn_id == Some(turn))
    }

    /// The fold of what was said in `turn`.
    pub fn text(&self, turn: Uuid, voice: Voice) -> String {
        let mut fold = Fold::default();
        for event in self.of(turn) {
            fold.apply(&event.payload).expect("the log folds");
        }
        fold.text(voice)
    }

    /// How `turn` ended.
    pub fn outcome(&self, turn: Uuid) -> &TurnOutcome {
        let mut ends = self.of(turn).filter_map(|event| match &event.payload {
            EventPayload::TurnEnded(outcome) => Some(outcome),
            _ => None,
        });
        let outcome = ends.next().expect("the turn has ended");
        assert!(ends.next().is_none(), "the turn has ended twice: {:#?}", self.events);
        outcome
    }

    /// Last status of each tool call of `turn`, by title, in order of first sight.
    pub fn tools(&self, turn: Uuid) -> Vec<(String, acp::ToolCallStatus)> {
        let mut calls: Vec<(String, String, acp::ToolCallStatus)> = Vec::new();
        for event in self.of(turn) {
            let EventPayload::Update(update) = &event.payload else { continue };
            match &**update {
                acp::SessionUpdate::ToolCall(call) => {
                    calls.push((call.tool_call_id.to_string(), call.title.clone(), call.status));
                }
                acp::SessionUpdate::ToolCallUpdate(update) => {
                    let id = update.tool_call_id.to_string();
                    let call = calls.iter_mut().find(|call| call.0 == id).expect("first sight comes first");
                    call.1 = update.fields.title.clone().unwrap_or_else(|| call.1.clone());
                    call.2 = update.fields.status.unwrap_or(call.2);
                }
                _ => {}
            }
        }
        calls.into_iter().map(|(_, title, status)| (title, status)).collect()
    }

    /// Checks what must hold of a log, read from its first event on. Its last turn may not have ended.
    pub fn check(&self) {
        let seqs: Vec<i64> = self.events.iter().map(|event| event.seq).collect();
        let dense: Vec<i64> = (1..).take(seqs.len()).collect();
        assert_eq!(seqs, dense, "the log has a hole or a double");
        let entries = self.events.iter().map(|event| Entry { turn: event.turn_id, payload: &event.payload });
        let broken = check(&entries.collect::<Vec<_>>(), Extent::SoFar);
        assert!(broken.is_empty(), "the log breaks rules: {broken:#?}\n{:#?}", self.events);
    }
}

//! Gathers what is to be committed together. Deltas of one part are merged for a moment; everything else, and the
//! first delta of a part, is due at once. Pure but for the clock value that it is given.

use std::{collections::BTreeMap, time::Duration};

use berth_wire::event::{EventPayload, acp};
use tokio::time::Instant;
use uuid::Uuid;

use crate::store::{Change, NewEvent};

/// What waits for the next commit, session by session.
#[derive(Debug, Default)]
pub(super) struct Batch {
    sessions: BTreeMap<Uuid, Pending>,
    due: Option<Instant>,
}

/// What waits in one session.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Pending {
    pub(super) events: Vec<NewEvent>,
    pub(super) changes: Vec<Change>,
}

impl Batch {
    /// Adds an entry for the log, merged with the one before it where both are text of the same part.
    pub(super) fn push(&mut self, session: Uuid, event: NewEvent, now: Instant, window: Duration) {
        let wait = if can_wait(&event.payload) { window } else { Duration::ZERO };
        let due = now + wait;
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
        let events = &mut self.sessions.entry(session).or_default().events;
        match events.last_mut().and_then(|last| merged(last, &event)) {
            Some(merged) => {
                events.pop();
                events.push(merged);
            }
            None => events.push(event),
        }
    }

    /// Adds a change beside the log; it goes with the next commit, at once.
    pub(super) fn change(&mut self, session: Uuid, change: Change, now: Instant) {
        self.sessions.entry(session).or_default().changes.push(change);
        self.due = Some(self.due.map_or(now, |earlier| earlier.min(now)));
    }

    /// When the next commit is due; `None` when nothing waits.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes everything that waits.
    pub(super) fn take(&mut self) -> BTreeMap<Uuid, Pending> {
        self.due = None;
        std::mem::take(&mut self.sessions)
    }
}

fn can_wait(payload: &EventPayload) -> bool {
    match payload {
        EventPayload::Update(update) => match &**update {
            acp::SessionUpdate::ToolCallUpdate(update) => {
                update.fields.status.is_none_or(|status| status == acp::ToolCallStatus::InProgress)
            }
            _ => payload.as_chunk().is_some_and(|(_, position, _)| position.offset > 0),
        },
        _ => false,
    }
}

/// Two neighbouring chunks of one part as one.
fn merged(last: &NewEvent, next: &NewEvent) -> Option<NewEvent> {
    let (voice, at, text) = last.payload.as_chunk()?;
    let (next_voice, next_at, next_text) = next.payload.as_chunk()?;
    let follows = next_at.offset == at.offset + text.len() as u64;
    if voice != next_voice || at.id != next_at.id || last.turn_id != next.turn_id || !follows {
        return None;
    }
    let payload = EventPayload::chunk(voice, &at.id, at.offset, &format!("{text}{next_text}"));
    Some(NewEvent { turn_id: last.turn_id, payload })
}

#[cfg(test)]
mod tests {
    use berth_wire::event::{Fold, Voice};
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_millis(40);

    fn chunk(part: &str, offset: u64, text: &str) -> NewEvent {
        NewEvent { turn_id: None, payload: EventPayload::chunk(Voice::Message, part, offset, text) }
    }

    #[tokio::test]
    async fn the_first_delta_goes_at_once_and_later_ones_wait() {
        let (mut batch, session, now) = (Batch::default(), Uuid::nil(), Instant::now());
        batch.push(session, chunk("a", 0, "one "), now, WINDOW);
        assert_eq!(batch.due(), Some(now));
        batch.take();
        batch.push(session, chunk("a", 4, "two "), now, WINDOW);
        assert_eq!(batch.due(), Some(now + WINDOW));
        batch.push(session, chunk("a", 8, "three"), now + WINDOW / 2, WINDOW);
        assert_eq!(batch.due(), Some(now + WINDOW), "a later delta does not move it");
        let pending = batch.take().remove(&session).unwrap();
        assert_eq!(pending.events, [chunk("a", 4, "two three")]);
        assert_eq!(batch.due(), None);
    }

    proptest! {
        #[test]
        fn merging_changes_no_text(
            chunks in prop::collection::vec((0_u8..3, "[a-zäé🦀]{0,5}"), 0..40),
        ) {
            let now = tokio::runtime::Builder::new_current_thread().build().unwrap()
                .block_on(async { Instant::now() });
            let (mut batch, mut plain, mut lengths) = (Batch::default(), Fold::default(), [0_u64; 3]);
            for (part, text) in &chunks {
                let length = &mut lengths[usize::from(*part)];
                let event = chunk(&part.to_string(), *length, text);
                *length += text.len() as u64;
                plain.apply(&event.payload).unwrap();
                batch.push(Uuid::nil(), event, now, WINDOW);
            }
            let mut fold = Fold::default();
            for event in batch.take().remove(&Uuid::nil()).unwrap_or_default().events {
                fold.apply(&event.payload).unwrap();
            }
            prop_assert_eq!(fold, plain);
        }
    }
}

//! Permissions and questions: asked once, settled once, in a way that fits, before the turn ends. Pure.

use std::collections::BTreeMap;

use berth_wire::event::{EventPayload, Resolution};

use super::{Entry, Fault, Violation};

struct Ask<T> {
    turn: Option<T>,
    settled: bool,
}

/// What an entry says of a request.
enum Word<'a> {
    Asked(&'a str),
    Settled { id: &'a str, resolution: Resolution, fits: bool },
}

pub(super) fn check<T: Copy + Ord>(entries: &[Entry<'_, T>]) -> Vec<Violation> {
    let mut asks: BTreeMap<&str, Ask<T>> = BTreeMap::new();
    let mut violations = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let faults = match word(entry.payload) {
            Some(Word::Asked(id)) => {
                let fresh = Ask { turn: entry.turn, settled: false };
                asks.insert(id, fresh).map(|_| Fault::AskedTwice(id.to_owned())).into_iter().collect()
            }
            Some(Word::Settled { id, resolution, fits }) => {
                let odd = (!fits).then(|| Fault::ResolutionNotAllowed { id: id.to_owned(), resolution });
                settle(&mut asks, id).into_iter().chain(odd).collect()
            }
            None if matches!(entry.payload, EventPayload::TurnEnded(_)) => left_open(&asks, entry.turn),
            None => Vec::new(),
        };
        violations.extend(faults.into_iter().map(|what| Violation { at, what }));
    }
    violations
}

fn word(payload: &EventPayload) -> Option<Word<'_>> {
    Some(match payload {
        EventPayload::PermissionRequested(asked) => Word::Asked(&asked.permission_id),
        EventPayload::QuestionRequested(asked) => Word::Asked(&asked.question_id),
        EventPayload::PermissionResolved(end) => Word::Settled {
            id: &end.permission_id,
            resolution: end.resolution,
            fits: end.resolution != Resolution::Answered,
        },
        EventPayload::QuestionResolved(end) => Word::Settled {
            id: &end.question_id,
            resolution: end.resolution,
            fits: !matches!(end.resolution, Resolution::Once | Resolution::Always),
        },
        _ => return None,
    })
}

fn settle<T>(asks: &mut BTreeMap<&str, Ask<T>>, id: &str) -> Option<Fault> {
    match asks.get_mut(id) {
        None => Some(Fault::NeverAsked(id.to_owned())),
        Some(ask) => std::mem::replace(&mut ask.settled, true).then(|| Fault::SettledTwice(id.to_owned())),
    }
}

fn left_open<T: Copy + Ord>(asks: &BTreeMap<&str, Ask<T>>, turn: Option<T>) -> Vec<Fault> {
    let open = asks.iter().filter(|(_, ask)| ask.turn == turn && !ask.settled);
    open.map(|(id, _)| Fault::AskLeftOpen((*id).to_owned())).collect()
}

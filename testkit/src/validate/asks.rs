//! Permissions and questions: asked once, settled once, in a way that fits, before the turn ends. Pure.

use std::collections::BTreeMap;

use berth_wire::event::{EventPayload, Resolution};

use super::{Entry, Fault, Violation};

/// Permissions and questions have ids of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Permission,
    Question,
}

type Key<'a> = (Kind, &'a str);

struct Ask<T> {
    turn: Option<T>,
    settled: bool,
}

/// What an entry says of a request.
enum Word<'a> {
    Asked(Key<'a>),
    Settled { key: Key<'a>, resolution: Resolution, fits: bool },
}

pub(super) fn check<T: Copy + Ord>(entries: &[Entry<'_, T>]) -> Vec<Violation> {
    let mut asks: BTreeMap<Key<'_>, Ask<T>> = BTreeMap::new();
    let mut violations = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let faults = match word(entry.payload) {
            Some(Word::Asked(key)) => {
                let fresh = Ask { turn: entry.turn, settled: false };
                asks.insert(key, fresh).map(|_| Fault::AskedTwice(key.1.to_owned())).into_iter().collect()
            }
            Some(Word::Settled { key, resolution, fits }) => {
                let odd = (!fits).then(|| Fault::ResolutionNotAllowed { id: key.1.to_owned(), resolution });
                settle(&mut asks, key).into_iter().chain(odd).collect()
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
        EventPayload::PermissionRequested(asked) => Word::Asked((Kind::Permission, &asked.permission_id)),
        EventPayload::QuestionRequested(asked) => Word::Asked((Kind::Question, &asked.question_id)),
        EventPayload::PermissionResolved(end) => Word::Settled {
            key: (Kind::Permission, &end.permission_id),
            resolution: end.resolution,
            fits: end.resolution != Resolution::Answered,
        },
        EventPayload::QuestionResolved(end) => Word::Settled {
            key: (Kind::Question, &end.question_id),
            resolution: end.resolution,
            fits: !matches!(end.resolution, Resolution::Once | Resolution::Always),
        },
        _ => return None,
    })
}

fn settle<'a, T>(asks: &mut BTreeMap<Key<'a>, Ask<T>>, key: Key<'a>) -> Option<Fault> {
    let id = key.1.to_owned();
    match asks.get_mut(&key) {
        None => Some(Fault::NeverAsked(id)),
        Some(ask) => std::mem::replace(&mut ask.settled, true).then_some(Fault::SettledTwice(id)),
    }
}

fn left_open<T: Copy + Ord>(asks: &BTreeMap<Key<'_>, Ask<T>>, turn: Option<T>) -> Vec<Fault> {
    let open = asks.iter().filter(|(_, ask)| ask.turn == turn && !ask.settled);
    open.map(|((_, id), _)| Fault::AskLeftOpen((*id).to_owned())).collect()
}

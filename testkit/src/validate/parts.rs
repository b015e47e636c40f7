//! Text: a part begins at its beginning, has no hole and no double, keeps its id for itself, and is in the end what the
//! agent's backend said it is. Pure.

use std::collections::BTreeMap;

use berth_wire::event::{EventPayload, Fold, PartPosition, Voice, acp};

use super::{Entry, Extent, Fault, Violation};

struct Part<T> {
    turn: Option<T>,
    voice: Voice,
    length: u64,
    voided: bool,
}

pub(super) fn check<T: Copy + Ord>(entries: &[Entry<'_, T>]) -> Vec<Violation> {
    let mut parts: BTreeMap<String, Part<T>> = BTreeMap::new();
    let mut violations = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let what = match entry.payload {
            EventPayload::PartVoided(voided) => match parts.get_mut(&voided.part_id) {
                Some(part) => {
                    part.voided = true;
                    (part.turn != entry.turn).then(|| Fault::PartReused(voided.part_id.clone()))
                }
                None => Some(Fault::VoidedUnseen(voided.part_id.clone())),
            },
            EventPayload::PartReplaced(replaced) => {
                let (id, length) = (&replaced.part_id, replaced.text.len() as u64);
                let fresh = Part { turn: entry.turn, voice: replaced.voice, length, voided: false };
                let reused = parts.get(id).is_some_and(|part| !part.is_of(entry.turn, replaced.voice));
                parts.insert(id.clone(), fresh);
                reused.then(|| Fault::PartReused(id.clone()))
            }
            payload => chunk(&mut parts, entry.turn, payload),
        };
        violations.extend(what.map(|what| Violation { at, what }));
    }
    violations
}

impl<T: Copy + Ord> Part<T> {
    fn is_of(&self, turn: Option<T>, voice: Voice) -> bool {
        self.turn == turn && self.voice == voice
    }
}

fn chunk<T: Copy + Ord>(
    parts: &mut BTreeMap<String, Part<T>>,
    turn: Option<T>,
    payload: &EventPayload,
) -> Option<Fault> {
    if !is_text(payload) {
        return None;
    }
    let Some((voice, PartPosition { id, offset }, text)) = payload.as_chunk() else {
        return Some(Fault::NoPosition);
    };
    let end = offset + text.len() as u64;
    let Some(part) = parts.get_mut(&id) else {
        parts.insert(id.clone(), Part { turn, voice, length: end, voided: false });
        return (offset > 0).then_some(Fault::PartUnseen { part: id, offset });
    };
    let length = std::mem::replace(&mut part.length, end);
    if !part.is_of(turn, voice) {
        Some(Fault::PartReused(id))
    } else if part.voided {
        Some(Fault::AfterVoid(id))
    } else {
        (offset != length).then_some(Fault::PartBroken { part: id, length, offset })
    }
}

/// The agent's words or thoughts as text.
fn is_text(payload: &EventPayload) -> bool {
    let EventPayload::Update(update) = payload else { return false };
    match &**update {
        acp::SessionUpdate::AgentMessageChunk(chunk) | acp::SessionUpdate::AgentThoughtChunk(chunk) => {
            matches!(chunk.content, acp::ContentBlock::Text(_))
        }
        _ => false,
    }
}

pub(super) fn check_texts<T: Copy + Ord>(
    entries: &[Entry<'_, T>],
    finals: &BTreeMap<String, (Voice, String)>,
    extent: Extent,
) -> Vec<Violation> {
    let mut fold = Fold::default();
    for entry in entries {
        // A hole is told by `check`, once.
        let _ = fold.apply(entry.payload);
    }
    let folded: BTreeMap<&str, (Voice, &str)> = fold
        .parts()
        .iter()
        .filter(|part| !part.voided && !part.text.is_empty())
        .map(|part| (part.id.as_str(), (part.voice, part.text.as_str())))
        .collect();
    let mut violations = Vec::new();
    let mut differs = |part: &str, folded: Option<&str>, wanted: Option<&str>| {
        let (part, folded, wanted) = (part.to_owned(), folded.map(str::to_owned), wanted.map(str::to_owned));
        let what = Fault::TextDiffers { part, folded, wanted };
        violations.push(Violation { at: entries.len(), what });
    };
    for (id, (voice, wanted)) in finals {
        match folded.get(id.as_str()) {
            Some(folded) if *folded == (*voice, wanted.as_str()) => {}
            folded => differs(id, folded.map(|folded| folded.1), Some(wanted)),
        }
    }
    if extent == Extent::Whole {
        for (id, (_, text)) in folded.iter().filter(|(id, _)| !finals.contains_key(**id)) {
            differs(id, Some(text), None);
        }
    }
    violations
}

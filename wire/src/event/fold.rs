//! The fold of a log's chunks to text: the one reading of "what the agent said". Pure.

use super::{EventPayload, Voice};

/// One part, as far as the log tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedPart {
    /// Part id.
    pub id: String,
    /// Which voice.
    pub voice: Voice,
    /// Its text so far.
    pub text: String,
    /// True once the part was voided: its text does not count.
    pub voided: bool,
}

/// Text of a run of events, part by part in order of first sight.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fold {
    parts: Vec<FoldedPart>,
}

/// A chunk that does not follow from the events before it: the log has a hole or a double.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("chunk of part {part_id} starts at {offset}, but the part has {length} bytes")]
pub struct FoldError {
    /// The part.
    pub part_id: String,
    /// Where the chunk starts.
    pub offset: u64,
    /// How long the part is.
    pub length: u64,
}

impl Fold {
    /// Takes the next event; events that carry no text change nothing.
    pub fn apply(&mut self, payload: &EventPayload) -> Result<(), FoldError> {
        match payload {
            EventPayload::PartVoided(voided) => {
                if let Some(part) = self.parts.iter_mut().find(|part| part.id == voided.part_id) {
                    part.voided = true;
                }
            }
            EventPayload::PartReplaced(replaced) => {
                let part = self.part(&replaced.part_id, replaced.voice);
                part.text.clone_from(&replaced.text);
                part.voided = false;
            }
            _ => {
                if let Some((voice, position, text)) = payload.as_chunk() {
                    let part = self.part(&position.id, voice);
                    let length = part.text.len() as u64;
                    if position.offset != length {
                        return Err(FoldError { part_id: position.id, offset: position.offset, length });
                    }
                    part.text.push_str(text);
                }
            }
        }
        Ok(())
    }

    fn part(&mut self, id: &str, voice: Voice) -> &mut FoldedPart {
        let index = self.parts.iter().position(|part| part.id == id).unwrap_or_else(|| {
            self.parts.push(FoldedPart { id: id.to_owned(), voice, text: String::new(), voided: false });
            self.parts.len() - 1
        });
        &mut self.parts[index]
    }

    /// The parts, in order of first sight, voided ones included.
    pub fn parts(&self) -> &[FoldedPart] {
        &self.parts
    }

    /// Text of one voice, voided parts left out.
    pub fn text(&self, voice: Voice) -> String {
        let counts = |part: &&FoldedPart| part.voice == voice && !part.voided;
        self.parts.iter().filter(counts).map(|part| part.text.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{PartReplaced, PartVoided};

    #[test]
    fn holes_and_doubles_are_errors() {
        let mut fold = Fold::default();
        fold.apply(&EventPayload::chunk(Voice::Message, "a", 0, "one ")).unwrap();
        assert!(fold.apply(&EventPayload::chunk(Voice::Message, "a", 0, "one ")).is_err());
        assert!(fold.apply(&EventPayload::chunk(Voice::Message, "a", 9, "three")).is_err());
        fold.apply(&EventPayload::chunk(Voice::Message, "a", 4, "two")).unwrap();
        assert_eq!(fold.text(Voice::Message), "one two");
    }

    #[test]
    fn void_and_replace() {
        let mut fold = Fold::default();
        fold.apply(&EventPayload::chunk(Voice::Message, "a", 0, "lost")).unwrap();
        fold.apply(&EventPayload::PartVoided(PartVoided { part_id: "a".to_owned() })).unwrap();
        let text = "new".to_owned();
        let replaced = PartReplaced { part_id: "b".to_owned(), voice: Voice::Message, text };
        fold.apply(&EventPayload::PartReplaced(replaced)).unwrap();
        fold.apply(&EventPayload::chunk(Voice::Message, "b", 3, "er")).unwrap();
        assert_eq!(fold.text(Voice::Message), "newer");
    }
}

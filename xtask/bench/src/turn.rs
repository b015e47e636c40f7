//! A turn of 5,000 deltas: what opencode 1.18.33 sent for one of six, with more of them.

/// Deltas in the turn.
pub(crate) const DELTAS: usize = 5_000;

/// What `GET /global/event` sent.
const CAPTURE: &str = include_str!("../../../client/opencode/tests/captures/1.18.33-text.global.sse");
const WORDS: usize = 6;

/// The session of the turn.
pub(crate) const SESSION: &str = "ses_dd5371ccbffeMLnN7goi3RJOFg";
/// Its prompt.
pub(crate) const PROMPT: &str = "msg_22ac8e340001aADUKmibg0FEzt";

/// The JSON of each frame, in order.
pub(crate) fn frames() -> Vec<String> {
    let mut frames = Vec::new();
    for frame in CAPTURE.lines().filter_map(|line| line.strip_prefix("data: ")) {
        if !frame.contains(r#""type":"message.part.delta""#) {
            frames.push(frame.replace(&text(WORDS), &text(DELTAS)));
        } else if frame.contains(r#""delta":"word0 ""#) {
            frames.extend((0..DELTAS).map(|index| frame.replace("word0", &format!("word{index}"))));
        }
    }
    frames
}

/// How many frames there are.
pub(crate) const FRAMES: usize = 42 - WORDS + DELTAS;

/// What the agent says in `words` words.
pub(crate) fn text(words: usize) -> String {
    (0..words).flat_map(|index| ["word".to_owned(), index.to_string(), " ".to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turn_has_its_frames() {
        let frames = frames();
        assert_eq!(frames.len(), FRAMES);
        assert_eq!(frames.iter().filter(|frame| frame.contains("message.part.delta")).count(), DELTAS);
        assert_eq!(frames.iter().filter(|frame| frame.contains(&text(DELTAS))).count(), 2);
        assert!(frames.iter().any(|frame| frame.contains(PROMPT) && frame.contains(SESSION)));
    }
}

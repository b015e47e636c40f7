//! Lines that are neither words nor tools: prompts, ends of turns, and what happens by the way. Pure.

use berth_wire::{
    api::PromptPart,
    event::{EventPayload, ProviderRetry, acp},
    turn::{TurnOutcome, TurnState, TurnStopReason, Usage},
};
use jiff::Timestamp;

use crate::{
    chat::line::{Color, Line, Style},
    render::Tone,
    text::{clean, clean_line, duration},
};

/// Longest message of an error, in characters.
const MESSAGE_LIMIT: usize = 1000;

/// How a line of this tone looks.
pub(in crate::chat) fn tone_style(tone: Tone) -> Style {
    match tone {
        Tone::Tool => Style::PLAIN,
        Tone::Good => Style::of(Color::Green),
        Tone::Bad => Style::of(Color::Red),
        Tone::Ask => Style::BOLD,
        Tone::Note => Style::DIM,
    }
}

/// A line in a tone.
pub(in crate::chat) fn note(tone: Tone, text: &str) -> Line {
    Line::new(tone_style(tone), text)
}

pub(super) fn milliseconds(from: Timestamp, to: Timestamp) -> i64 {
    to.as_millisecond().saturating_sub(from.as_millisecond())
}

/// What was typed, without what it mentions.
pub(in crate::chat) fn prompt_text(prompt: &[PromptPart]) -> String {
    let text = |part: &PromptPart| match part {
        PromptPart::Text { text } => Some(clean(text)),
        PromptPart::File { .. } | PromptPart::Agent { .. } => None,
    };
    prompt.iter().filter_map(text).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

/// A prompt as it was typed; the files that go with it are named behind it, where the text does not.
pub(in crate::chat) fn prompt_lines(prompt: &[PromptPart]) -> Vec<Line> {
    let mut text = prompt_text(prompt);
    for part in prompt {
        let name = clean(&part.summary());
        let is_text = matches!(part, PromptPart::Text { .. });
        if !is_text && !text.contains(name.trim_start_matches('[').trim_end_matches(']')) {
            text = if text.is_empty() { name } else { format!("{text} {name}") };
        }
    }
    let mark = Style::of(Color::Cyan).with(Style::BOLD);
    let line = |(at, text): (usize, &str)| {
        let before = if at == 0 { "› " } else { "  " };
        Line::new(mark, before).and(Style::BOLD, text)
    };
    text.lines().enumerate().map(line).collect()
}

/// What an event says, where one line says it all.
pub(super) fn of_event(payload: &EventPayload, at: Timestamp) -> Option<(Tone, String)> {
    match payload {
        EventPayload::TurnError(error) => Some((Tone::Bad, clean_line(&error.message, MESSAGE_LIMIT))),
        EventPayload::ProviderRetry(retry) => Some((Tone::Note, retry_line(retry, at))),
        EventPayload::SessionReset(_) => {
            let text = "opencode had lost this session: it goes on without what was said before";
            Some((Tone::Bad, text.to_owned()))
        }
        EventPayload::MessageRemoved(_) => Some((
            Tone::Note,
            "a message was removed from the session: the agent no longer knows it".to_owned(),
        )),
        _ => None,
    }
}

fn retry_line(retry: &ProviderRetry, at: Timestamp) -> String {
    let due = retry.next_at.map(|next| format!(", next try in {}", duration(milliseconds(at, next))));
    let message = clean_line(&retry.message, 300);
    format!("the model's provider failed: {message} (try {}{})", retry.attempt, due.unwrap_or_default())
}

/// The steps that the agent has planned.
pub(super) fn plan_lines(plan: &acp::Plan) -> Vec<Line> {
    let done = plan.entries.iter().filter(|entry| entry.status == acp::PlanEntryStatus::Completed).count();
    let mut lines = vec![Line::dim(&format!("plan {done}/{}", plan.entries.len()))];
    for entry in &plan.entries {
        let (mark, style) = match entry.status {
            acp::PlanEntryStatus::Completed => ("✓", Style::DIM),
            acp::PlanEntryStatus::InProgress => ("●", Style::PLAIN),
            _ => ("○", Style::DIM),
        };
        lines.push(Line::new(style, &format!("  {mark} {}", clean_line(&entry.content, 200))));
    }
    lines
}

/// How a turn ended, how long it took, what it cost, and which model it was.
pub(super) fn end_line(outcome: &TurnOutcome, took: Option<i64>, model: Option<String>) -> Line {
    let (tone, what) = match (outcome.state, outcome.stop_reason) {
        (TurnState::Succeeded, Some(TurnStopReason::Refusal)) => (Tone::Bad, "✗ the model refused to answer"),
        (TurnState::Succeeded, Some(TurnStopReason::MaxTokens)) => {
            (Tone::Note, "✓ stopped at the model's output limit")
        }
        (TurnState::Succeeded, _) => (Tone::Note, "✓ done"),
        (TurnState::Cancelled, _) => (Tone::Note, "■ cancelled"),
        (TurnState::Unknown, _) => (Tone::Bad, "✗ its outcome cannot be proved"),
        _ => (Tone::Bad, "✗ failed"),
    };
    let mut line = note(tone, what);
    if let Some(error) = &outcome.error {
        let reason = serde_json::to_value(error.reason).ok();
        let reason = reason.as_ref().and_then(|reason| reason.as_str()).unwrap_or_default();
        line.push(tone_style(tone), &format!(": {reason}: {}", clean_line(&error.message, MESSAGE_LIMIT)));
    }
    let took = took.map(duration);
    let parts: Vec<String> = took.into_iter().chain(outcome.usage.and_then(usage)).chain(model).collect();
    if !parts.is_empty() {
        line.push(Style::DIM, &format!("  {}", parts.join(" · ")));
    }
    line
}

/// `1,234 in, 56 out · $0.0123`
fn usage(usage: Usage) -> Option<String> {
    if usage == Usage::default() {
        return None;
    }
    let input = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens;
    let output = usage.output_tokens + usage.reasoning_tokens;
    let cost = if usage.cost_usd > 0.0 { format!(" · ${:.4}", usage.cost_usd) } else { String::new() };
    Some(format!("{} tokens in, {} out{cost}", grouped(input), grouped(output)))
}

/// A number with its thousands set apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use berth_wire::turn::TurnErrorReason;

    use super::*;

    #[test]
    fn ends_of_turns() {
        let used = Usage {
            input_tokens: 1200,
            cache_read_tokens: 34,
            output_tokens: 50,
            reasoning_tokens: 6,
            cost_usd: 0.01234,
            ..Usage::default()
        };
        let good = TurnOutcome { usage: Some(used), ..TurnOutcome::succeeded(TurnStopReason::EndTurn) };
        assert_eq!(
            end_line(&good, Some(3200), Some("a/b".to_owned())).text(),
            "✓ done  3.2 s · 1,234 tokens in, 56 out · $0.0123 · a/b"
        );
        assert_eq!(end_line(&TurnOutcome::cancelled(), None, None).text(), "■ cancelled");
        let failed = TurnOutcome::failed(TurnErrorReason::RateLimited, "slow\ndown");
        assert_eq!(end_line(&failed, Some(10), None).text(), "✗ failed: RateLimited: slow down  0.0 s");
    }

    #[test]
    fn thousands_are_set_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn a_prompt_of_several_lines_keeps_them() {
        let lines = prompt_lines(&[PromptPart::text("one\ntwo")]);
        assert_eq!(lines.iter().map(Line::text).collect::<Vec<_>>(), ["› one", "  two"]);
    }
}

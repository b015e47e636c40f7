//! What is known of a sandbox, as a page for a person. Pure.

use std::collections::BTreeSet;

use berth_api::{Subject, condition::ConditionType, status::LastExit};
use berth_command::{
    printer::Tone,
    table::{self, wrapped},
};
use k8s_openapi::{
    api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Event, Pod},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use super::Picture;
use crate::{
    age::{UNKNOWN, age},
    sandboxes::reason,
};

/// Most Events that are shown, the newest.
const EVENTS: usize = 20;

/// A line of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) tone: Tone,
    pub(super) text: String,
}

impl Line {
    fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self { tone, text: text.into() }
    }

    pub(super) fn empty() -> Self {
        Self::new(Tone::Tool, "")
    }
}

/// The page, in lines that fit into `width` columns where that is known.
pub(super) fn lines(picture: &Picture, now: Timestamp, width: Option<usize>) -> Vec<Line> {
    let mut lines = summary(picture, now, width);
    lines.extend(section("What to do", steps(picture, width)));
    lines.extend(section("Conditions", conditions(picture, now, width)));
    lines.extend(section("Containers", containers(picture, now, width)));
    lines.extend(section("Last exits", exits(picture, now, width)));
    lines.extend(section("Events", events(picture, now, width)));
    let missing = picture.missing.iter().flat_map(|why| wrapped("  ", why, width));
    lines.extend(section("Not read", missing.map(|line| Line::new(Tone::Note, line)).collect()));
    lines
}

fn section(title: &str, lines: Vec<Line>) -> Vec<Line> {
    if lines.is_empty() {
        return lines;
    }
    [Line::empty(), Line::new(Tone::Ask, format!("{title}:"))].into_iter().chain(lines).collect()
}

fn summary(picture: &Picture, now: Timestamp, width: Option<usize>) -> Vec<Line> {
    let found = &picture.sandbox;
    let (ready, reason) = found.ready();
    let tone = match ready {
        "True" => Tone::Good,
        "False" => Tone::Bad,
        _ => Tone::Tool,
    };
    let verdict = if reason.is_empty() { ready.to_owned() } else { format!("{ready}, {reason}") };
    let mut lines = Vec::new();
    let mut add = |tone: Tone, label: &str, text: &str| {
        let begin = format!("{:<12}", format!("{label}:"));
        lines.extend(wrapped(&begin, text, width).into_iter().map(|line| Line::new(tone, line)));
    };
    add(Tone::Tool, "Sandbox", &format!("{}/{}", found.namespace(), found.name()));
    add(tone, "Ready", &verdict);
    let message = match &found.read {
        Ok(_) => found.condition(ConditionType::Ready).map(|ready| ready.message.as_str()),
        Err(why) => Some(why.as_str()),
    };
    if let Some(message) = message.filter(|message| ready != "True" && !message.is_empty()) {
        add(tone, "Because", message);
    }
    add(Tone::Tool, "Model", found.model().unwrap_or(UNKNOWN));
    let status = found.status();
    if let Some(template) = status.and_then(|status| status.template.as_ref()) {
        let generation = template.generation.map(|generation| format!(", generation {generation}"));
        add(Tone::Tool, "Template", &format!("{}{}", template.name, generation.unwrap_or_default()));
    }
    if let Some(time) = status.and_then(|status| status.expires_at.as_ref()) {
        add(Tone::Tool, "Expires", &time.0.to_string());
    }
    add(Tone::Tool, "Age", &age(found.raw.metadata.creation_timestamp.as_ref(), now));
    add(Tone::Tool, "Workspace", &workspace(picture));
    add(Tone::Tool, "Pod", &pod(picture.pod.as_ref(), now));
    lines
}

fn workspace(picture: &Picture) -> String {
    let Some(claim) = &picture.claim else { return "no claim".to_owned() };
    let name = claim.metadata.name.as_deref().unwrap_or(UNKNOWN);
    let status = claim.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Unknown");
    let size = status.and_then(|status| Some(status.capacity.as_ref()?.get("storage")?.0.clone()));
    let size = size.map(|size| format!(", {size}")).unwrap_or_default();
    format!("claim {name}, {phase}{size}")
}

fn pod(pod: Option<&Pod>, now: Timestamp) -> String {
    let Some(pod) = pod else { return "there is none".to_owned() };
    let name = pod.metadata.name.as_deref().unwrap_or(UNKNOWN);
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Unknown");
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let node = node.map(|node| format!(" on {node}")).unwrap_or_default();
    let age = age(pod.metadata.creation_timestamp.as_ref(), now);
    let ends = if pod.metadata.deletion_timestamp.is_some() { ", being deleted" } else { "" };
    format!("{name}, {phase}{node}, {age} old{ends}")
}

/// What to do about each reason for which something does not hold, each step once; `Ready` only repeats another one.
fn steps(picture: &Picture, width: Option<usize>) -> Vec<Line> {
    let mut told = BTreeSet::new();
    let mut lines = Vec::new();
    for condition in all_conditions(picture).iter().filter(|condition| condition.status != "True") {
        let Some(step) = step(picture, condition).filter(|step| told.insert(step.clone())) else { continue };
        let begin = format!("  {}: ", condition.reason);
        lines.extend(wrapped(&begin, &step, width).into_iter().map(|line| Line::new(Tone::Tool, line)));
    }
    lines
}

/// What to do about the reason of a condition.
fn step(picture: &Picture, condition: &Condition) -> Option<String> {
    let (namespace, name) = (picture.sandbox.namespace(), picture.sandbox.name());
    reason(&condition.reason)?.next_step(Subject { namespace: &namespace, name: &name })
}

fn all_conditions(picture: &Picture) -> &[Condition] {
    picture.sandbox.status().map(|status| status.conditions.as_slice()).unwrap_or_default()
}

fn conditions(picture: &Picture, now: Timestamp, width: Option<usize>) -> Vec<Line> {
    let all = all_conditions(picture);
    let row = |condition: &Condition| {
        let since = age(Some(&condition.last_transition_time), now);
        let Condition { type_, status, reason, message, .. } = condition.clone();
        vec![type_, status, reason, since, message]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    let tones = all.iter().map(|condition| match (condition.status.as_str(), step(picture, condition)) {
        // Not to be suspended, and to be on the way, is no fault.
        ("False", Some(_)) => Tone::Bad,
        _ => Tone::Tool,
    });
    indented(&["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"], &rows, tones, width)
}

/// A table, two columns in.
fn indented(
    header: &[&str],
    rows: &[Vec<String>],
    tones: impl Iterator<Item = Tone>,
    width: Option<usize>,
) -> Vec<Line> {
    if rows.is_empty() {
        return Vec::new();
    }
    let lines = table::lines(header, rows, width.map(|width| width.saturating_sub(2)));
    let tones = std::iter::once(Tone::Note).chain(tones);
    lines.iter().zip(tones).map(|(line, tone)| Line::new(tone, format!("  {line}"))).collect()
}

fn containers(picture: &Picture, now: Timestamp, width: Option<usize>) -> Vec<Line> {
    let status = picture.pod.as_ref().and_then(|pod| pod.status.as_ref());
    let inits = status.and_then(|status| status.init_container_statuses.as_ref());
    let own = status.and_then(|status| status.container_statuses.as_ref());
    let all: Vec<&ContainerStatus> = inits.into_iter().chain(own).flatten().collect();
    let row = |status: &&ContainerStatus| {
        let last = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        vec![
            status.name.clone(),
            status.state.as_ref().map_or_else(|| UNKNOWN.to_owned(), |state| state_text(state, now)),
            status.restart_count.to_string(),
            last.map_or_else(|| UNKNOWN.to_owned(), |last| exit_text(last, now)),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    let tones = all.iter().map(|status| if status.ready { Tone::Tool } else { Tone::Bad });
    indented(&["NAME", "STATE", "RESTARTS", "LAST EXIT"], &rows, tones, width)
}

fn state_text(state: &ContainerState, now: Timestamp) -> String {
    if let Some(running) = &state.running {
        return format!("running for {}", age(running.started_at.as_ref(), now));
    }
    if let Some(ended) = &state.terminated {
        return exit_text(ended, now);
    }
    let waiting = state.waiting.as_ref().and_then(|waiting| waiting.reason.as_deref());
    format!("waiting: {}", waiting.unwrap_or("for its start"))
}

fn exit_text(ended: &ContainerStateTerminated, now: Timestamp) -> String {
    let reason = ended.reason.as_deref().unwrap_or("ended");
    let words = ended.message.as_deref().map(|words| format!(": {words}")).unwrap_or_default();
    format!("{reason}, code {}, {} ago{words}", ended.exit_code, age(ended.finished_at.as_ref(), now))
}

fn exits(picture: &Picture, now: Timestamp, width: Option<usize>) -> Vec<Line> {
    let all = picture.sandbox.status().map(|status| status.last_exits.as_slice()).unwrap_or_default();
    let row = |exit: &LastExit| {
        vec![
            age(exit.at.as_ref(), now),
            exit.container.clone(),
            exit.boot.map_or_else(|| UNKNOWN.to_owned(), |boot| boot.to_string()),
            exit.reason.clone(),
            exit.message.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    indented(&["AGO", "CONTAINER", "BOOT", "REASON", "MESSAGE"], &rows, all.iter().map(|_| Tone::Tool), width)
}

/// When an Event was last so: the newest of the times that it has.
pub(crate) fn event_time(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let own =
        [event.last_timestamp.as_ref().map(|time| time.0), event.event_time.as_ref().map(|time| time.0)];
    let times = own.into_iter().chain([series.map(|time| time.0)]).flatten();
    times.max().or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

fn events(picture: &Picture, now: Timestamp, width: Option<usize>) -> Vec<Line> {
    let shown = &picture.events[picture.events.len().saturating_sub(EVENTS)..];
    let row = |event: &Event| {
        let counted = event.series.as_ref().and_then(|series| series.count).or(event.count).unwrap_or(1);
        let object = &event.involved_object;
        vec![
            age(event_time(event).map(Time).as_ref(), now),
            counted.max(1).to_string(),
            event.reason.clone().unwrap_or_default(),
            object.kind.clone().unwrap_or_default(),
            event.message.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = shown.iter().map(row).collect();
    let tones = shown.iter().map(|event| match event.type_.as_deref() {
        Some("Warning") => Tone::Bad,
        _ => Tone::Tool,
    });
    indented(&["LAST", "TIMES", "REASON", "OF", "MESSAGE"], &rows, tones, width)
}

#[cfg(test)]
mod tests;

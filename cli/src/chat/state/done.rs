//! What came of effects. Pure.

use berth_client::ClientError;
use berth_wire::{
    api::{AgentMode, FileChange, FileChangeStatus, PostMessage, Session, SessionState, Turn},
    problem::ProblemType,
};
use jiff::Timestamp;
use uuid::Uuid;

use super::{
    Chat,
    picker::{Choice, Picker, Things},
};
use crate::{
    chat::{
        diff::{Changes, counts, plural},
        effect::Done,
        line::{Line, Style},
        transcript::prompt_text,
    },
    render::Tone,
    text::{ago, clean_line},
};

/// Lines of each file's change that are shown.
const DIFF_LINES: usize = 400;

impl Chat {
    /// An effect was carried out, or could not be.
    pub(in crate::chat) fn done(&mut self, done: Done) {
        match done {
            Done::Posted { key, message, result } => self.posted(key, message, *result),
            Done::Cancelled(Ok(response)) if response.turns.is_empty() => {
                self.cancelling = None;
                self.say(Tone::Note, "nothing runs");
            }
            Done::Cancelled(Err(error)) => {
                self.cancelling = None;
                self.fail(&error);
            }
            Done::Cancelled(Ok(_)) | Done::Answered { result: Ok(()), .. } => {}
            Done::Answered { id, result: Err(error) } => self.answer_failed(&id, &error),
            Done::Sessions(result) => {
                let (here, now) = (self.session.id, self.now);
                self.fill(Things::Sessions, result.map(|all| session_choices(&all, here, now)));
            }
            Done::Models(result) => {
                self.fill(Things::Models, result.map(|all| all.iter().map(model_choice).collect()));
            }
            Done::Agents(result) => self.agents_listed(result),
            Done::Files { directory, result: Ok(entries) } => self.listing.files(directory, entries),
            Done::Files { directory, result: Err(error) } => {
                // That there is no such directory is no news to somebody who is still typing its name.
                if error.problem().is_none() {
                    self.listing.forget(&directory);
                }
            }
            Done::Opened(result) => {
                self.opening = false;
                match result {
                    Ok(opened) => self.enter(*opened),
                    Err(error) => self.fail(&error),
                }
            }
            Done::Renamed(Ok(session)) => {
                let title = session.title.clone().unwrap_or_default();
                self.session.title = session.title;
                self.say(Tone::Note, &format!("this session is called “{title}”"));
            }
            Done::Renamed(Err(error)) | Done::Changes(Err(error)) => self.fail(&error),
            Done::Changes(Ok(files)) => self.changes(&files),
        }
    }

    fn posted(&mut self, key: Uuid, message: Option<PostMessage>, result: Result<Turn, ClientError>) {
        let sent =
            self.sending.iter().position(|sending| sending.key == key).map(|at| self.sending.remove(at));
        match result {
            Ok(turn) => {
                if turn.session_id == self.session.id {
                    if let Some(model) = &turn.model {
                        self.transcript.answered_by(turn.id, model.to_string());
                    }
                    self.queue(turn.id, prompt_text(&turn.prompt));
                }
            }
            Err(error) => {
                self.fail(&error);
                // Nothing that was typed is lost.
                let text =
                    sent.map(|sent| sent.text).or_else(|| message.map(|message| prompt_text(&message.parts)));
                match text {
                    Some(text) if self.editor.is_empty() => self.editor.set(&text),
                    Some(text) => {
                        let text = clean_line(&text, 200);
                        self.say(
                            Tone::Bad,
                            &format!("not sent, and among the prompts of before (Up): {text}"),
                        );
                    }
                    None => {}
                }
            }
        }
    }

    /// Somebody else may have answered first; the log says how it went.
    fn answer_failed(&mut self, id: &str, error: &ClientError) {
        let settled = [Some(ProblemType::AlreadyResolved), Some(ProblemType::NotFound)];
        if error.problem().is_some_and(|problem| settled.contains(&problem.problem_type())) {
            self.settled(id);
            self.say(Tone::Note, "it had been settled already");
        } else {
            self.unanswered(id);
            self.fail(error);
        }
    }

    fn agents_listed(&mut self, result: Result<Vec<berth_wire::api::AgentInfo>, ClientError>) {
        if let Ok(agents) = &result {
            self.listing.agents(agents.clone());
        }
        if self.picker.as_ref().is_none_or(|picker| picker.things != Things::Agents) {
            // It was only for completion, which goes without.
            return;
        }
        let usable = |agents: Vec<berth_wire::api::AgentInfo>| {
            let primary = agents.into_iter().filter(|agent| agent.mode != AgentMode::Subagent);
            let choice = |agent: berth_wire::api::AgentInfo| Choice {
                value: agent.name.clone(),
                label: agent.name,
                detail: agent.description.unwrap_or_default(),
            };
            primary.map(choice).collect()
        };
        self.fill(Things::Agents, result.map(usable));
    }

    fn fill(&mut self, things: Things, result: Result<Vec<Choice>, ClientError>) {
        let picker = self.picker.as_mut().filter(|picker: &&mut Picker| picker.things == things);
        match (picker, result) {
            (Some(picker), Ok(choices)) => picker.fill(choices),
            (Some(_), Err(error)) => {
                self.picker = None;
                self.fail(&error);
            }
            (None, _) => {}
        }
    }

    fn changes(&mut self, files: &[FileChange]) {
        if files.is_empty() {
            self.say(
                Tone::Note,
                "no file changed; outside of a git repository, opencode keeps no track of that",
            );
            return;
        }
        self.settle();
        let indent = Line::dim("  │ ");
        let mut lines = Vec::new();
        for file in files {
            let status = match file.status {
                FileChangeStatus::Added => "added",
                FileChangeStatus::Modified => "modified",
                FileChangeStatus::Deleted => "deleted",
            };
            let mut head = Line::new(Style::BOLD, &file.path).and(Style::DIM, &format!("  {status}  "));
            head.append(counts(file.additions, file.deletions));
            lines.push(head.truncated(self.width));
            if let Some(patch) = &file.patch {
                lines.extend(Changes::of_patch(patch).shown(self.width, DIFF_LINES, &indent));
            }
        }
        let (added, deleted) = files
            .iter()
            .fold((0, 0), |(added, deleted), file| (added + file.additions, deleted + file.deletions));
        let mut sum = Line::dim(&format!("{} {}  ", files.len(), plural(files.len(), "file")));
        sum.append(counts(added, deleted));
        lines.push(sum);
        self.show(&[]);
        self.finished.extend(lines);
    }
}

fn session_choices(sessions: &[Session], here: Uuid, now: Timestamp) -> Vec<Choice> {
    let choice = |session: &Session| {
        let state = match session.state {
            SessionState::Idle => "",
            SessionState::Queued => "queued",
            SessionState::Running => "running",
            SessionState::Waiting => "waits for an answer",
        };
        let id = session.id.to_string();
        let when = ago(session.updated_at, now);
        let about = [when.as_str(), state, if session.id == here { "this one" } else { "" }, &id];
        let about: Vec<&str> = about.into_iter().filter(|text| !text.is_empty()).collect();
        Choice {
            label: session.title.clone().unwrap_or_else(|| "(no title)".to_owned()),
            detail: about.join(" · "),
            value: id,
        }
    };
    sessions.iter().map(choice).collect()
}

fn model_choice(model: &berth_wire::api::ModelInfo) -> Choice {
    let default = if model.default { " · the default" } else { "" };
    Choice {
        value: model.id.to_string(),
        label: model.id.to_string(),
        detail: format!("{} · {}{default}", model.name, model.provider),
    }
}

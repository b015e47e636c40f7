//! One call of the model, which is one assistant message: its text, its thoughts, and its tool calls.

use serde_json::{Value, json};

use super::{
    Player, Stop,
    tool::{ToolCall, Verdict},
};
use crate::{
    beat::{Beat, Beats},
    fake_serve::{
        fault::TurnFault,
        now,
        shapes::{self, Place, Voice},
        world::{Queued, World},
    },
    script::Op,
};

/// How a call of the model ended.
#[derive(Debug, PartialEq)]
pub(super) enum StepEnd {
    /// With its answer.
    Finished,
    /// Without a finish reason: opencode asks again.
    Unknown,
    /// With tool calls, which were run.
    Tools(Verdict),
    /// With this error.
    Failed(Value),
}

#[derive(Debug)]
struct OpenText {
    kind: &'static str,
    id: String,
    start: i64,
    text: String,
}

/// The assistant message of a call.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) place: Place,
    info: Value,
    open: Option<OpenText>,
    pub(super) tools: Vec<ToolCall>,
    pieces: u64,
    length: bool,
}

impl Step {
    pub(super) fn open(
        world: &mut World,
        session: &str,
        parent: &str,
        voice: &Voice,
        directory: &str,
    ) -> Self {
        let created = now();
        let message = world.new_id("msg", created);
        let place = Place { session: session.to_owned(), message };
        let info = shapes::assistant_message(&place, parent, voice, directory, created);
        world.put_message(session, &info, created);
        Self { place, info, open: None, tools: Vec::new(), pieces: 0, length: false }
    }

    fn say(&mut self, world: &mut World, kind: &'static str, text: &str) {
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.end_text(world);
            let start = now();
            let id = world.new_id("prt", start);
            world.put_part(&shapes::part(&self.place, &id, shapes::text(kind, "", start, None)), start);
            self.open = Some(OpenText { kind, id, start, text: String::new() });
        }
        if let Some(open) = &mut self.open {
            open.text.push_str(text);
            world.delta(&self.place, &open.id, text, now());
        }
        self.pieces += 1;
    }

    pub(super) fn end_text(&mut self, world: &mut World) {
        let Some(open) = self.open.take() else { return };
        let end = now();
        let text = shapes::text(open.kind, &open.text, open.start, Some(end));
        world.put_part(&shapes::part(&self.place, &open.id, text), end);
    }

    /// Why the model stopped, when it called no tool.
    pub(super) fn finish(&self) -> &'static str {
        if self.length { "length" } else { "stop" }
    }

    /// The proper end: opencode sends the completed message twice.
    pub(super) fn complete(mut self, world: &mut World, finish: &str) {
        self.end_text(world);
        let id = world.new_id("prt", now());
        world.put_part(&shapes::part(&self.place, &id, shapes::step_finish(finish, self.pieces)), now());
        self.info["tokens"] = shapes::tokens(self.pieces);
        self.info["finish"] = json!(finish);
        self.info["time"]["completed"] = json!(now());
        if let Some(session) = world.sessions.get_mut(&self.place.session) {
            for (key, more) in [("input", 11), ("output", self.pieces)] {
                let sum = session.info["tokens"][key].as_u64().unwrap_or_default() + more;
                session.info["tokens"][key] = json!(sum);
            }
        }
        world.put_message(&self.place.session, &self.info, now());
        world.put_message(&self.place.session, &self.info, now());
    }

    /// The end by an abort or an error.
    pub(super) fn break_off(mut self, world: &mut World, error: Option<&Value>) {
        self.end_text(world);
        for tool in std::mem::take(&mut self.tools) {
            tool.break_off(world, &self.place);
        }
        self.info["time"]["completed"] = json!(now());
        if let Some(error) = error {
            self.info["error"] = error.clone();
        }
        world.put_message(&self.place.session, &self.info, now());
    }
}

impl Player {
    pub(super) fn step(&mut self) -> &mut Step {
        self.step.as_mut().expect("beats are played in a step")
    }

    /// Plays one stream of the model; `None` when its connection broke.
    pub(super) async fn perform(&mut self, queued: &Queued, ops: Vec<Op>) -> Result<Option<StepEnd>, Stop> {
        if self.spoiled == Some(TurnFault::IdleEarly) {
            self.with(|world| {
                world.idle(&self.session, now());
                world.busy(&self.session, now());
            });
        }
        let place = self.step().place.clone();
        self.with(|world| {
            let id = world.new_id("prt", now());
            world.put_part(&shapes::part(&place, &id, json!({ "type": "step-start" })), now());
        });
        for beat in Beats::new(ops) {
            match beat {
                Beat::Text(text) => self.say("text", &text).await?,
                Beat::Thought(text) => self.say("reasoning", &text).await?,
                Beat::Tool { name, arguments } => self.call_tool(queued, &name, &arguments),
                Beat::Pause(time) => self.pause(time).await?,
                Beat::Hang => return Err(self.hang().await),
                Beat::Garbage => return Ok(Some(StepEnd::Failed(shapes::garbage_error()))),
                Beat::Cut => {
                    self.step().open = None;
                    return Ok(None);
                }
                Beat::Truncate => return Ok(Some(StepEnd::Unknown)),
                Beat::Finish { length } => self.step().length = length,
            }
        }
        let shared = std::sync::Arc::clone(&self.shared);
        self.step().end_text(&mut shared.world());
        if self.step().tools.is_empty() {
            return Ok(Some(StepEnd::Finished));
        }
        self.run_tools().await.map(|verdict| Some(StepEnd::Tools(verdict)))
    }

    async fn say(&mut self, kind: &'static str, text: &str) -> Result<(), Stop> {
        if let Some(fault) = self.streams.take() {
            self.with(|world| world.spoil_streams(fault));
        }
        let shared = std::sync::Arc::clone(&self.shared);
        self.step().say(&mut shared.world(), kind, text);
        if self.spoiled == Some(TurnFault::Stalls) {
            return Err(self.hang().await);
        }
        // Lets an abort in between two pieces.
        self.wait(tokio::task::yield_now()).await
    }
}

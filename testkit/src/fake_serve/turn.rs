//! Plays a session's turns in time: what the prompt's script says, in the events that opencode would send.

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::{
    step::{Step, StepEnd},
    tool::Verdict,
};
use super::{
    Shared,
    fault::TurnFault,
    now,
    shapes::{self, Place},
    world::{Queued, World},
};
use crate::{
    answer::Answer,
    conversation::{Choice, Conversation, Prompt},
    script::{Op, Status},
    server::{Opening, settle},
};

mod step;
mod tool;

/// How long the fake waits where opencode waits two seconds and more before it asks a provider again.
const RETRY_PAUSE: Duration = Duration::from_millis(30);
/// How often opencode 1.18.33 asks again.
const RETRIES: u32 = 5;
/// Time between two calls of a model whose stream never has a finish reason.
const ENDLESS_PAUSE: Duration = Duration::from_millis(10);

/// Why a turn stops before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It was aborted.
    Aborted,
    /// The whole server died: nothing is tidied up.
    Died,
}

/// How a prompt's turn went.
#[derive(Debug, PartialEq)]
enum Went {
    /// To its end.
    Well,
    /// A permission was refused: it ends with its tool calls.
    Rejected,
    /// With this error.
    Failed(Value),
    /// Nothing came of it.
    NeverStarted,
}

/// Plays the turns of one session until none waits.
#[derive(Debug)]
pub(super) struct Player {
    pub(super) shared: Arc<Shared>,
    pub(super) session: String,
    pub(super) directory: String,
    pub(super) abort: CancellationToken,
    pub(super) boot: CancellationToken,
    /// The call of the model that goes on.
    step: Option<Step>,
    /// The provider is going to be asked again.
    retrying: bool,
    /// The open streams are to be spoiled at the next delta.
    streams: Option<super::fault::StreamFault>,
    spoiled: Option<TurnFault>,
}

impl Player {
    pub(super) fn new(shared: Arc<Shared>, session: &str, directory: &str, abort: CancellationToken) -> Self {
        let boot = shared.boot();
        Self {
            shared,
            session: session.to_owned(),
            directory: directory.to_owned(),
            abort,
            boot,
            step: None,
            retrying: false,
            streams: None,
            spoiled: None,
        }
    }

    /// Plays what is queued; leaves the session idle, unless the server died.
    pub(super) async fn run(mut self) {
        let mut went = Went::NeverStarted;
        while let Some(queued) = self.next_queued() {
            went = match self.play(&queued).await {
                Ok(went) => went,
                Err(Stop::Died) => return,
                Err(Stop::Aborted) => return self.tidy_up(),
            };
            if went == Went::Rejected || matches!(went, Went::Failed(_)) {
                self.drop_queue();
            }
        }
        self.finish(&went);
    }

    fn with<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        act(&mut self.shared.world())
    }

    /// Waits for something, or for the turn's end from outside.
    async fn wait<T>(&self, what: impl Future<Output = T>) -> Result<T, Stop> {
        tokio::select! {
            biased;
            () = self.boot.cancelled() => Err(Stop::Died),
            () = self.abort.cancelled() => Err(Stop::Aborted),
            done = what => Ok(done),
        }
    }

    async fn pause(&self, time: Duration) -> Result<(), Stop> {
        self.wait(tokio::time::sleep(time)).await
    }

    async fn hang(&self) -> Stop {
        match self.wait(std::future::pending::<()>()).await {
            Ok(()) => Stop::Died,
            Err(stop) => stop,
        }
    }

    fn next_queued(&self) -> Option<Queued> {
        let mut world = self.shared.world();
        let session = world.sessions.get_mut(&self.session)?;
        let queued = session.queue.pop_front();
        if queued.is_none() {
            // Under the same lock, so that no prompt is queued for a player that has left.
            session.running = None;
        }
        queued
    }

    fn drop_queue(&self) {
        self.with(|world| {
            if let Some(session) = world.sessions.get_mut(&self.session) {
                session.queue.clear();
            }
        });
    }

    async fn play(&mut self, queued: &Queued) -> Result<Went, Stop> {
        self.spoiled = queued.spoiled;
        self.streams = queued.streams;
        match queued.spoiled {
            Some(TurnFault::NeverStarts) => return Ok(Went::NeverStarted),
            Some(TurnFault::RefusedLate) => {
                self.refuse_late();
                return Ok(Went::NeverStarted);
            }
            Some(TurnFault::StartsLate(ms)) => self.sleep_through_aborts(ms).await?,
            _ => {}
        }
        if queued.again {
            self.with(|world| world.busy(&self.session, now()));
        } else {
            self.announce(queued);
        }
        if queued.spoiled == Some(TurnFault::Swallows) {
            self.with(|world| world.idle(&self.session, now()));
            return Ok(Went::NeverStarted);
        }
        self.answer(queued).await
    }

    /// An abort in this time is answered and has no effect.
    async fn sleep_through_aborts(&mut self, ms: u64) -> Result<(), Stop> {
        tokio::select! {
            () = self.boot.cancelled() => return Err(Stop::Died),
            () = tokio::time::sleep(Duration::from_millis(ms)) => {}
        }
        self.abort = CancellationToken::new();
        self.with(|world| {
            if let Some(running) =
                world.sessions.get_mut(&self.session).and_then(|session| session.running.as_mut())
            {
                running.abort = self.abort.clone();
            }
        });
        Ok(())
    }

    fn refuse_late(&self) {
        let words = "Agent not found: \"nope\". Available agents: build, explore, general, plan";
        let trace = "UnknownError: UnknownError\n    at <anonymous> (/$bunfs/home/u/chunk.js:1142:2068)";
        for message in [words, trace] {
            let error = json!({ "name": "UnknownError", "data": { "message": message } });
            self.with(|world| world.error(&self.session, &error, now()));
        }
    }

    /// Stores the prompt and begins.
    fn announce(&self, queued: &Queued) {
        let place = Place { session: self.session.clone(), message: queued.message.clone() };
        let (voice, id) = (&queued.voice, &self.session);
        let model = json!({ "id": voice.model, "providerID": voice.provider, "variant": "default" });
        let created = now();
        self.with(|world| {
            let info = world.sessions.get(id).map(|session| session.info.clone()).unwrap_or_default();
            if info["agent"] != voice.agent.as_str() || info["model"] != model {
                world.update(id, created, |info| {
                    info["agent"] = json!(voice.agent);
                    info["model"] = model;
                    info["time"]["updated"] = json!(created);
                });
            }
            world.put_message(id, &shapes::user_message(&place, voice, created), created);
            for part in &queued.parts {
                world.put_part(part, now());
            }
            world.update(id, now(), |info| info["time"]["updated"] = json!(now()));
            world.busy(id, now());
        });
    }

    async fn answer(&mut self, queued: &Queued) -> Result<Went, Stop> {
        let text = text_of(&queued.parts);
        let (mut index, mut counters, mut calls) = (0, HashMap::new(), 0_u32);
        loop {
            self.begin_step(queued, &text, calls == 0);
            calls += 1;
            let end = self.call_model(queued, &text, index, &mut counters).await?;
            let step = self.step.take().expect("a step was begun");
            match end {
                StepEnd::Failed(error) => {
                    self.step = Some(step);
                    return Ok(Went::Failed(error));
                }
                StepEnd::Finished if self.spoiled == Some(TurnFault::LeftOpen) => return Ok(Went::Well),
                StepEnd::Finished => {
                    let finish = step.finish();
                    self.with(|world| step.complete(world, finish));
                    return Ok(Went::Well);
                }
                StepEnd::Unknown => {
                    self.with(|world| {
                        step.complete(world, "unknown");
                        world.busy(&self.session, now());
                    });
                    self.pause(ENDLESS_PAUSE).await?;
                }
                StepEnd::Tools(verdict) => {
                    self.with(|world| step.complete(world, "tool-calls"));
                    if verdict == Verdict::Stop {
                        return Ok(Went::Rejected);
                    }
                    self.with(|world| world.busy(&self.session, now()));
                    index += 1;
                }
            }
        }
    }

    fn begin_step(&mut self, queued: &Queued, text: &str, first: bool) {
        let step = self.with(|world| {
            let step = Step::open(world, &self.session, &queued.message, &queued.voice, &self.directory);
            world.update(&self.session, now(), |info| {
                info["summary"] = json!({ "additions": 0, "deletions": 0, "files": 0 });
                info["time"]["updated"] = json!(now());
            });
            self.no_difference(world);
            let untitled = world
                .sessions
                .get(&self.session)
                .and_then(|session| session.info["title"].as_str())
                .is_some_and(|title| title.starts_with("New session - "));
            if first && untitled {
                let title: String = text.split_whitespace().take(4).collect::<Vec<_>>().join(" ");
                world.update(&self.session, now(), |info| info["title"] = json!(title));
            }
            step
        });
        self.step = Some(step);
    }

    fn no_difference(&self, world: &mut World) {
        let properties = json!({ "sessionID": self.session, "diff": [] });
        world.publish(&self.session, "session.diff", properties, now());
    }

    /// Asks the model, again and again while the provider fails as it does for a while only.
    async fn call_model(
        &mut self,
        queued: &Queued,
        text: &str,
        index: usize,
        counters: &mut HashMap<(usize, usize), u32>,
    ) -> Result<StepEnd, Stop> {
        let mut attempt = 0;
        loop {
            self.retrying = false;
            self.with(|world| world.busy(&self.session, now()));
            let count = |operation| {
                let counter = counters.entry((index, operation)).or_insert(0);
                *counter += 1;
                *counter
            };
            let (words, after) = match settle(self.operations(text, index), count) {
                Opening::Refuse(status) if attempt >= RETRIES || !shapes::is_retried(status.code) => {
                    return Ok(StepEnd::Failed(shapes::provider_error(status.code)));
                }
                Opening::Refuse(Status { code, retry_after, .. }) => {
                    (shapes::said(code), retry_after.map_or(RETRY_PAUSE, Duration::from_secs))
                }
                Opening::HoldHeaders => return Err(self.hang().await),
                Opening::Play(ops) => match self.perform(queued, ops).await? {
                    Some(end) => return Ok(end),
                    None => ("Connection reset by server".to_owned(), RETRY_PAUSE),
                },
            };
            attempt += 1;
            self.retrying = true;
            let next = now().saturating_add(i64::try_from(after.as_millis()).unwrap_or(i64::MAX));
            let status = json!({ "type": "retry", "attempt": attempt, "message": words, "next": next });
            self.with(|world| world.set_status(&self.session, status, now()));
            self.pause(after).await?;
        }
    }

    /// What the model does in this step.
    fn operations(&self, text: &str, step: usize) -> Vec<Op> {
        match self.spoiled {
            Some(TurnFault::DoubledErrors) => {
                return vec![Op::Status(Status { code: 400, times: None, retry_after: None })];
            }
            Some(TurnFault::Endless) => return vec![Op::Say("and ".to_owned()), Op::Eof],
            _ => {}
        }
        let choice = Choice::read(text);
        if choice == Choice::Nothing {
            let words = ["This is the fake serve. ", "It has no model; ", "it plays what the prompt says."];
            return words.map(|words| Op::Say(words.to_owned())).into();
        }
        let conversation = Conversation {
            model: "m".to_owned(),
            stream: true,
            directory: Some(self.directory.clone()),
            tools: Vec::new(),
            messages: 0,
            prompt: Prompt { text: text.to_owned(), choice, position: 0, step },
        };
        Answer::to(&conversation).ops
    }

    /// Leaves what was aborted as opencode leaves it.
    fn tidy_up(mut self) {
        let error = if self.retrying { None } else { Some(shapes::aborted()) };
        let step = self.step.take();
        self.drop_queue();
        self.with(|world| {
            if let Some(step) = step {
                step.break_off(world, error.as_ref());
                world.idle(&self.session, now());
            }
            if let Some(session) = world.sessions.get_mut(&self.session) {
                session.running = None;
                session.status = None;
            }
        });
    }

    fn finish(mut self, went: &Went) {
        let step = self.step.take();
        match went {
            Went::NeverStarted => return,
            Went::Failed(error) => self.with(|world| {
                world.error(&self.session, error, now());
                world.idle(&self.session, now());
                if let Some(step) = step {
                    step.break_off(world, Some(error));
                }
                world.idle(&self.session, now());
            }),
            Went::Rejected => self.with(|world| world.idle(&self.session, now())),
            Went::Well => self.with(|world| {
                world.busy(&self.session, now());
                world.idle(&self.session, now());
            }),
        }
        if !matches!(went, Went::Failed(_)) {
            self.with(|world| {
                world.update(&self.session, now(), |info| info["time"]["updated"] = json!(now()));
                self.no_difference(world);
            });
        }
        if self.spoiled == Some(TurnFault::LateWords) {
            self.late_words();
        }
    }

    /// Says something in the last text part of the last message.
    fn late_words(&self) {
        self.with(|world| {
            let Some((messages, _)) = world.messages(&self.session, 1, None) else { return };
            let Some(message) = messages.last() else { return };
            let parts = message["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
            let Some(part) = parts.iter().rfind(|part| part["type"] == "text") else { return };
            let id = message["info"]["id"].as_str().unwrap_or_default();
            let place = Place { session: self.session.clone(), message: id.to_owned() };
            world.delta(&place, part["id"].as_str().unwrap_or_default(), "and late words", now());
            world.put_part(&part.clone(), now());
            world.put_message(&self.session, &message["info"].clone(), now());
        });
    }
}

/// The prompt's text parts, joined by newlines.
pub(super) fn text_of(parts: &[Value]) -> String {
    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

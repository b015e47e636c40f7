//! Plays one case and records what opencode sends meanwhile. Does IO.

use std::time::Duration;

use anyhow::{Context, bail};
use berth_opencode::{
    Event, EventStream, GlobalEvent, ModelReference, NewSession, OpencodeClient, Prompt, PromptPart, ids,
    model::{PartKind, PermissionAction, PermissionRule, Role, SessionStatus, ToolStatus},
};
use berth_wire::sse::SseEvent;
use tokio::time::{Instant, timeout, timeout_at};
use uuid::Uuid;

use crate::{
    case::{Case, Sign, Then},
    server::Server,
};

/// opencode loses what it sends within 100 ms of a subscription.
const SETTLE: Duration = Duration::from_millis(300);
/// How long nothing may come after the session's idle before the recording ends: opencode tells of titles and ends late.
const QUIET: Duration = Duration::from_millis(1500);
/// Bound on one case.
const BOUND: Duration = Duration::from_mins(2);

/// A recording under way.
struct Play<'a> {
    client: &'a OpencodeClient,
    case: &'a Case,
    directory: String,
    session: String,
    stream: EventStream,
    frames: Vec<SseEvent>,
    acted: bool,
    idle: bool,
}

/// Plays the case in a new directory.
pub(crate) async fn play(server: &Server, case: &Case) -> anyhow::Result<Vec<SseEvent>> {
    let configuration = case.configuration_asks().then_some(r#"{"permission":{"bash":"ask"}}"#);
    let directory = server.directory(case.name, configuration).await?;
    let client = &server.client;
    let stream = if case.is_global() {
        client.global_events(None).await?
    } else {
        client.directory_events(&directory).await?
    };
    let (frames, acted) = (Vec::new(), matches!(case.then, Then::End | Then::Cut(_)));
    let mut play =
        Play { client, case, directory, session: String::new(), stream, frames, acted, idle: false };
    play.read_for(SETTLE).await?;
    play.session = play.new_session().await?;
    let played = play.whole().await;
    // A case that is cut or fails runs on; nothing of it is to be in the next recording.
    play.client.abort(&play.directory, &play.session).await?;
    played.map(|()| play.frames)
}

impl Play<'_> {
    async fn whole(&mut self) -> anyhow::Result<()> {
        self.prompt(self.case.script).await?;
        if let Then::Cut(time) = self.case.then {
            return self.read_for(time).await;
        }
        timeout(BOUND, self.until_the_end()).await.context("it does not end")?
    }

    async fn new_session(&self) -> anyhow::Result<String> {
        let ask =
            PermissionRule { permission: "bash".into(), pattern: "*".into(), action: PermissionAction::Ask };
        let permission = if self.case.session_asks() { vec![ask] } else { Vec::new() };
        let new = NewSession { title: None, berth_session_id: Uuid::now_v7(), permission };
        Ok(self.client.create_session(&self.directory, &new).await?.id)
    }

    async fn prompt(&self, script: &str) -> anyhow::Result<()> {
        let mut prompt = Prompt::new(ids::message_id(), vec![PromptPart::text(script)]);
        match self.case.name {
            "prompt-badagent" => prompt.agent = Some("nosuch".to_owned()),
            "prompt-badmodel" => {
                let (provider_id, model_id) = ("scripted".to_owned(), "nosuch".to_owned());
                prompt.model = Some(ModelReference { provider_id, model_id });
            }
            _ => {}
        }
        Ok(self.client.send_prompt(&self.directory, &self.session, &prompt).await?)
    }

    async fn read_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        while let Ok(frame) = timeout_at(end, self.stream.next_frame()).await {
            self.frames.push(frame.context("the stream ended")??);
        }
        Ok(())
    }

    async fn until_the_end(&mut self) -> anyhow::Result<()> {
        loop {
            let wait = if self.idle && self.acted { QUIET } else { BOUND };
            let Ok(frame) = timeout(wait, self.stream.next_frame()).await else { return Ok(()) };
            let frame = frame.context("the stream ended")??;
            let event = GlobalEvent::parse(&frame.data).ok().map(|event| event.event);
            self.frames.push(frame);
            match event {
                Some(Event::SessionIdle { session_id }) if session_id == self.session => self.idle = true,
                Some(event) if !self.acted => self.act(&event).await?,
                _ => {}
            }
        }
    }

    async fn act(&mut self, event: &Event) -> anyhow::Result<()> {
        let (client, directory) = (self.client, self.directory.as_str());
        match (self.case.then, event) {
            (Then::Abort(sign), event) if self.shows(sign, event) => {
                client.abort(directory, &self.session).await?;
            }
            (Then::Permit(reply, message), Event::PermissionAsked(request)) => {
                client.reply_permission(directory, &request.id, reply, message).await?;
            }
            (Then::Answer(answer), Event::QuestionAsked(request)) => {
                client.reply_question(directory, &request.id, &[vec![answer.to_owned()]]).await?;
            }
            (Then::Dismiss, Event::QuestionAsked(request)) => {
                client.reject_question(directory, &request.id).await?;
            }
            (Then::Prompt(script), event) if self.shows(Sign::Delta, event) => self.prompt(script).await?,
            _ => {
                if self.idle {
                    bail!("it ended before there was anything to do");
                }
                return Ok(());
            }
        }
        self.acted = true;
        Ok(())
    }

    fn shows(&self, sign: Sign, event: &Event) -> bool {
        let ours = event.session_id() == Some(&self.session);
        match event {
            Event::PartDelta(_) => sign == if ours { Sign::Delta } else { Sign::SubagentDelta },
            Event::PermissionAsked(_) => sign == Sign::Asked,
            Event::MessageUpdated(info) => ours && info.role == Role::Assistant && sign == Sign::Answer,
            Event::SessionStatus { status: SessionStatus::Retry { .. }, .. } => ours && sign == Sign::Retry,
            Event::PartUpdated(part) => {
                let runs =
                    matches!(&part.kind, PartKind::Tool(tool) if tool.state.status == ToolStatus::Running);
                runs && sign == Sign::ToolRuns
            }
            _ => false,
        }
    }
}

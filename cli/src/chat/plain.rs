//! A conversation without a terminal, or on one that can do nothing: each line is a prompt. Does IO.

use std::io;

use berth_wire::api::CancelRequest;

use super::commands::{Command, Typed, understand};
use crate::{
    config::{AnswerPolicy, ChatConfig, Target},
    connect,
    error::{CliError, Exit, error_chain},
    input::{Input, Line},
    interrupts::Interrupts,
    output::Output,
    render::{Tone, history_lines},
    turn::{Conversation, End, PATIENCE, View, open_session, patient},
};

/// Turns that are shown when a session is taken up again.
const HISTORY_TURNS: usize = 10;

const HELP: [&str; 4] = [
    "/help    this; there are more commands at a terminal that can move its cursor",
    "/cancel  end what runs in this session, and drop what waits",
    "/quit    leave; so does the end of the input",
    "anything else is sent to the agent",
];

/// Talks until the input ends.
pub(super) async fn talk(config: ChatConfig) -> Result<Exit, CliError> {
    let client = connect::client(&config.server)?;
    let mut interrupts = Interrupts::of_process().map_err(CliError::Signals)?;
    let session = tokio::select! {
        session = open_session(&client, &config.target) => session?,
        () = interrupts.next() => return Ok(Exit::Cancelled),
    };
    let conversation = Conversation {
        client: patient(client, PATIENCE),
        answers: config.answers,
        view: View::Text,
        output: Output::standard(config.shape),
        input: Input::start().map_err(CliError::Input)?,
        interrupts,
        last_seq: session.last_seq,
        session,
        patience: PATIENCE,
    };
    let person = matches!(config.answers, AnswerPolicy::Ask | AnswerPolicy::Allow { person: true });
    let mut chat = Chat { conversation, person, last: Exit::Succeeded };
    chat.greet(matches!(config.target, Target::Resume(_))).await?;
    chat.talk().await
}

struct Chat {
    conversation: Conversation,
    /// Somebody is there to read what stands before a line.
    person: bool,
    /// How the last turn ended: what a script that pipes prompts in wants to know.
    last: Exit,
}

impl Chat {
    async fn greet(&mut self, resumed: bool) -> Result<(), CliError> {
        let session = &self.conversation.session;
        let (id, sandbox) = (session.id, format!("{}/{}", session.namespace, session.sandbox));
        self.note(&format!("{sandbox}: berth chat --session {id} takes this session up again"))?;
        if resumed {
            let turns = self.conversation.client.history(id).await?;
            let shown = self.conversation.output.show(&history_lines(&turns, HISTORY_TURNS));
            shown.map_err(CliError::Output)?;
        }
        Ok(())
    }

    async fn talk(&mut self) -> Result<Exit, CliError> {
        loop {
            let line = match self.read().await.map_err(CliError::Input)? {
                Line::Text(line) => line,
                Line::Closed => return Ok(self.last),
            };
            match understand(&line) {
                Typed::Nothing => {}
                Typed::Command(Command::Quit, _) => return Ok(self.last),
                Typed::Command(Command::Help, _) => HELP.iter().try_for_each(|line| self.note(line))?,
                Typed::Command(Command::Cancel, _) => self.cancel().await?,
                Typed::Command(..) => self.note("this command needs a terminal that can move its cursor")?,
                Typed::Unknown(word) => self.note(&format!("{word} is not a command; /help lists them"))?,
                Typed::Prompt(prompt) => {
                    if self.turn(prompt).await? == Some(End::Left) {
                        self.note("left before the turn's end")?;
                        return Ok(Exit::Cancelled);
                    }
                }
            }
        }
    }

    async fn read(&mut self) -> io::Result<Line> {
        if self.person {
            self.conversation.output.prompt("> ")?;
        }
        tokio::select! {
            line = self.conversation.input.line() => line,
            // Nobody sees a warning that asks for a second one.
            () = self.conversation.interrupts.next() => Ok(Line::Closed),
        }
    }

    /// One turn. Where somebody is there to read it, what the server refuses is said and forgiven.
    async fn turn(&mut self, prompt: &str) -> Result<Option<End>, CliError> {
        match self.conversation.turn(prompt).await {
            Ok(end) => {
                if let End::Ended(outcome) = &end {
                    self.last = Exit::of(outcome);
                }
                Ok(Some(end))
            }
            Err(error @ (CliError::Client(_) | CliError::CancelTimeout { .. })) if self.person => {
                let shown = self.conversation.output.note(Tone::Bad, &error_chain(&error));
                shown.map_err(CliError::Output)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn cancel(&mut self) -> Result<(), CliError> {
        let id = self.conversation.session.id;
        let note = match self.conversation.client.cancel(id, CancelRequest::all()).await {
            Ok(answer) if answer.turns.is_empty() => "nothing runs".to_owned(),
            Ok(answer) => format!("cancelled: {} turn(s)", answer.turns.len()),
            Err(error) => error_chain(&error),
        };
        self.note(&note)
    }

    fn note(&mut self, text: &str) -> Result<(), CliError> {
        self.conversation.output.note(Tone::Note, text).map_err(CliError::Output)
    }
}

//! `berth chat`: a session, prompt after prompt. Does IO.

use std::io;

use berth_wire::api::CancelRequest;

use crate::{
    config::{ChatConfig, Target},
    connect,
    error::{CliError, Exit, chain},
    input::{Input, Line},
    interrupts::Interrupts,
    output::Output,
    render::{Tone, history_lines},
    turn::{Conversation, End, View, open_session},
};

/// Turns that are shown when a session is taken up again.
const HISTORY_TURNS: usize = 10;

const HELP: [&str; 4] = [
    "/help    this",
    "/cancel  end what runs in this session, and drop what waits",
    "/quit    leave; so do Ctrl-D, and Ctrl-C twice",
    "anything else is sent to the agent; Ctrl-C while it works ends its turn",
];

/// What a line is.
#[derive(Debug, PartialEq, Eq)]
enum Typed<'a> {
    Nothing,
    Help,
    Cancel,
    Quit,
    UnknownCommand(&'a str),
    Prompt(&'a str),
}

fn understand(line: &str) -> Typed<'_> {
    let line = line.trim();
    match line {
        "" => Typed::Nothing,
        "/help" => Typed::Help,
        "/cancel" => Typed::Cancel,
        "/quit" | "/exit" => Typed::Quit,
        // A path is a fair beginning of a prompt, a lone word behind a slash is a command.
        word if word.starts_with('/') && word[1..].chars().all(char::is_alphabetic) => {
            Typed::UnknownCommand(word)
        }
        prompt => Typed::Prompt(prompt),
    }
}

/// Talks until the person leaves.
pub async fn chat(config: ChatConfig) -> Result<Exit, CliError> {
    let client = connect::client(&config.server)?;
    let mut interrupts = Interrupts::of_process().map_err(CliError::Signals)?;
    let session = tokio::select! {
        session = open_session(&client, &config.target) => session?,
        () = interrupts.next() => return Ok(Exit::Cancelled),
    };
    let history = config.server.state.chat_history();
    let conversation = Conversation {
        client,
        answers: config.answers,
        view: View::Text,
        output: Output::standard(config.shape),
        input: Input::start(Some(history)).map_err(CliError::Input)?,
        interrupts,
        last_seq: session.last_seq,
        session,
    };
    let resumed = matches!(config.target, Target::Resume(_));
    let mut chat = Chat { conversation, editor: config.editor, last: Exit::Succeeded };
    chat.greet(resumed).await?;
    chat.talk().await
}

struct Chat {
    conversation: Conversation,
    editor: bool,
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
        if self.editor {
            self.note("/help lists commands; Ctrl-D leaves")?;
        }
        Ok(())
    }

    async fn talk(&mut self) -> Result<Exit, CliError> {
        let mut warned = false;
        loop {
            let line = match self.read().await.map_err(CliError::Input)? {
                Line::Text(line) => line,
                Line::Closed => break,
                Line::Interrupted if warned => break,
                Line::Interrupted => {
                    warned = true;
                    self.note("press Ctrl-C again to leave, or type on")?;
                    continue;
                }
            };
            warned = false;
            match understand(&line) {
                Typed::Nothing => {}
                Typed::Quit => break,
                Typed::Help => self.help()?,
                Typed::Cancel => self.cancel().await?,
                Typed::UnknownCommand(word) => {
                    self.note(&format!("{word} is not a command; /help lists them"))?;
                }
                Typed::Prompt(prompt) => {
                    if self.turn(prompt).await? == Some(End::Left) {
                        self.note("left before the turn's end")?;
                        return Ok(Exit::Cancelled);
                    }
                }
            }
        }
        Ok(if self.editor { Exit::Succeeded } else { self.last })
    }

    async fn read(&mut self) -> io::Result<Line> {
        if self.editor {
            return self.conversation.input.edited("› ").await;
        }
        tokio::select! {
            line = self.conversation.input.plain() => line,
            // Without an editor, nobody sees a warning that asks for a second one.
            () = self.conversation.interrupts.next() => Ok(Line::Closed),
        }
    }

    /// One turn. At a terminal, what the server refuses is said and forgiven.
    async fn turn(&mut self, prompt: &str) -> Result<Option<End>, CliError> {
        match self.conversation.turn(prompt).await {
            Ok(end) => {
                if let End::Ended(outcome) = &end {
                    self.last = Exit::of(outcome);
                }
                Ok(Some(end))
            }
            Err(error @ (CliError::Client(_) | CliError::CancelTimeout { .. })) if self.editor => {
                let shown = self.conversation.output.note(Tone::Bad, &chain(&error));
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
            Err(error) => chain(&error),
        };
        self.note(&note)
    }

    fn help(&mut self) -> Result<(), CliError> {
        HELP.iter().try_for_each(|line| self.note(line))
    }

    fn note(&mut self, text: &str) -> Result<(), CliError> {
        self.conversation.output.note(Tone::Note, text).map_err(CliError::Output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_prompts() {
        let cases = [
            ("  ", Typed::Nothing),
            ("/help ", Typed::Help),
            ("/cancel", Typed::Cancel),
            ("/exit", Typed::Quit),
            ("/halp", Typed::UnknownCommand("/halp")),
            ("/etc/hosts: explain it", Typed::Prompt("/etc/hosts: explain it")),
            (" fix it ", Typed::Prompt("fix it")),
        ];
        for (line, typed) in cases {
            assert_eq!(understand(line), typed, "{line:?}");
        }
    }
}

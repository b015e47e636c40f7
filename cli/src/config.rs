//! What is to be done, checked: arguments and environment become a [`Config`]. The only place in this program that
//! reads the environment; beyond that and the question what the three streams are, pure.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io::IsTerminal,
    path::{Path, PathBuf},
    time::Duration,
};

use berth_wire::api::{ModelChoice, PARTS_MAX};

use crate::{
    args::{AnswerArgs, Args, ChatArgs, Command, DebugCommand, RunArgs, ServerArgs, SessionArgs},
    choice::SessionChoice,
    connect::ServerChoice,
    copy::CopyConfig,
    debug::{capture::CaptureConfig, replay::ReplayConfig},
    diff::DiffConfig,
    doctor::DoctorConfig,
    down::DownConfig,
    error::CliError,
    output::Shape,
    sessions::SessionsConfig,
    shell::{CompletionsConfig, ManConfig},
    state::StateDir,
    status::StatusConfig,
    turn::PATIENCE,
    up::{DetachConfig, UpConfig},
};

mod debug;
mod doctor;
mod local;
mod sessions;
mod shell;
mod up;

/// Namespace of everything in local mode.
pub const LOCAL: &str = "local";
/// Name of the sandbox that is meant when none is named.
pub const DEFAULT_SANDBOX: &str = "default";
/// Longest name of a sandbox, in characters: in a cluster, names of its objects are built from it.
const SANDBOX_NAME_LIMIT: usize = 52;

/// The process's environment, read once.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
    /// The current directory.
    pub current_directory: PathBuf,
    /// This program.
    pub program: PathBuf,
}

impl Environment {
    /// That of this process.
    pub fn of_process() -> std::io::Result<Self> {
        Ok(Self {
            variables: std::env::vars_os().collect(),
            current_directory: std::env::current_dir()?,
            program: std::env::current_exe()?,
        })
    }

    /// One made of these variables, for tests.
    pub fn of(variables: &[(&str, &str)], current_directory: &Path) -> Self {
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let program = PathBuf::from("/usr/bin/berth");
        Self { variables: variables.collect(), current_directory: current_directory.to_owned(), program }
    }

    /// All variables.
    pub fn variables(&self) -> &BTreeMap<OsString, OsString> {
        &self.variables
    }

    /// A variable that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// A base directory: the variable's value when it is an absolute path, as the XDG specification wants it, else
    /// `fallback` in the home directory.
    pub fn base_directory(&self, name: &'static str, fallback: &str) -> Result<PathBuf, CliError> {
        if let Some(path) = self.get(name).map(PathBuf::from).filter(|path| path.is_absolute()) {
            return Ok(path);
        }
        let home = self.get("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let reason = || format!("neither {name} nor HOME is an absolute path; set one");
        Ok(home.ok_or_else(|| CliError::usage(name, reason()))?.join(fallback))
    }

    /// `path`, relative to the current directory when it is not absolute.
    pub fn absolute(&self, path: &Path) -> PathBuf {
        self.current_directory.join(path)
    }
}

/// What is to be answered when the agent asks for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerPolicy {
    /// Allow each time once; questions are put to the person at the terminal, or rejected where there is none.
    Allow {
        /// Somebody is there to ask.
        person: bool,
    },
    /// Reject.
    Deny,
    /// Ask the person at the terminal.
    Ask,
    /// Nobody is there to ask: reject, and say how to allow.
    Nobody,
}

/// The conversation that is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A new session in this sandbox.
    New {
        /// Namespace of the sandbox.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A session that exists.
    Resume(SessionChoice),
}

/// Where the prompt is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptSource {
    /// Here.
    Text(String),
    /// On standard input, to its end.
    StandardInput,
}

/// `berth run`, checked.
#[derive(Debug, Clone)]
pub struct RunConfig {
    /// The server.
    pub server: ServerChoice,
    /// The conversation.
    pub target: Target,
    /// The prompt.
    pub prompt: PromptSource,
    /// Events as JSON lines instead of text.
    pub json: bool,
    /// Answers to the agent's requests.
    pub answers: AnswerPolicy,
    /// The model that is to answer; the session's own when absent.
    pub model: Option<ModelChoice>,
    /// The agent that is to work; opencode's default one when absent.
    pub agent: Option<String>,
    /// Files that are given along.
    pub files: Vec<PathBuf>,
    /// The turn is cancelled when it takes longer.
    pub limit: Option<Duration>,
    /// How long the server is waited for when it goes away.
    pub patience: Duration,
    /// The output streams.
    pub shape: Shape,
}

/// `berth chat`, checked.
#[derive(Debug, Clone)]
pub struct ChatConfig {
    /// The server.
    pub server: ServerChoice,
    /// The conversation.
    pub target: Target,
    /// Answers to the agent's requests.
    pub answers: AnswerPolicy,
    /// The output streams.
    pub shape: Shape,
    /// There is a terminal that can move its cursor.
    pub screen: bool,
}

/// What the command is to do.
#[derive(Debug)]
pub enum Config {
    /// `berth run`
    Run(RunConfig),
    /// `berth chat`
    Chat(ChatConfig),
    /// `berth up`
    Up(Box<UpConfig>),
    /// `berth up --detach`
    Detach(DetachConfig),
    /// `berth down`
    Down(DownConfig),
    /// `berth status`
    Status(StatusConfig),
    /// `berth sessions`
    Sessions(SessionsConfig),
    /// `berth diff`
    Diff(DiffConfig),
    /// `berth cp`
    Copy(CopyConfig),
    /// `berth completions`
    Completions(CompletionsConfig),
    /// `berth doctor`
    Doctor(Box<DoctorConfig>),
    /// `berth man`
    Man(ManConfig),
    /// `berth debug replay`
    Replay(ReplayConfig),
    /// `berth debug capture`
    Capture(Box<CaptureConfig>),
}

/// What the standard streams are connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streams {
    /// Standard input is a terminal.
    pub input_terminal: bool,
    /// Standard output is a terminal.
    pub out_terminal: bool,
    /// Standard error is a terminal.
    pub err_terminal: bool,
}

impl Streams {
    /// Those of this process.
    pub fn of_process() -> Self {
        Self {
            input_terminal: std::io::stdin().is_terminal(),
            out_terminal: std::io::stdout().is_terminal(),
            err_terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Somebody can be asked: they see what is asked, and what they type is read.
    fn person(self) -> bool {
        self.input_terminal && (self.out_terminal || self.err_terminal)
    }
}

impl Config {
    /// Checks the arguments against the environment and the streams.
    pub fn new(args: Args, environment: &Environment, streams: Streams) -> Result<Self, CliError> {
        match args.command {
            Command::Run(args) => Ok(Self::Run(run(args, environment, streams)?)),
            Command::Chat(args) => Ok(Self::Chat(chat(args, environment, streams)?)),
            Command::Up(args) if args.detach => Ok(Self::Detach(up::detach(args, environment, streams)?)),
            Command::Up(args) => Ok(Self::Up(Box::new(up::up(&args, environment, streams)?))),
            Command::Down(args) => Ok(Self::Down(local::down(args, environment, streams)?)),
            Command::Status(args) => Ok(Self::Status(local::status(args, environment, streams)?)),
            Command::Sessions(command) => {
                Ok(Self::Sessions(sessions::sessions(command, environment, streams)?))
            }
            Command::Diff(args) => Ok(Self::Diff(sessions::diff(args, environment, streams)?)),
            Command::Cp(args) => Ok(Self::Copy(sessions::copy(args, environment, streams)?)),
            Command::Completions(args) => Ok(Self::Completions(shell::completions(&args))),
            Command::Doctor(args) => Ok(Self::Doctor(Box::new(doctor::doctor(args, environment, streams)?))),
            Command::Man(args) => Ok(Self::Man(shell::man(args))),
            Command::Debug(DebugCommand::Replay(args)) => Ok(Self::Replay(debug::replay(args))),
            Command::Debug(DebugCommand::Capture(args)) => {
                Ok(Self::Capture(Box::new(debug::capture(args, environment)?)))
            }
        }
    }
}

fn run(args: RunArgs, environment: &Environment, streams: Streams) -> Result<RunConfig, CliError> {
    let prompt = match args.prompt.as_slice() {
        [] if streams.input_terminal => {
            let reason =
                "missing: berth run \"explain this repository\", or `-` to type it here, ended by Ctrl-D";
            return Err(CliError::usage("PROMPT", reason));
        }
        [] => PromptSource::StandardInput,
        [dash] if dash == "-" => PromptSource::StandardInput,
        words => PromptSource::Text(not_blank(words.join(" "))?),
    };
    if args.file.len() >= PARTS_MAX {
        return Err(CliError::usage("--file", format!("given {PARTS_MAX} times or more")));
    }
    // A prompt typed to its end leaves standard input at its end: nothing more can be read from it.
    let typed = prompt == PromptSource::StandardInput;
    Ok(RunConfig {
        server: server(args.server, environment)?,
        target: target(&args.session)?,
        answers: answers(&args.answers, streams.person() && !typed),
        prompt,
        model: args.model.as_deref().map(model).transpose()?,
        agent: args.agent,
        files: args.file.iter().map(|file| environment.absolute(file)).collect(),
        limit: args.timeout.map(Duration::from_secs),
        patience: args.wait.map_or(PATIENCE, Duration::from_secs),
        json: args.json,
        shape: shape(environment, streams),
    })
}

fn chat(args: ChatArgs, environment: &Environment, streams: Streams) -> Result<ChatConfig, CliError> {
    Ok(ChatConfig {
        server: server(args.server, environment)?,
        target: target(&args.session)?,
        answers: answers(&args.answers, streams.person()),
        shape: shape(environment, streams),
        screen: streams.input_terminal && streams.out_terminal && !is_dumb(environment),
    })
}

fn model(text: &str) -> Result<ModelChoice, CliError> {
    text.parse().map_err(|_| {
        let reason = format!("{text:?} is not PROVIDER/MODEL, such as anthropic/claude-sonnet-4-5");
        CliError::usage("--model", reason)
    })
}

/// A prompt that says something.
pub fn not_blank(prompt: String) -> Result<String, CliError> {
    if prompt.trim().is_empty() {
        return Err(CliError::usage("PROMPT", "blank; say what the agent is to do"));
    }
    Ok(prompt)
}

fn server(args: ServerArgs, environment: &Environment) -> Result<ServerChoice, CliError> {
    let state = state_dir(args.data, environment)?;
    Ok(ServerChoice { url: args.server, token_file: args.token_file, state })
}

fn state_dir(data: Option<PathBuf>, environment: &Environment) -> Result<StateDir, CliError> {
    let root = match data {
        Some(data) => environment.absolute(&data),
        None => environment.base_directory("XDG_STATE_HOME", ".local/state")?.join("berth"),
    };
    Ok(StateDir::new(root))
}

fn target(args: &SessionArgs) -> Result<Target, CliError> {
    if let Some(choice) = &args.session {
        return Ok(Target::Resume(choice.clone()));
    }
    let (namespace, name) = sandbox_key(args.sandbox.as_deref().unwrap_or(DEFAULT_SANDBOX))?;
    Ok(Target::New { namespace, name })
}

/// Namespace and name of a sandbox, of NAME or NAMESPACE/NAME.
fn sandbox_key(text: &str) -> Result<(String, String), CliError> {
    let (namespace, name) = text.split_once('/').unwrap_or((LOCAL, text));
    let (namespace, name) = (namespace.to_owned(), sandbox_name("--sandbox", name)?);
    if !is_label(&namespace, 63) {
        let reason = format!("{namespace:?} is not a namespace: {LABEL_RULE}, at most 63 of them");
        return Err(CliError::usage("--sandbox", reason));
    }
    Ok((namespace, name))
}

const LABEL_RULE: &str = "lower-case letters, digits and dashes, beginning and ending with a letter or digit";

fn is_label(text: &str, limit: usize) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=limit).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// A name that a sandbox can have, in a cluster too.
pub fn sandbox_name(field: &'static str, name: &str) -> Result<String, CliError> {
    if is_label(name, SANDBOX_NAME_LIMIT) {
        return Ok(name.to_owned());
    }
    let reason =
        format!("{name:?} is not a sandbox's name: {LABEL_RULE}, at most {SANDBOX_NAME_LIMIT} of them");
    Err(CliError::usage(field, reason))
}

fn answers(args: &AnswerArgs, person: bool) -> AnswerPolicy {
    match (args.allow, args.deny, person) {
        (true, _, person) => AnswerPolicy::Allow { person },
        (_, true, _) => AnswerPolicy::Deny,
        (_, _, true) => AnswerPolicy::Ask,
        (_, _, false) => AnswerPolicy::Nobody,
    }
}

/// The terminal can do nothing but print.
fn is_dumb(environment: &Environment) -> bool {
    environment.get("TERM").is_some_and(|term| term == "dumb")
}

fn shape(environment: &Environment, streams: Streams) -> Shape {
    // NO_COLOR is a convention among command line programs: set to anything, it asks for none.
    let color = environment.get("NO_COLOR").is_none() && !is_dumb(environment);
    Shape { out_terminal: streams.out_terminal, err_terminal: streams.err_terminal, color }
}

#[cfg(test)]
mod tests;

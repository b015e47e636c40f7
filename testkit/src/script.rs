//! The script language: what a prompt makes the scripted model do. Pure.
//!
//! A script is the text after `@stub ` up to the end of its line. One step per request of the turn, steps are
//! separated by ` >> `, the operations of a step by ` | `:
//!
//! ```text
//! @stub say:I will look. | tool:bash:{"command":"ls"} >> say:That was all.
//! ```
//!
//! [`Script`] is the parsed form. Parsing never panics and names what is wrong and where ([`ScriptError`]); a
//! parsed script prints as text that parses to the same script.

use std::{fmt, str::FromStr};

mod parse;

/// Largest number of steps in a script.
pub const MAX_STEPS: usize = 1_000;
/// Largest number of operations in one step.
pub const MAX_OPERATIONS: usize = 1_000;
/// Largest `n=` of `text` and `think`.
pub const MAX_WORDS: u32 = 100_000;
/// Longest pause, in milliseconds; also how long `hang` and `hangpre` last.
pub const MAX_PAUSE_MS: u64 = 3_600_000;

/// A parsed script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// One list of operations for each request of the turn, in order.
    pub steps: Vec<Vec<Op>>,
}

/// One operation of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// `text[:n=10,d=0,w=word]`: several pieces of answer text.
    Text(Words),
    /// `say:free text`: one piece of answer text, exactly this.
    Say(String),
    /// `think[:n=10,d=0,w=word]`: several pieces of reasoning.
    Think(Words),
    /// `reason:free text`: one piece of reasoning, exactly this.
    Reason(String),
    /// `tool:NAME:ARGUMENTS`: a tool call. The arguments are sent as they are written, even when they are not JSON.
    Tool {
        /// Name of the tool.
        name: String,
        /// Arguments, JSON text by intent.
        arguments: String,
    },
    /// `sleep:MS`: a pause in mid-stream, in milliseconds.
    Sleep(u64),
    /// `hang`: no further byte; the stream's headers have been sent.
    Hang,
    /// `hangpre`: the request is accepted and no header is ever sent. First, or right after `status`.
    HoldHeaders,
    /// `status:CODE[,times=K][,ra=SECONDS]`: an HTTP error instead of a stream. Only as the first operation.
    Status(Status),
    /// `drop`: the connection is closed in mid-stream.
    Drop,
    /// `dropn:K`: the same, for the first K requests of this step only.
    DropFirst(u32),
    /// `eof`: the body ends cleanly, without a finish reason and without the closing mark.
    Eof,
    /// `badjson`: a data line that is not JSON.
    BadJson,
    /// `length`: the answer ends because of its length.
    Length,
}

/// Parameters of `text` and `think`: pieces `word0 `, `word1 ` and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Words {
    /// Number of pieces.
    pub count: u32,
    /// Milliseconds between two pieces.
    pub delay_ms: u64,
    /// What each piece starts with; its number follows.
    pub word: String,
}

impl Default for Words {
    fn default() -> Self {
        Self { count: 10, delay_ms: 0, word: "word".to_owned() }
    }
}

impl Words {
    /// The piece of this number, counted from 0.
    pub fn piece(&self, index: u32) -> String {
        format!("{}{index} ", self.word)
    }
}

/// Parameters of `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// HTTP status, 400 to 599.
    pub code: u16,
    /// How many requests of this step get it; all of them when absent.
    pub times: Option<u32>,
    /// Seconds for the `retry-after` header; no header when absent.
    pub retry_after: Option<u64>,
}

/// What is wrong with a script, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// Too many steps.
    #[error("{found} steps, at most {MAX_STEPS} are allowed")]
    TooManySteps {
        /// Number of steps in the script.
        found: usize,
    },
    /// Too many operations in a step.
    #[error("step {step} has {found} operations, at most {MAX_OPERATIONS} are allowed")]
    TooManyOperations {
        /// The step, counted from 1.
        step: usize,
        /// Number of operations in the step.
        found: usize,
    },
    /// An operation is wrong.
    #[error("step {step}, operation {operation} `{text}`")]
    Operation {
        /// The step, counted from 1.
        step: usize,
        /// The operation in its step, counted from 1.
        operation: usize,
        /// The operation as written, shortened.
        text: String,
        /// What is wrong with it.
        #[source]
        fault: Fault,
    },
}

impl ScriptError {
    /// The whole fault in one line.
    pub fn explain(&self) -> String {
        match self {
            Self::Operation { fault, .. } => format!("{self}: {fault}"),
            Self::TooManySteps { .. } | Self::TooManyOperations { .. } => self.to_string(),
        }
    }
}

/// What is wrong with one operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Nothing between two separators.
    #[error("the operation is empty")]
    Empty,
    /// No operation has this name.
    #[error(
        "no such operation; there are text, say, think, reason, tool, sleep, hang, hangpre, status, drop, \
         dropn, eof, badjson and length"
    )]
    UnknownOperation,
    /// An operation that takes no parameters has some.
    #[error("this operation takes no parameters")]
    Unexpected,
    /// A parameter is not one that this operation has.
    #[error("`{0}` is not a parameter of this operation")]
    UnknownParameter(String),
    /// A number is missing, malformed or out of its range.
    #[error("{name} must be a whole number from {min} to {max}")]
    Number {
        /// What the number is.
        name: &'static str,
        /// Smallest legal value.
        min: u64,
        /// Largest legal value.
        max: u64,
    },
    /// `tool` without a name.
    #[error("a tool call is written tool:NAME:{{arguments}}")]
    ToolName,
    /// `status` or `hangpre` after something else.
    #[error("this must be the first operation of its step")]
    NotFirst,
}

impl FromStr for Script {
    type Err = ScriptError;

    fn from_str(source: &str) -> Result<Self, Self::Err> {
        parse::parse(source)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            if index > 0 {
                f.write_str(" >> ")?;
            }
            for (index, op) in step.iter().enumerate() {
                if index > 0 {
                    f.write_str(" | ")?;
                }
                op.fmt(f)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(words) => write!(f, "text:{words}"),
            Self::Say(text) => write!(f, "say:{text}"),
            Self::Think(words) => write!(f, "think:{words}"),
            Self::Reason(text) => write!(f, "reason:{text}"),
            Self::Tool { name, arguments } => write!(f, "tool:{name}:{arguments}"),
            Self::Sleep(ms) => write!(f, "sleep:{ms}"),
            Self::Hang => f.write_str("hang"),
            Self::HoldHeaders => f.write_str("hangpre"),
            Self::Status(status) => write!(f, "status:{status}"),
            Self::Drop => f.write_str("drop"),
            Self::DropFirst(times) => write!(f, "dropn:{times}"),
            Self::Eof => f.write_str("eof"),
            Self::BadJson => f.write_str("badjson"),
            Self::Length => f.write_str("length"),
        }
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n={},d={},w={}", self.count, self.delay_ms, self.word)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        if let Some(times) = self.times {
            write!(f, ",times={times}")?;
        }
        if let Some(seconds) = self.retry_after {
            write!(f, ",ra={seconds}")?;
        }
        Ok(())
    }
}

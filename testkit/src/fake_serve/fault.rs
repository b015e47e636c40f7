//! The faults that the fake produces on demand, their names, and how a prompt asks for one. Pure.
//!
//! There are three kinds, by what they spoil: an HTTP answer, an event stream, or the events and state of one turn.
//! A fault of the server spoils every answer, stream and turn from then on. One that a prompt asks for, by the word
//! `fault:NAME` or `fault:NAME=NUMBER`, spoils the answer to that prompt, the streams that are open while it runs, or
//! its turn.

use std::{fmt, str::FromStr};

/// Number of bytes of [`StreamFault::HugeFrame`] and of the head of [`AnswerFault::HugeHeader`]'s one header.
pub(super) const HUGE_FRAME: usize = 64 * 1024 * 1024;
pub(super) const HUGE_HEADER: usize = 1024 * 1024;

/// What is to go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An HTTP answer is spoiled.
    Answer(AnswerFault),
    /// An event stream is spoiled.
    Stream(StreamFault),
    /// A turn is spoiled.
    Turn(TurnFault),
}

/// How an HTTP answer is spoiled. The call has its effect all the same, but for one that is refused
/// ([`Self::Unauthorized`], [`Self::OtherLine`]) or whose connection is closed before it is sent ([`Self::Closed`],
/// [`Self::NotHttp`], for the server).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerFault {
    /// `no-answer`: the request is taken and never answered.
    NoAnswer,
    /// `html`: 200 and a web page.
    Html,
    /// `other-line`: 405 for a new session, and a version 2.0.0, as another line of opencode might.
    OtherLine,
    /// `unauthorized=N`: 401 after N more requests; for a prompt, at once.
    Unauthorized(u64),
    /// `slow=MS`: each byte of the body takes so many milliseconds.
    Slow(u64),
    /// `wrong-type`: the right body, called `text/plain`.
    WrongType,
    /// `error-500`: 500 without a body.
    Error500,
    /// `empty`: 200 and no body, called JSON.
    Empty,
    /// `other-json`: 200 and JSON of a shape that no route has.
    OtherJson,
    /// `redirect`: 302 to another host.
    Redirect,
    /// `cut-gzip`: a body that is called gzip and is the first bytes of one.
    CutGzip,
    /// `no-end`: half a JSON document, and then nothing, with the connection open.
    NoEnd,
    /// `cut-body`: half a JSON document, and then the connection is closed.
    CutBody,
    /// `flood`: a body that never ends.
    Flood,
    /// `huge-header`: a header of a mebibyte.
    HugeHeader,
    /// `not-http`: bytes that are no HTTP; for a prompt, the same as `closed`.
    NotHttp,
    /// `closed`: the connection is closed without an answer.
    Closed,
}

/// How an event stream is spoiled, from now on. For the server, "now" is the beginning of each subscription, after its
/// `server.connected`; for a prompt, its turn's first delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFault {
    /// `silent`: nothing more, not even heartbeats.
    Silent,
    /// `heartbeats-only`: no event but heartbeats.
    HeartbeatsOnly,
    /// `huge-frame`: a frame of 64 MiB.
    HugeFrame,
    /// `half-frame`: half a frame, then the connection is closed.
    HalfFrame,
    /// `cut=N`: the connection is closed after N bytes, `server.connected` included.
    Cut(u64),
    /// `dies=N`: after N bytes the whole server dies: every connection is closed, turns stop as they are, and nothing
    /// is accepted until it is mended.
    Dies(u64),
    /// `ends`: the body ends properly.
    Ends,
    /// `bad-json`: one frame that is not JSON.
    BadJson,
    /// `no-type`: one frame of JSON without a type.
    NoType,
    /// `bad-shape`: one event of a known kind without its fields.
    BadShape,
    /// `unknown-kind`: one event of a kind that nobody knows.
    UnknownKind,
    /// `bad-utf8`: one frame whose text is not UTF-8.
    BadUtf8,
    /// `loses=N`: the next N events are lost; opencode loses those right after `server.connected`.
    Loses(u64),
    /// `dribble`: the bytes come one by one, with the line endings of another system, and comments between frames.
    Dribble,
    /// `drip=MS`: each byte takes so many milliseconds.
    Drip(u64),
}

/// How a turn is spoiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnFault {
    /// `never-starts`: the prompt is accepted, and nothing ever comes of it.
    NeverStarts,
    /// `starts-late=MS`: it begins so much later; an abort before that is answered and lost, as in a cold directory.
    StartsLate(u64),
    /// `refused-late`: the prompt is accepted; then come two errors and nothing else, as for an unknown agent.
    RefusedLate,
    /// `swallows`: the prompt is stored and the session busy for a moment; the model is not asked, and it goes idle.
    Swallows,
    /// `never-idle`: everything but the end: the session stays busy.
    NeverIdle,
    /// `lost-idle`: the idle events are lost; the status says idle.
    LostIdle,
    /// `idle-twice`: the idle events come twice.
    IdleTwice,
    /// `idle-early`: an idle before the first word, as a late one of the turn before.
    IdleEarly,
    /// `lost-busy`: the busy events are lost.
    LostBusy,
    /// `doubled-errors`: the provider refuses, and each error comes twice.
    DoubledErrors,
    /// `late-type`: a text part is announced only after two of its deltas.
    LateType,
    /// `out-of-order`: each two neighbouring message events change places.
    OutOfOrder,
    /// `doubled`: each event comes twice.
    Doubled,
    /// `lost-deltas`: the deltas are lost.
    LostDeltas,
    /// `no-final`: the completed messages are not sent; they are listed.
    NoFinal,
    /// `left-open`: the last message is never completed, not even in the list, and the session goes idle.
    LeftOpen,
    /// `late-words`: more words of the turn come after its end.
    LateWords,
    /// `stalls`: after the first delta nothing more comes until it is aborted.
    Stalls,
    /// `endless`: the model's stream has no finish reason, so it is asked again and again.
    Endless,
    /// `deaf`: an abort is answered and has no effect.
    Deaf,
    /// `lost-ask`: the requests for permissions and answers are not sent; they are listed.
    LostAsk,
}

/// A word that names no fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// No fault has this name.
    #[error("there is no fault {0:?}")]
    Unknown(String),
    /// The fault wants a number.
    #[error("the fault {0} wants a number: {0}=5")]
    NumberMissing(String),
    /// The fault takes no number, or what stands there is none.
    #[error("{1:?} is no number for the fault {0}")]
    NumberWrong(String, String),
}

/// How a fault is made of its number.
#[derive(Clone, Copy)]
enum Make {
    Plain(Fault),
    Numbered(fn(u64) -> Fault),
}

use AnswerFault as A;
use StreamFault as S;
use TurnFault as T;

const fn answer(fault: AnswerFault) -> Make {
    Make::Plain(Fault::Answer(fault))
}

const fn stream(fault: StreamFault) -> Make {
    Make::Plain(Fault::Stream(fault))
}

const fn turn(fault: TurnFault) -> Make {
    Make::Plain(Fault::Turn(fault))
}

/// Every fault by its name.
const NAMES: [(&str, Make); 53] = [
    ("no-answer", answer(A::NoAnswer)),
    ("html", answer(A::Html)),
    ("other-line", answer(A::OtherLine)),
    ("unauthorized", Make::Numbered(|n| Fault::Answer(A::Unauthorized(n)))),
    ("slow", Make::Numbered(|n| Fault::Answer(A::Slow(n)))),
    ("wrong-type", answer(A::WrongType)),
    ("error-500", answer(A::Error500)),
    ("empty", answer(A::Empty)),
    ("other-json", answer(A::OtherJson)),
    ("redirect", answer(A::Redirect)),
    ("cut-gzip", answer(A::CutGzip)),
    ("no-end", answer(A::NoEnd)),
    ("cut-body", answer(A::CutBody)),
    ("flood", answer(A::Flood)),
    ("huge-header", answer(A::HugeHeader)),
    ("not-http", answer(A::NotHttp)),
    ("closed", answer(A::Closed)),
    ("silent", stream(S::Silent)),
    ("heartbeats-only", stream(S::HeartbeatsOnly)),
    ("huge-frame", stream(S::HugeFrame)),
    ("half-frame", stream(S::HalfFrame)),
    ("cut", Make::Numbered(|n| Fault::Stream(S::Cut(n)))),
    ("dies", Make::Numbered(|n| Fault::Stream(S::Dies(n)))),
    ("ends", stream(S::Ends)),
    ("bad-json", stream(S::BadJson)),
    ("no-type", stream(S::NoType)),
    ("bad-shape", stream(S::BadShape)),
    ("unknown-kind", stream(S::UnknownKind)),
    ("bad-utf8", stream(S::BadUtf8)),
    ("loses", Make::Numbered(|n| Fault::Stream(S::Loses(n)))),
    ("dribble", stream(S::Dribble)),
    ("drip", Make::Numbered(|n| Fault::Stream(S::Drip(n)))),
    ("never-starts", turn(T::NeverStarts)),
    ("starts-late", Make::Numbered(|n| Fault::Turn(T::StartsLate(n)))),
    ("refused-late", turn(T::RefusedLate)),
    ("swallows", turn(T::Swallows)),
    ("never-idle", turn(T::NeverIdle)),
    ("lost-idle", turn(T::LostIdle)),
    ("idle-twice", turn(T::IdleTwice)),
    ("idle-early", turn(T::IdleEarly)),
    ("lost-busy", turn(T::LostBusy)),
    ("doubled-errors", turn(T::DoubledErrors)),
    ("late-type", turn(T::LateType)),
    ("out-of-order", turn(T::OutOfOrder)),
    ("doubled", turn(T::Doubled)),
    ("lost-deltas", turn(T::LostDeltas)),
    ("no-final", turn(T::NoFinal)),
    ("left-open", turn(T::LeftOpen)),
    ("late-words", turn(T::LateWords)),
    ("stalls", turn(T::Stalls)),
    ("endless", turn(T::Endless)),
    ("deaf", turn(T::Deaf)),
    ("lost-ask", turn(T::LostAsk)),
];

impl Fault {
    /// Every fault, those with a number with this one.
    pub fn all(number: u64) -> impl Iterator<Item = Self> {
        NAMES.iter().map(move |(_, make)| match make {
            Make::Plain(fault) => *fault,
            Make::Numbered(make) => make(number),
        })
    }

    fn number(self) -> Option<u64> {
        match self {
            Self::Answer(A::Unauthorized(n) | A::Slow(n))
            | Self::Stream(S::Cut(n) | S::Dies(n) | S::Loses(n) | S::Drip(n))
            | Self::Turn(T::StartsLate(n)) => Some(n),
            _ => None,
        }
    }

    fn name(self) -> Option<&'static str> {
        let number = self.number().unwrap_or_default();
        Self::all(number).zip(NAMES).find(|(fault, _)| *fault == self).map(|(_, (name, _))| name)
    }

    /// The faults that a prompt asks for; words that name none are passed over.
    pub(super) fn wanted_by(prompt: &str) -> Vec<Self> {
        let words = prompt.split_whitespace().filter_map(|word| word.strip_prefix("fault:"));
        words.filter_map(|word| word.parse().ok()).collect()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.number()) {
            (Some(name), Some(number)) => write!(f, "{name}={number}"),
            (Some(name), None) => f.write_str(name),
            (None, _) => write!(f, "{self:?}"),
        }
    }
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let (name, number) = text.split_once('=').map_or((text, None), |(name, number)| (name, Some(number)));
        let found = NAMES.iter().find(|(other, _)| *other == name);
        let (_, make) = found.ok_or_else(|| FaultError::Unknown(text.to_owned()))?;
        let wrong = |number: &str| FaultError::NumberWrong(name.to_owned(), number.to_owned());
        match (make, number) {
            (Make::Plain(fault), None) => Ok(*fault),
            (Make::Plain(_), Some(number)) => Err(wrong(number)),
            (Make::Numbered(_), None) => Err(FaultError::NumberMissing(name.to_owned())),
            (Make::Numbered(make), Some(number)) => number.parse().map(make).map_err(|_| wrong(number)),
        }
    }
}

impl From<AnswerFault> for Fault {
    fn from(fault: AnswerFault) -> Self {
        Self::Answer(fault)
    }
}

impl From<StreamFault> for Fault {
    fn from(fault: StreamFault) -> Self {
        Self::Stream(fault)
    }
}

impl From<TurnFault> for Fault {
    fn from(fault: TurnFault) -> Self {
        Self::Turn(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_prints_as_the_name_that_it_is_read_from() {
        for fault in Fault::all(7) {
            assert_eq!(fault.to_string().parse(), Ok(fault), "{fault:?}");
        }
        assert_eq!("cut=120".parse(), Ok(Fault::Stream(StreamFault::Cut(120))));
    }

    #[test]
    fn what_is_no_fault_is_refused_with_a_reason() {
        for (text, words) in [
            ("nope", "there is no fault"),
            ("cut", "wants a number"),
            ("cut=x", "no number"),
            ("html=1", "no number"),
        ] {
            let error = text.parse::<Fault>().unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn a_prompt_asks_by_a_word() {
        let faults =
            Fault::wanted_by("please fault:never-idle and fault:cut=9 not fault:nonsense\n@stub say:hi");
        assert_eq!(faults, [Fault::Turn(TurnFault::NeverIdle), Fault::Stream(StreamFault::Cut(9))]);
        assert!(Fault::wanted_by("a plain prompt").is_empty());
    }
}

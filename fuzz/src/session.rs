//! A session that is sent any events: true ones of a capture in order, missed, again, of other captures, spoilt in one
//! place, and made of raw bytes; while its translator is stored and resumed, and its turns are cancelled, aborted,
//! failed and begun anew.
//!
//! Whatever comes: nothing panics, each turn ends once and its log has every property that
//! `berth_testkit::validate` knows, a translator that was stored and resumed is the same, and events that are not the
//! session's change nothing.
//!
//! Input: number of the stream (two bytes) and of the session in it (one), then steps: a byte for the kind, see
//! [`Player::step`], and what it needs.

use berth_opencode::{Event, GlobalEvent, SessionTranslator, Snapshot, Translation, TurnPhase, model::Role};
use berth_testkit::validate::{Entry, Extent, check};
use berth_wire::{
    event::{EventPayload, Fold, TurnStarted},
    turn::{TurnError, TurnErrorReason},
};

use crate::{
    captures::{Capture, streams},
    input::Input,
    spoil::spoil,
};

/// Bound on the steps of one input, so that none takes long.
const MAX_STEPS: usize = 400;

/// Runs one input; panics when something does not hold.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let Some(capture) = input.capture() else { return };
    let mut player = Player::new(capture);
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        player.step(&mut input);
    }
    player.finish();
}

struct Player<'a> {
    capture: &'a Capture,
    translator: SessionTranslator,
    /// Index of the capture's next event.
    next: usize,
    /// What opencode would answer.
    world: Snapshot,
    /// The session's log, each entry with its turn's number.
    log: Vec<(Option<usize>, EventPayload)>,
    fold: Fold,
    turns: usize,
    /// The turn that runs.
    turn: Option<usize>,
}

impl<'a> Player<'a> {
    fn new(capture: &'a Capture) -> Self {
        let mut player = Self {
            capture,
            translator: SessionTranslator::new(&capture.root),
            next: 0,
            world: Snapshot::default(),
            log: Vec::new(),
            fold: Fold::default(),
            turns: 0,
            turn: None,
        };
        player.begin(capture.prompts.first().map_or("msg_never_shown", String::as_str));
        player
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0 => (0..=input.byte() % 32).for_each(|_| self.pass(true)),
            1 => self.miss(input.byte() % 32),
            2 => self.send(input.choose(&self.capture.events).cloned()),
            3 => self.send(spoil(&self.capture.frames, input)),
            4 => {
                let length = input.number() % 4096;
                self.send(GlobalEvent::parse(&String::from_utf8_lossy(input.bytes(length))).ok());
            }
            5 => {
                let other = input.capture().unwrap_or(self.capture);
                self.send(input.choose(&other.events).cloned());
            }
            6 => self.translator.mark_gap(),
            7 => self.reconcile(),
            8 => self.store_and_resume(),
            9 => self.translator.request_cancel(),
            10 => self.translator.request_abort(given_up()),
            11 => self.abort(input.byte()),
            12 => self.end(input.byte()),
            13 => self.begin(input.choose(&self.capture.prompts).map_or("msg_own", String::as_str)),
            14 => self.tell_context_size(input.number()),
            _ => {
                let other = input.capture().unwrap_or(self.capture);
                self.send(spoil(&other.frames, input));
            }
        }
    }

    fn begin(&mut self, prompt: &str) {
        if self.translator.phase() == TurnPhase::Idle {
            self.translator.begin_turn(prompt);
            self.turns += 1;
            self.turn = Some(self.turns);
        }
    }

    /// The capture's next event, seen or missed. When it shows a prompt and no turn runs, that prompt is ours.
    fn pass(&mut self, seen: bool) {
        let Some(event) = self.capture.events.get(self.next) else { return };
        self.next += 1;
        if let Event::MessageUpdated(info) = &event.event
            && info.role == Role::User
            && info.session_id == self.capture.root
        {
            self.begin(&info.id);
        }
        if seen {
            self.send(Some(event.clone()));
        } else {
            self.world.take(&self.capture.root, &event.event);
        }
    }

    fn miss(&mut self, count: u8) {
        (0..=count).for_each(|_| self.pass(false));
        self.translator.mark_gap();
        self.store_and_resume();
        self.reconcile();
    }

    fn send(&mut self, event: Option<GlobalEvent>) {
        let Some(event) = event else { return };
        self.world.take(&self.capture.root, &event.event);
        if self.translator.concerns(&event) {
            let out = self.translator.apply(&event);
            self.take(out);
        } else {
            let before = self.translator.clone();
            assert_eq!(self.translator.apply(&event), [], "out of what is not the session's: {event:?}");
            assert_eq!(self.translator, before, "by what is not the session's: {event:?}");
        }
    }

    fn reconcile(&mut self) {
        let out = self.translator.reconcile(&self.world);
        self.take(out);
        for _ in 0..3 {
            if self.translator.in_doubt() {
                let out = self.translator.reconcile(&self.world);
                self.take(out);
            }
        }
    }

    fn store_and_resume(&mut self) {
        let stored = serde_json::to_string(&self.translator).expect("a translator can be stored");
        let resumed = serde_json::from_str(&stored).expect("a stored translator can be resumed");
        assert_eq!(self.translator, resumed, "stored as {stored}");
        self.translator = resumed;
    }

    fn abort(&mut self, how: u8) {
        if !self.translator.abort_due() {
            return;
        }
        self.translator.abort_sent();
        if how & 1 == 0 {
            let out = self.translator.abort_returned();
            self.take(out);
        } else {
            self.translator.abort_failed();
        }
    }

    fn end(&mut self, how: u8) {
        let out = match how % 3 {
            0 => self.translator.serve_exited("signal 9"),
            1 => self.translator.fail(given_up()),
            _ if self.translator.phase() == TurnPhase::Admitted => self.translator.cancel_unsent(),
            _ => Vec::new(),
        };
        self.take(out);
    }

    fn tell_context_size(&mut self, tokens: usize) {
        if let Some(model) = self.translator.unsized_model().cloned() {
            let out = self.translator.set_context_size(model, tokens as u64);
            self.take(out);
        }
    }

    fn take(&mut self, out: Vec<Translation>) {
        for item in out {
            let payload = match item {
                Translation::Abort(_) => {
                    assert!(self.translator.abort_wanted(), "an abort that is not wanted");
                    continue;
                }
                Translation::Swallowed => {
                    assert_eq!(self.translator.phase(), TurnPhase::Admitted);
                    continue;
                }
                Translation::Update(payload) => payload,
                Translation::Started => EventPayload::TurnStarted(TurnStarted { prompt: Vec::new() }),
                Translation::Ended(outcome) => {
                    assert!(self.turn.is_some(), "an end without a turn, or a second one");
                    EventPayload::TurnEnded(outcome)
                }
            };
            self.fold.apply(&payload).expect("the log has a hole or a double");
            let ends = matches!(payload, EventPayload::TurnEnded(_));
            self.log.push((self.turn, payload));
            self.turn = self.turn.filter(|_| !ends);
        }
        assert_eq!(self.translator.phase() == TurnPhase::Idle, self.turn.is_none());
    }

    fn finish(&mut self) {
        self.end(0);
        let entries: Vec<Entry<'_>> =
            self.log.iter().map(|(turn, payload)| Entry { turn: *turn, payload }).collect();
        let broken = check(&entries, Extent::Whole);
        assert!(broken.is_empty(), "the log breaks rules: {broken:#?}\n{:#?}", self.log);
    }
}

impl Input<'_> {
    /// A session of one of the streams; two of them show none.
    fn capture(&mut self) -> Option<&'static Capture> {
        let stream = self.choose(streams())?;
        stream.get(usize::from(self.byte()).checked_rem(stream.len())?)
    }
}

fn given_up() -> TurnError {
    TurnError {
        reason: TurnErrorReason::NotStarted,
        message: "given up".to_owned(),
        retry_at: None,
        cause: None,
    }
}

//! What keys and events lead to, without a terminal and without a server.

use berth_wire::{
    api::{PostMessage, PromptPart, SessionState, Turn},
    event::{
        PermissionRequested, PermissionResolved, Question, QuestionOption, QuestionRequested, Resolution,
        ResolvedBy, TurnQueued, TurnStarted, Voice,
    },
    turn::{TurnErrorReason, TurnOutcome, TurnStopReason, Usage},
};
use crossterm::event::{KeyCode, KeyModifiers};
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::{ask::Reply, chat::effect::Done};

const SESSION: Uuid = Uuid::from_u128(1);
const TURN: Uuid = Uuid::from_u128(10);
const NEXT: Uuid = Uuid::from_u128(11);

fn session() -> Session {
    Session {
        id: SESSION,
        namespace: "local".to_owned(),
        sandbox: "default".to_owned(),
        directory: "/w".to_owned(),
        title: None,
        opencode_session_id: None,
        state: SessionState::Idle,
        usage: Usage::default(),
        last_seq: 0,
        open_turns: Vec::new(),
        created_at: Timestamp::UNIX_EPOCH,
        updated_at: Timestamp::UNIX_EPOCH,
    }
}

/// A conversation, the time, and all that it has given out.
struct Person {
    chat: Chat,
    now: i64,
    effects: Vec<Effect>,
    scrollback: Vec<String>,
    _home: tempfile::TempDir,
}

impl Person {
    fn new() -> Self {
        Self::with(AnswerPolicy::Ask)
    }

    fn with(answers: AnswerPolicy) -> Self {
        let home = tempfile::tempdir().unwrap();
        let history = History::open(home.path().join("history"));
        let opened = Opened { session: session(), history: Vec::new(), more: false, events: Vec::new() };
        let chat = Chat::new(Manner { color: true, answers }, opened, history, 60, 20);
        let mut person = Self { chat, now: 0, effects: Vec::new(), scrollback: Vec::new(), _home: home };
        person.look();
        person
    }

    /// What is on the screen below the scrollback.
    fn look(&mut self) -> Vec<String> {
        let now = Timestamp::from_millisecond(self.now).unwrap();
        let (finished, frame) = self.chat.frame(now);
        self.scrollback.extend(finished.iter().map(Line::text));
        self.effects.extend(self.chat.effects());
        assert!(frame.lines.len() <= 20 && frame.lines.iter().all(|line| line.width() <= 60), "{frame:?}");
        assert!(frame.cursor.row < frame.lines.len());
        frame.lines.iter().map(Line::text).collect()
    }

    fn sees(&mut self, text: &str) -> bool {
        self.look().iter().any(|line| line.contains(text))
    }

    fn read(&self, text: &str) -> bool {
        self.scrollback.iter().any(|line| line.contains(text))
    }

    fn press_with(&mut self, code: KeyCode, modifiers: KeyModifiers) -> &mut Self {
        let now = Timestamp::from_millisecond(self.now).unwrap();
        self.chat.key(KeyEvent::new(code, modifiers), now);
        self.effects.extend(self.chat.effects());
        self
    }

    fn press(&mut self, code: KeyCode) -> &mut Self {
        self.press_with(code, KeyModifiers::NONE)
    }

    fn control(&mut self, letter: char) -> &mut Self {
        self.press_with(KeyCode::Char(letter), KeyModifiers::CONTROL)
    }

    fn types(&mut self, text: &str) -> &mut Self {
        for letter in text.chars() {
            self.press(KeyCode::Char(letter));
        }
        self
    }

    fn enters(&mut self, text: &str) -> &mut Self {
        self.types(text).press(KeyCode::Enter)
    }

    fn happens(&mut self, turn: Uuid, payload: EventPayload) -> &mut Self {
        let at = Timestamp::from_millisecond(self.now).unwrap();
        self.chat.event(&SessionEvent { session_id: SESSION, seq: 1, turn_id: Some(turn), at, payload });
        self.look();
        self
    }

    fn queued(&mut self, turn: Uuid, text: &str) -> &mut Self {
        self.happens(turn, EventPayload::TurnQueued(TurnQueued { prompt: PostMessage::text(text).parts }))
    }

    fn starts(&mut self, turn: Uuid, text: &str) -> &mut Self {
        self.happens(turn, EventPayload::TurnStarted(TurnStarted { prompt: PostMessage::text(text).parts }))
    }

    fn ends(&mut self, turn: Uuid, outcome: TurnOutcome) -> &mut Self {
        self.happens(turn, EventPayload::TurnEnded(outcome))
    }

    fn asks(&mut self) -> &mut Self {
        self.happens(TURN, EventPayload::PermissionRequested(permission("p")))
    }

    /// So long that keys are answers.
    fn waits(&mut self) -> &mut Self {
        self.now += 1000;
        self.look();
        self
    }

    fn done(&mut self, done: Done) -> &mut Self {
        self.chat.done(done);
        self.look();
        self
    }

    fn taken(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// What was handed in.
    fn posts(&mut self) -> Vec<PostMessage> {
        let post = |effect| match effect {
            Effect::Post { message, .. } => Some(message),
            _ => None,
        };
        self.taken().into_iter().filter_map(post).collect()
    }
}

fn permission(id: &str) -> PermissionRequested {
    PermissionRequested {
        permission_id: id.to_owned(),
        permission: "bash".to_owned(),
        patterns: vec!["make".to_owned()],
        always: vec!["make *".to_owned()],
        tool_call_id: None,
        title: "make".to_owned(),
        metadata: Value::Null,
        expires_at: None,
    }
}

fn succeeded() -> TurnOutcome {
    TurnOutcome::succeeded(TurnStopReason::EndTurn)
}

fn answer(effect: &Effect) -> Option<(String, Reply)> {
    match effect {
        Effect::Answer { id, reply } => Some((id.clone(), reply.clone())),
        _ => None,
    }
}

fn turn(id: Uuid, text: &str) -> Turn {
    serde_json::from_value(serde_json::json!({
        "id": id, "session_id": SESSION, "ordinal": 1, "state": "queued",
        "prompt": [{ "type": "text", "text": text }], "created_at": "2026-01-01T00:00:00Z",
    }))
    .unwrap()
}

#[test]
fn a_prompt_goes_out_and_its_turn_is_read() {
    let mut person = Person::new();
    assert!(person.read(", session 00000000-0000-0000-0000-000000000001"));
    person.types("helo").press(KeyCode::Backspace).enters("lo");
    assert_eq!(person.posts(), [PostMessage::text("hello")]);
    assert!(person.sees("↑ hello"), "what is on its way is seen");
    person.queued(TURN, "hello").starts(TURN, "hello");
    assert!(!person.sees("queued"));
    person.happens(TURN, EventPayload::chunk(Voice::Message, "a", 0, "An ans"));
    assert!(person.sees("An ans") && person.sees("Ctrl-C ends it"));
    person.ends(TURN, succeeded());
    assert_eq!(
        person.scrollback[person.scrollback.len() - 5..],
        ["› hello", "", "An ans", "", "✓ done  0.0 s"]
    );
}

#[test]
fn prompts_wait_and_can_be_dropped_and_taken_back() {
    let mut person = Person::new();
    person.starts(TURN, "first").queued(NEXT, "second").queued(Uuid::from_u128(12), "third");
    assert!(person.sees("queued 1: second") && person.sees("queued 2: third"));
    person.enters("/drop 1");
    assert_eq!(person.taken(), [Effect::Cancel(CancelRequest::only(NEXT))]);
    person.ends(NEXT, TurnOutcome::cancelled());
    assert!(person.sees("queued 1: third") && person.read("dropped: second"));
    person.press_with(KeyCode::Up, KeyModifiers::ALT);
    assert_eq!(person.taken(), [Effect::Cancel(CancelRequest::only(Uuid::from_u128(12)))]);
    assert!(person.sees("› third"));
    person.control('u').enters("/drop 7");
    assert!(person.taken().is_empty());
}

#[test]
fn an_answer_to_a_prompt_that_comes_after_its_events_queues_nothing() {
    let mut person = Person::new();
    person.enters("x");
    let key = match &person.taken()[..] {
        [Effect::Post { key, .. }] => *key,
        other => panic!("one prompt, not {other:?}"),
    };
    person.starts(TURN, "x").ends(TURN, succeeded());
    person.done(Done::Posted { key, message: None, result: Box::new(Ok(turn(TURN, "x"))) });
    assert!(!person.sees("↑ x") && !person.sees("queued"));
}

#[test]
fn a_prompt_that_cannot_be_handed_in_is_not_lost() {
    let mut person = Person::new();
    person.enters("precious");
    let Some(Effect::Post { key, message }) = person.taken().pop() else { panic!("a prompt") };
    let result = Err(ClientError::StreamEnded);
    person.done(Done::Posted { key, message: Some(message), result: Box::new(result) });
    assert!(person.sees("› precious"));
    person.control('u').press(KeyCode::Up);
    assert!(person.sees("› precious"), "it is in the history too");

    person.control('u').enters("another");
    let Some(Effect::Post { key, message }) = person.taken().pop() else { panic!("a prompt") };
    person.types("half a line");
    person.done(Done::Posted {
        key,
        message: Some(message),
        result: Box::new(Err(ClientError::StreamEnded)),
    });
    assert!(person.sees("› half a line"), "what is being typed is left alone");
    assert!(person.read("not sent, and among the prompts of before (Up): another"));
}

#[test]
fn ctrl_c_ends_the_turn_and_then_leaves() {
    let mut person = Person::new();
    person.starts(TURN, "x").types("half a pro").control('c');
    assert_eq!(person.taken(), [Effect::Cancel(CancelRequest::only(TURN))]);
    assert!(person.sees("cancelling") && person.sees("half a pro"));
    person.ends(TURN, TurnOutcome::cancelled());
    person.control('c');
    assert!(!person.sees("half a pro"), "now it clears the line");
    person.control('c');
    assert!(person.sees("press Ctrl-C again to leave"));
    person.types("x").control('u');
    assert!(!person.sees("press Ctrl-C again"), "any other key takes it back");
    person.control('c').control('c');
    assert_eq!(person.taken(), [Effect::Quit]);
}

#[test]
fn ctrl_c_twice_while_a_turn_is_cancelled_leaves() {
    let mut person = Person::new();
    person.starts(TURN, "x").control('c').control('c');
    assert_eq!(person.taken(), [Effect::Cancel(CancelRequest::only(TURN)), Effect::Quit]);
}

#[test]
fn a_permission_is_answered_by_one_key() {
    for (key, expected) in [('y', "once"), ('A', "always"), ('n', "reject")] {
        let mut person = Person::new();
        person.starts(TURN, "x").asks().waits();
        assert!(person.read("the agent asks for permission: bash"));
        assert!(person.sees("[y] once  [a] always: make *  [n] reject"));
        person.press(KeyCode::Char(key));
        let (id, reply) = answer(&person.taken()[0]).unwrap();
        let Reply::Permission(reply) = reply else { panic!("a permission's answer") };
        assert_eq!(
            (id.as_str(), serde_json::to_value(reply.decision).unwrap().as_str()),
            ("p", Some(expected))
        );
        assert!(!person.sees("[y] once"), "it is answered once");
    }
}

#[test]
fn a_key_that_was_meant_for_a_prompt_is_no_answer() {
    let mut person = Person::new();
    person.starts(TURN, "x").types("every").asks().types("y").waits();
    person.types(" day");
    assert_eq!(person.taken(), []);
    assert!(person.sees("› everyy day") && person.sees("Tab: answer what the agent asks"));
    person.press(KeyCode::Tab).types("y");
    assert!(answer(&person.taken()[0]).is_some());
    // Nor one that is pressed just when the question appears.
    let mut person = Person::new();
    person.starts(TURN, "x").asks().types("yes").waits();
    assert_eq!(person.taken(), []);
    assert!(person.sees("› yes"));
}

#[test]
fn a_rejection_can_say_why_and_the_draft_comes_back() {
    let mut person = Person::new();
    person.starts(TURN, "x").types("a draft").asks().waits();
    person.press(KeyCode::Tab).types("m");
    assert!(person.sees("reject and say: "));
    person.enters("use ls instead");
    let (_, reply) = answer(&person.taken()[0]).unwrap();
    let Reply::Permission(reply) = reply else { panic!("a permission's answer") };
    assert_eq!(reply.message.as_deref(), Some("use ls instead"));
    assert!(person.sees("› a draft"));
}

#[test]
fn what_is_settled_elsewhere_is_asked_no_longer() {
    let mut person = Person::new();
    let (resolution, by) = (Resolution::Rejected, ResolvedBy::Deadline);
    let resolved = PermissionResolved { permission_id: "p".to_owned(), resolution, by };
    person.starts(TURN, "x").asks().waits().types("m").types("because");
    person.happens(TURN, EventPayload::PermissionResolved(resolved));
    assert!(!person.sees("reject and say") && person.read("✗ rejected: nobody answered in time"));
    person.asks().ends(TURN, succeeded()).waits();
    assert!(!person.sees("[y]"), "nor is what its turn has left behind");
}

#[test]
fn questions_are_answered_by_arrows_digits_and_words() {
    let ask = |multiple: bool| {
        let option = |label: &str| QuestionOption { label: label.to_owned(), description: String::new() };
        EventPayload::QuestionRequested(QuestionRequested {
            question_id: "q".to_owned(),
            questions: vec![Question {
                question: "Which?".to_owned(),
                header: String::new(),
                multiple,
                options: ["Red", "Green", "Blue"].map(option).to_vec(),
            }],
            tool_call_id: None,
        })
    };
    let answered = |multiple: bool, keys: &dyn Fn(&mut Person)| {
        let mut person = Person::new();
        person.starts(TURN, "x").happens(TURN, ask(multiple)).waits();
        keys(&mut person);
        match answer(&person.taken()[0]) {
            Some((_, Reply::Question(answer))) => answer.answers.map(|mut answers| answers.remove(0)),
            other => panic!("a question's answer, not {other:?}"),
        }
    };
    let labels = |labels: &[&str]| Some(labels.iter().map(|&label| label.to_owned()).collect::<Vec<_>>());
    assert_eq!(
        answered(false, &|person| {
            person.types("2");
        }),
        labels(&["Green"])
    );
    let down = |person: &mut Person| {
        person.press(KeyCode::Down).press(KeyCode::Down).press(KeyCode::Enter);
    };
    assert_eq!(answered(false, &down), labels(&["Blue"]));
    let several = |person: &mut Person| {
        person.types("3").press(KeyCode::Up).press(KeyCode::Up).types(" ").press(KeyCode::Enter);
    };
    assert_eq!(answered(true, &several), labels(&["Blue", "Red"]));
    assert_eq!(
        answered(false, &|person| {
            person.types("m").enters("Dark red");
        }),
        labels(&["Dark red"])
    );
    assert_eq!(
        answered(false, &|person| {
            person.types("n");
        }),
        None
    );
}

#[test]
fn what_the_command_line_says_is_answered_without_a_person() {
    let mut person = Person::with(AnswerPolicy::Allow { person: true });
    person.starts(TURN, "x").asks();
    assert!(answer(&person.taken()[0]).is_some() && person.read("the agent asks for permission"));
    let mut person = Person::with(AnswerPolicy::Deny);
    person.starts(TURN, "x").asks();
    assert!(
        matches!(answer(&person.taken()[0]), Some((_, Reply::Permission(reply))) if reply.message.is_none())
    );
}

#[test]
fn an_answer_that_does_not_arrive_can_be_given_again() {
    let mut person = Person::new();
    person.starts(TURN, "x").asks().waits().types("y");
    person.taken();
    person.done(Done::Answered { id: "p".to_owned(), result: Err(ClientError::StreamEnded) });
    person.types("y");
    assert!(answer(&person.taken()[0]).is_some());
}

#[test]
fn commands_are_completed_and_done() {
    let mut person = Person::new();
    person.types("/se");
    assert!(person.sees("/sessions"));
    person.press(KeyCode::Tab).press(KeyCode::Enter);
    assert_eq!(person.taken(), [Effect::ListSessions]);
    let mut other = session();
    (other.id, other.title) = (Uuid::from_u128(2), Some("the other one".to_owned()));
    person.done(Done::Sessions(Ok(vec![session(), other])));
    assert!(person.sees("(no title)") && person.sees("the other one"));
    person.types("OTHER").press(KeyCode::Enter);
    assert_eq!(person.taken(), [Effect::Open(Some(Uuid::from_u128(2)))]);
    person.enters("not now");
    assert!(person.posts().is_empty() && person.sees("› not now"), "no prompt goes to the wrong session");
}

#[test]
fn model_and_agent_go_with_what_is_asked_next() {
    let mut person = Person::new();
    person.enters("/model a/b").enters("/agent plan").enters("x").enters("/model default").enters("y");
    let posts = person.posts();
    assert_eq!(posts[0].model.as_ref().map(ToString::to_string).as_deref(), Some("a/b"));
    assert_eq!((posts[0].agent.as_deref(), posts[1].agent.as_deref()), (Some("plan"), Some("plan")));
    assert_eq!(posts[1].model, None);
    person.enters("/model nonsense");
    assert!({
        person.look();
        person.read("is not of the form provider/model")
    });
}

#[test]
fn files_are_completed_and_given_along() {
    let mut person = Person::new();
    person.types("see @ma").look();
    assert_eq!(person.taken(), [Effect::ListFiles(String::new()), Effect::ListAgents]);
    let entry: berth_wire::api::FileEntry =
        serde_json::from_value(serde_json::json!({ "name": "main.rs", "path": "main.rs", "kind": "file" }))
            .unwrap();
    person.done(Done::Files { directory: String::new(), result: Ok(vec![entry]) });
    assert!(person.sees("@main.rs"));
    person.press(KeyCode::Tab).enters("please");
    let parts = person.posts().remove(0).parts;
    assert_eq!(parts[0], PromptPart::text("see @main.rs please"));
    assert!(matches!(&parts[1], PromptPart::File { url, .. } if url == "file:///w/main.rs"));
}

#[test]
fn only_what_did_not_succeed_is_asked_again() {
    let mut person = Person::new();
    person.enters("/retry");
    assert!(person.taken().is_empty());
    person
        .starts(TURN, "x")
        .ends(TURN, TurnOutcome::failed(TurnErrorReason::ProviderError, "no"))
        .enters("/retry");
    assert!(matches!(person.taken()[..], [Effect::Retry { turn: TURN, .. }]));
}

#[test]
fn lines_of_a_prompt() {
    let mut person = Person::new();
    person.types("one").press_with(KeyCode::Enter, KeyModifiers::ALT).types("two\\").press(KeyCode::Enter);
    person.chat.paste("three\r\nfour");
    person.control('j').enters("five");
    assert_eq!(person.posts(), [PostMessage::text("one\ntwo\nthree\nfour\nfive")]);
    person.press(KeyCode::Up);
    assert!(person.sees("› one") && person.sees("  five"));
}

#[test]
fn the_servers_absence_is_said_once_and_its_return_too() {
    let mut person = Person::new();
    person.chat.reachable(true);
    (0..3).for_each(|_| person.chat.reachable(false));
    assert!(person.sees("no server"));
    person.chat.reachable(true);
    person.look();
    let count = |text: &str| person.scrollback.iter().filter(|line| line.contains(text)).count();
    assert_eq!((count("cannot be reached"), count("the server is back")), (1, 1));
}

#[test]
fn thoughts_are_shown_on_demand() {
    let mut person = Person::new();
    person.starts(TURN, "x").happens(TURN, EventPayload::chunk(Voice::Thought, "t", 0, "first\nsecond"));
    person.ends(TURN, succeeded());
    assert!(person.read("∴ thought for 0.0 s: first second") && !person.read("  second"));
    person.enters("/thoughts").look();
    assert!(person.read("  second"));
}

#[test]
fn another_session_shows_its_past_and_what_runs_in_it() {
    let mut person = Person::new();
    person.starts(TURN, "here").enters("/new");
    assert_eq!(person.taken(), [Effect::Open(None)]);
    let mut other = session();
    (other.id, other.title) = (Uuid::from_u128(2), Some("other".to_owned()));
    let payload = EventPayload::TurnStarted(TurnStarted { prompt: PostMessage::text("there").parts });
    let at = Timestamp::UNIX_EPOCH;
    let event = SessionEvent { session_id: other.id, seq: 1, turn_id: Some(NEXT), at, payload };
    let opened = Opened { session: other, history: Vec::new(), more: true, events: vec![event] };
    person.done(Done::Opened(Ok(Box::new(opened))));
    assert!(person.read("“other”") && person.read("(earlier turns are not shown)") && person.read("› there"));
    assert!(person.sees("Ctrl-C ends it"));
}

fn any_key() -> impl Strategy<Value = KeyEvent> {
    let code = prop_oneof![
        any::<char>().prop_map(KeyCode::Char),
        Just(KeyCode::Char('/')),
        Just(KeyCode::Char('@')),
        Just(KeyCode::Char('m')),
        Just(KeyCode::Enter),
        Just(KeyCode::Tab),
        Just(KeyCode::Esc),
        Just(KeyCode::Up),
        Just(KeyCode::Down),
        Just(KeyCode::Left),
        Just(KeyCode::Backspace),
        Just(KeyCode::Delete),
        Just(KeyCode::Home),
        Just(KeyCode::F(1)),
    ];
    let modifiers = prop_oneof![
        4 => Just(KeyModifiers::NONE),
        1 => Just(KeyModifiers::CONTROL),
        1 => Just(KeyModifiers::ALT),
    ];
    (code, modifiers).prop_map(|(code, modifiers)| KeyEvent::new(code, modifiers))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn no_keys_make_it_panic(
        keys in proptest::collection::vec(any_key(), 0..60),
        asked in any::<bool>(),
        size in (1_usize..60, 1_usize..20),
    ) {
        let mut person = Person::new();
        person.chat.resize(size.0, size.1);
        person.starts(TURN, "x").queued(NEXT, "next");
        if asked {
            person.asks().waits();
        }
        for key in keys {
            let now = Timestamp::from_millisecond(person.now).unwrap();
            person.chat.key(key, now);
            let (_, frame) = person.chat.frame(now);
            prop_assert!(frame.lines.len() <= size.1 && frame.cursor.row < frame.lines.len());
        }
    }
}

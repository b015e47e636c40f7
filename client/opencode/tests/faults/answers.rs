//! Each spoiled answer is an error of its own, within the bound, from every kind of call.

use berth_opencode::{ClientError, NewSession, Prompt, PromptPart, ids};
use berth_testkit::fake_serve::{AnswerFault, Fault};
use futures_util::future::join_all;
use tokio::time::Instant;
use uuid::Uuid;

use crate::rig::{DIRECTORY, LIMIT, Rig, Session, in_words};

/// What each kind of call is to end in: the health check, a call that reads, one that makes something, a prompt, and
/// a subscription, up to its first event.
struct Expected {
    health: &'static str,
    read: &'static str,
    write: &'static str,
    prompt: &'static str,
    events: &'static str,
}

impl Expected {
    /// Some call ends by its bound.
    fn is_by_a_bound(&self) -> bool {
        [self.health, self.read, self.write, self.prompt, self.events]
            .iter()
            .any(|end| matches!(*end, "Timeout" | "StreamIdle"))
    }
}

fn everywhere(words: &'static str) -> Expected {
    Expected { health: words, read: words, write: words, prompt: words, events: words }
}

/// An answer that is there and is not what it should be.
fn another_answer() -> Expected {
    Expected { health: "UnsupportedVersion", ..everywhere("UnexpectedBody") }
}

/// A body that never ends well; that it is no event stream is seen before.
fn bad_body(words: &'static str) -> Expected {
    Expected { events: "UnexpectedBody", ..everywhere(words) }
}

fn expected(fault: AnswerFault) -> Expected {
    use AnswerFault as A;
    match fault {
        A::NoAnswer => everywhere("Timeout"),
        A::Html | A::Empty | A::OtherJson | A::CutGzip => another_answer(),
        // An accepted prompt has no body that could be of a wrong type.
        A::WrongType => Expected { prompt: "fine", ..another_answer() },
        A::OtherLine => Expected { health: "UnsupportedVersion", write: "Status 405", ..everywhere("fine") },
        A::Unauthorized(_) => everywhere("Unauthorized"),
        A::Slow(_) => Expected { prompt: "fine", events: "StreamIdle", ..everywhere("Timeout") },
        A::Error500 => everywhere("Status 500"),
        A::Redirect => everywhere("Status 302"),
        A::NoEnd => bad_body("Timeout"),
        A::CutBody => bad_body("Unreachable"),
        A::Flood => bad_body("BodyTooLarge"),
        A::HugeHeader | A::NotHttp | A::Closed => everywhere("Unreachable"),
    }
}

fn end<T>(result: Result<T, ClientError>) -> String {
    result.map_or_else(|error| in_words(&error), |_| "fine".to_owned())
}

async fn first_event(rig: &Rig) -> Result<(), ClientError> {
    let mut events = rig.client.global_events(None).await?;
    events.next().await.unwrap().map(drop)
}

/// Checks every kind of call; two tries again are within the bound of a call that reads.
async fn check(rig: &Rig, session: &Session, fault: AnswerFault) {
    let expected = expected(fault);
    let began = Instant::now();
    let new = NewSession { title: None, berth_session_id: Uuid::now_v7(), permission: Vec::new() };
    let prompt = Prompt::new(ids::message_id(), vec![PromptPart::text("@stub say:x")]);
    let client = &rig.client;
    assert_eq!(end(client.health().await), expected.health, "health, {}", Fault::from(fault));
    assert_eq!(end(client.session_status(DIRECTORY).await), expected.read, "read, {}", Fault::from(fault));
    assert_eq!(
        end(client.create_session(DIRECTORY, &new).await),
        expected.write,
        "write, {}",
        Fault::from(fault)
    );
    let sent = client.send_prompt(DIRECTORY, &session.id, &prompt).await;
    assert_eq!(end(sent), expected.prompt, "prompt, {}", Fault::from(fault));
    assert_eq!(end(first_event(rig).await), expected.events, "events, {}", Fault::from(fault));
    if expected.is_by_a_bound() {
        assert!(began.elapsed() < LIMIT * 8, "{} took {:?}", Fault::from(fault), began.elapsed());
    }
}

/// Faults of answers: refused from the first request on, and 700 ms for each byte, so that two are too many.
fn faults() -> impl Iterator<Item = AnswerFault> {
    Fault::all(0).filter_map(|fault| match fault {
        Fault::Answer(AnswerFault::Slow(_)) => Some(AnswerFault::Slow(700)),
        Fault::Answer(fault) => Some(fault),
        _ => None,
    })
}

#[tokio::test]
async fn each_spoiled_answer_is_an_error_of_its_own_and_the_client_works_after_it() {
    join_all(faults().map(|fault| async move {
        let rig = Rig::start_for(expected(fault).is_by_a_bound()).await;
        let session = rig.session().await;
        rig.fake.spoil(fault);
        check(&rig, &session, fault).await;
        rig.works_again(fault).await;
    }))
    .await;
}

#[tokio::test]
async fn a_password_that_is_refused_after_a_while_is_told() {
    let rig = Rig::start().await;
    let session = rig.session().await;
    rig.fake.spoil(AnswerFault::Unauthorized(2));
    for _ in 0..2 {
        assert!(rig.client.get_session(DIRECTORY, &session.id).await.is_ok());
    }
    let error = rig.client.get_session(DIRECTORY, &session.id).await.unwrap_err();
    assert!(matches!(error, ClientError::Unauthorized) && !error.is_transient(), "{error:?}");
    rig.works_again(AnswerFault::Unauthorized(2)).await;
}

#[tokio::test]
async fn only_calls_that_read_are_tried_again() {
    let rig = Rig::start().await;
    let session = rig.session().await;
    let before = rig.fake.requests().len();
    rig.fake.spoil(AnswerFault::CutBody);
    assert!(rig.client.session_status(DIRECTORY).await.is_err());
    assert!(rig.client.abort(DIRECTORY, &session.id).await.is_err());
    let prompt = Prompt::new(ids::message_id(), vec![PromptPart::text("@stub say:x")]);
    assert!(rig.client.send_prompt(DIRECTORY, &session.id, &prompt).await.is_err());
    let requests = rig.fake.requests();
    let paths: Vec<_> =
        requests[before..].iter().map(|request| request.path.rsplit('/').next().unwrap()).collect();
    assert_eq!(paths, ["status", "status", "status", "abort", "prompt_async"]);
    assert!(requests[before..].iter().all(|request| request.query.contains("directory=%2Fw")));
}

#[tokio::test]
async fn a_prompt_whose_answer_is_lost_runs_all_the_same() {
    let rig = Rig::start().await;
    let session = rig.session().await;
    for (word, ends) in
        [("fault:no-answer", "Timeout"), ("fault:closed", "Unreachable"), ("fault:html", "UnexpectedBody")]
    {
        let message = ids::message_id();
        let prompt = Prompt::new(&message, vec![PromptPart::text(format!("{word}\n@stub say:done {word}"))]);
        let sent = rig.client.send_prompt(DIRECTORY, &session.id, &prompt).await;
        assert_eq!(end(sent), ends, "{word}");
        let messages = rig.client.list_messages(DIRECTORY, &session.id, 10).await.unwrap();
        assert!(messages.iter().any(|stored| stored.info.id == message), "{word}");
    }
}

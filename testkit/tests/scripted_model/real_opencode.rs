//! Every named scenario, played once through a real opencode on each wire.

use berth_testkit::{ModelWire, RequestOutcome, scenarios};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::opencode::{Opencode, Session, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scenario_plays_on_the_openai_wire() {
    play_everything(ModelWire::OpenAi).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scenario_plays_on_the_anthropic_wire() {
    play_everything(ModelWire::Anthropic).await;
}

async fn play_everything(wire: ModelWire) {
    let opencode = Opencode::start(wire).await;
    // The first prompt boots the directory; the others then find it warm.
    explains_itself_and_gives_a_title(&opencode).await;
    join_all(scenarios().iter().map(|scenario| play(&opencode, scenario.name))).await;
    let offered = &opencode.log.requests().into_iter().find(|request| !request.title).unwrap().tools;
    for tool in ["bash", "edit", "question", "read", "task", "write"] {
        assert!(offered.iter().any(|offered| offered == tool), "{tool} is not among {offered:?}");
    }
    opencode.stop().await;
}

async fn play(opencode: &Opencode, name: &str) {
    let session = opencode.session(name == "permission").await;
    let prompt = format!("scenario: {name}");
    match name {
        "text" => {
            let answer = session.prompt(&prompt).await;
            assert_eq!(answer.text(), "This answer comes in four pieces and uses no tool.");
            assert_eq!(answer.finish(), Some("stop"));
        }
        "thought" => {
            let answer = session.prompt(&prompt).await;
            assert_eq!(answer.text_of("reasoning"), "First I think, in three pieces.");
            assert_eq!(answer.text(), "Then I answer.");
        }
        "long" => {
            let text = session.prompt(&prompt).await.text();
            assert!(
                text.starts_with("word0 word1 ") && text.ends_with("word4999 and that was all"),
                "{text:.40}"
            );
        }
        "tool" => tool(&session, &prompt).await,
        "parallel" => parallel(&session, &prompt).await,
        "edit" => edit(&session, &prompt).await,
        "subagent" => subagent(&session, &prompt).await,
        "question" => question(&session, &prompt).await,
        "permission" => permission(&session, &prompt).await,
        "slow" => slow(&session, &prompt).await,
        "error-400" => error_400(&session, &prompt).await,
        "error-429" => {
            retried(&session, &prompt, RequestOutcome::Refused(429), 1, "The second try was let in.").await;
        }
        "error-500" => {
            retried(&session, &prompt, RequestOutcome::Refused(500), 2, "The third try went well.").await;
        }
        "cut" => {
            let whole = "This sentence breaks off and is whole the second time.";
            retried(&session, &prompt, RequestOutcome::Cut, 1, whole).await;
        }
        "garbage" => garbage(&session, &prompt).await,
        "no-finish" => no_finish(&session, &prompt).await,
        "demo" => demo(&session, &prompt).await,
        other => panic!("no test plays the scenario {other}"),
    }
}

async fn explains_itself_and_gives_a_title(opencode: &Opencode) {
    let session = opencode.session(false).await;
    let text = session.prompt("hello there").await.text();
    assert!(text.contains("You wrote: \"hello there\".") && text.contains("`scenario: demo`"), "{text}");
    let title =
        async || opencode.get(&format!("/session/{}", session.id)).await["title"].as_str().map(str::to_owned);
    until(async || title().await.filter(|title| title == "hello there")).await;
}

/// Asserts that a tool part completed, and gives its output.
fn output(part: &Value, tool: &str) -> String {
    assert_eq!((&part["tool"], &part["state"]["status"]), (&json!(tool), &json!("completed")), "{part}");
    part["state"]["output"].as_str().unwrap().to_owned()
}

async fn tool(session: &Session<'_>, prompt: &str) {
    assert_eq!(session.prompt(prompt).await.text(), "The command has run.");
    let tools = session.tools().await;
    assert_eq!(tools.len(), 1);
    assert_eq!(output(&tools[0], "bash").trim(), "one tool call");
    // A plain prompt after a scripted turn is a new one, not the rest of the old script.
    assert!(session.prompt("hello").await.text().contains("You wrote: \"hello\"."));
}

async fn parallel(session: &Session<'_>, prompt: &str) {
    assert_eq!(session.prompt(prompt).await.text(), "All three have run.");
    let answers = session.answers().await;
    assert_eq!(answers.len(), 2, "three calls in one step, then the text");
    let outputs: Vec<String> =
        answers[0].parts("tool").iter().map(|part| output(part, "bash").trim().to_owned()).collect();
    assert_eq!(outputs, ["first", "second", "third"]);
}

async fn edit(session: &Session<'_>, prompt: &str) {
    let file = session.opencode.work().join("edited-by-berth.txt");
    let text = session.prompt(prompt).await.text();
    assert_eq!(text, format!("The second line of {} is now in capitals.", file.display()));
    let tools = session.tools().await;
    for (part, tool) in tools.iter().zip(["bash", "read", "edit"]) {
        output(part, tool);
    }
    assert_eq!((tools.len(), std::fs::read_to_string(file).unwrap().as_str()), (3, "one\nTWO\nthree\n"));
}

async fn subagent(session: &Session<'_>, prompt: &str) {
    assert_eq!(session.prompt(prompt).await.text(), "The subagent is done.");
    let tools = session.tools().await;
    assert!(output(&tools[0], "task").contains("The subagent has run its command."), "{tools:?}");
    let children = session.opencode.get(&format!("/session/{}/children", session.id)).await;
    let id = children[0]["id"].as_str().unwrap().to_owned();
    let child = Session { opencode: session.opencode, id };
    assert_eq!(output(&child.tools().await[0], "bash").trim(), "from the subagent");
}

async fn question(session: &Session<'_>, prompt: &str) {
    let answering = async {
        let id = session.asked("question").await;
        session.opencode.post(&format!("/question/{id}/reply"), &json!({"answers": [["Blue"]]})).await;
    };
    let (answer, ()) = tokio::join!(session.prompt(prompt), answering);
    assert_eq!(answer.text(), "Thank you for the answer.");
    let output = output(&session.tools().await[0], "question");
    assert!(output.contains("\"Which colour shall it be?\"=\"Blue\""), "{output}");
}

async fn permission(session: &Session<'_>, prompt: &str) {
    let file = session.opencode.work().join("permission-was-given");
    let answering = async {
        let id = session.asked("permission").await;
        assert!(!file.exists(), "the command must wait for the permission");
        session.opencode.post(&format!("/permission/{id}/reply"), &json!({"reply": "once"})).await;
    };
    let (answer, ()) = tokio::join!(session.prompt(prompt), answering);
    assert_eq!(answer.text(), "The command has run.");
    assert!(file.exists());
    let rejecting = async {
        let id = session.asked("permission").await;
        session.opencode.post(&format!("/permission/{id}/reply"), &json!({"reply": "reject"})).await;
    };
    tokio::join!(session.prompt(prompt), rejecting);
    assert_eq!(session.tools().await[1]["state"]["status"], "error");
    // The turn ended with the refusal: what comes next is a new prompt and not the script's next step.
    assert!(session.prompt("hello").await.text().contains("You wrote: \"hello\"."));
}

async fn slow(session: &Session<'_>, prompt: &str) {
    session.start(prompt).await;
    session.requests_until(|requests| !requests.is_empty()).await;
    session.abort().await;
    session.requests_until(|requests| requests[0].outcome == RequestOutcome::ClientLeft).await;
    let ended = async || session.answers().await.pop().filter(|answer| !answer.error().is_null());
    assert_eq!(until(ended).await.error()["name"], "MessageAbortedError");
    session.idle().await;
    assert_eq!(session.prompt("@stub say:next").await.text(), "next");
}

async fn error_400(session: &Session<'_>, prompt: &str) {
    let answer = session.prompt(prompt).await;
    let error = answer.error();
    assert_eq!((&error["name"], &error["data"]["statusCode"]), (&json!("APIError"), &json!(400)), "{error}");
    assert_eq!(error["data"]["message"], "the scripted model says 400");
    assert_eq!(session.requests().len(), 1);
}

/// A turn whose first requests come to the same end, and whose last one is answered.
async fn retried(session: &Session<'_>, prompt: &str, first: RequestOutcome, times: usize, text: &str) {
    let answer = session.prompt(prompt).await;
    assert!(answer.error().is_null(), "{answer:?}");
    assert_eq!(answer.parts("text").last().unwrap()["text"], text, "{answer:?}");
    let outcomes: Vec<_> = session.requests().iter().map(|request| request.outcome).collect();
    let mut expected = vec![first; times];
    expected.push(RequestOutcome::Ended);
    assert_eq!(outcomes, expected);
}

async fn garbage(session: &Session<'_>, prompt: &str) {
    let answer = session.prompt(prompt).await;
    assert_eq!(answer.error()["name"], "UnknownError", "{answer:?}");
    assert_eq!(session.requests().len(), 1);
}

async fn no_finish(session: &Session<'_>, prompt: &str) {
    session.start(prompt).await;
    session.requests_until(|requests| requests.len() > 2).await;
    session.abort().await;
    session.idle().await;
    let answers = session.answers().await;
    let unfinished = answers.iter().filter(|answer| answer.finish() == Some("unknown"));
    assert!(unfinished.count() >= 2, "{answers:?}");
    assert_eq!(answers[0].text(), "This answer has no end.");
}

async fn demo(session: &Session<'_>, prompt: &str) {
    let file = session.opencode.work().join("hello-from-berth.md");
    for _ in 0..2 {
        assert_eq!(session.prompt(prompt).await.text(), format!("Done: the file is {}", file.display()));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "Hello from a scripted model.\n");
    }
    let (answers, tools) = (session.answers().await, session.tools().await);
    assert_eq!(answers.len(), 6);
    assert_eq!(
        answers[0].text_of("reasoning"),
        "The user wants to see what an agent does. I look around first, then I write a file."
    );
    assert_eq!(answers[0].text(), "I look at where I am and then I write a file.");
    assert!(output(&tools[0], "bash").starts_with(&*session.opencode.work().to_string_lossy()));
    output(&tools[1], "write");
}

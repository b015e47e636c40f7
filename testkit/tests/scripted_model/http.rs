//! The scripted model over real connections: what each operation does on the wire, errors, bounds, and clients
//! that leave.

use std::time::Duration;

use berth_testkit::{MAX_BODY, ModelLog, ModelWire, RequestOutcome, ScriptedModel};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Bound on every wait of these tests.
const BOUND: Duration = Duration::from_secs(20);
const OPENAI: &str = "/v1/chat/completions";
const ANTHROPIC: &str = "/v1/messages";
const PATHS: [&str; 2] = [OPENAI, ANTHROPIC];

struct Model {
    base: String,
    log: ModelLog,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    client: reqwest::Client,
}

impl Model {
    async fn start() -> Self {
        let model = ScriptedModel::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (base, log) = (format!("http://{}", model.address()), model.log());
        let (shutdown, tasks) = (CancellationToken::new(), TaskTracker::new());
        let running = model.run(shutdown.clone());
        tasks.spawn(async move { running.await.unwrap() });
        tasks.close();
        let client = reqwest::Client::builder().timeout(BOUND).build().unwrap();
        Self { base, log, shutdown, tasks, client }
    }

    async fn post(&self, path: &str, body: &Value) -> reqwest::Response {
        self.client.post(format!("{}{path}", self.base)).json(body).send().await.unwrap()
    }

    /// The whole body of a streamed answer.
    async fn stream(&self, path: &str, prompt: &str) -> String {
        self.post(path, &request(prompt)).await.text().await.unwrap()
    }

    /// Everything that a connection carries until it is closed.
    async fn bytes(&self, path: &str, prompt: &str) -> String {
        let mut connection = self.connect(path, &request(prompt)).await;
        let mut bytes = Vec::new();
        bounded(connection.read_to_end(&mut bytes)).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    async fn connect(&self, path: &str, body: &Value) -> TcpStream {
        let address = self.base.trim_start_matches("http://");
        let mut connection = TcpStream::connect(address).await.unwrap();
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        connection.write_all((head + &body).as_bytes()).await.unwrap();
        connection
    }

    async fn wait_for(&self, outcome: RequestOutcome) {
        let last =
            |requests: &[berth_testkit::RecordedRequest]| requests.last().map(|request| request.outcome);
        bounded(self.log.wait_until(|requests| last(requests) == Some(outcome))).await;
    }
}

async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, future).await.expect("done within the bound")
}

fn request(prompt: &str) -> Value {
    json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": prompt}]})
}

/// Text and reasoning of a stream, and how it ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    text: String,
    thought: String,
    finish: Option<String>,
    closed: bool,
}

fn hear(stream: &str) -> Heard {
    let mut heard = Heard::default();
    for data in stream.lines().filter_map(|line| line.strip_prefix("data: ")) {
        heard.closed |= data == "[DONE]";
        let Ok(data) = serde_json::from_str::<Value>(data) else { continue };
        heard.closed |= data["type"] == "message_stop";
        let delta = if data["choices"].is_array() { &data["choices"][0]["delta"] } else { &data["delta"] };
        for (field, text) in [("content", &mut heard.text), ("reasoning_content", &mut heard.thought)] {
            text.push_str(delta[field].as_str().unwrap_or_default());
        }
        heard.text.push_str(delta["text"].as_str().unwrap_or_default());
        heard.thought.push_str(delta["thinking"].as_str().unwrap_or_default());
        let finish =
            [&data["choices"][0]["finish_reason"], &delta["stop_reason"]].into_iter().find_map(Value::as_str);
        heard.finish = finish.map(str::to_owned).or(heard.finish);
    }
    heard
}

fn heard(text: &str, thought: &str, finish: &str) -> Heard {
    Heard {
        text: text.to_owned(),
        thought: thought.to_owned(),
        finish: Some(finish.to_owned()),
        closed: true,
    }
}

#[tokio::test]
async fn text_and_thought_are_streamed_on_both_wires() {
    let model = Model::start().await;
    let prompt = "@stub think:n=2,w=t | reason:so | text:n=3,d=1,w=a | say:and b";
    let openai = model.post(OPENAI, &request(prompt)).await;
    assert_eq!(openai.headers()["content-type"], "text/event-stream");
    assert_eq!(hear(&openai.text().await.unwrap()), heard("a0 a1 a2 and b", "t0 t1 so", "stop"));
    assert_eq!(hear(&model.stream(ANTHROPIC, prompt).await), heard("a0 a1 a2 and b", "t0 t1 so", "end_turn"));
    assert_eq!(hear(&model.stream(OPENAI, "@stub say:a | length").await), heard("a", "", "length"));
    assert_eq!(hear(&model.stream(ANTHROPIC, "@stub say:a | length").await), heard("a", "", "max_tokens"));
}

#[tokio::test]
async fn the_same_request_gets_the_same_bytes_but_for_the_ids() {
    let model = Model::start().await;
    for path in PATHS {
        for prompt in ["@stub text | tool:bash:{\"command\":\"ls\"}", "hello"] {
            let first = model.stream(path, prompt).await;
            let second = model.stream(path, prompt).await;
            let number = model.log.requests().last().unwrap().number;
            assert_ne!(first, second);
            assert_eq!(first.replace(&format!("{:06}", number - 1), &format!("{number:06}")), second);
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_no_stream_has_the_same_content() {
    let model = Model::start().await;
    let mut body = request("@stub reason:so | say:a | sleep:1 | say:b | tool:bash:{\"command\":\"ls\"}");
    body["stream"] = json!(false);
    let openai: Value = model.post(OPENAI, &body).await.json().await.unwrap();
    let message = &openai["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("ab"), &json!("so")));
    assert_eq!(message["tool_calls"][0]["function"]["name"], "bash");
    assert_eq!(openai["choices"][0]["finish_reason"], "tool_calls");
    let anthropic: Value = model.post(ANTHROPIC, &body).await.json().await.unwrap();
    assert_eq!(anthropic["content"][2]["input"], json!({"command": "ls"}));
    assert_eq!(anthropic["stop_reason"], "tool_use");
}

#[tokio::test]
async fn a_faulty_answer_that_is_no_stream_is_faulty_too() {
    let model = Model::start().await;
    for path in PATHS {
        let body = |script: &str| json!({"model": "m", "messages": [{"role": "user", "content": script}]});
        let garbage = model.post(path, &body("@stub say:a | badjson")).await.text().await.unwrap();
        assert_eq!(garbage, "{not json");
        let mut connection = model.connect(path, &body("@stub say:a | drop")).await;
        let mut bytes = Vec::new();
        bounded(connection.read_to_end(&mut bytes)).await.unwrap();
        assert!(!bytes.ends_with(b"\r\n0\r\n\r\n"), "{:?}", String::from_utf8_lossy(&bytes));
        model.wait_for(RequestOutcome::Cut).await;
    }
}

#[tokio::test]
async fn a_cut_connection_lacks_its_last_chunk_but_nothing_that_came_before() {
    let model = Model::start().await;
    for path in PATHS {
        let bytes = model.bytes(path, "@stub text:n=50,w=a | drop").await;
        assert!(bytes.starts_with("HTTP/1.1 200 OK\r\n"), "{bytes}");
        assert!(!bytes.ends_with("\r\n0\r\n\r\n"), "the body must not end properly: {bytes}");
        let heard = hear(&bytes);
        assert!(heard.text.ends_with("a48 a49 "), "{heard:?}");
        assert_eq!((heard.finish, heard.closed), (None, false));
        model.wait_for(RequestOutcome::Cut).await;
    }
}

#[tokio::test]
async fn an_early_end_is_a_clean_end_of_the_body_without_a_finish() {
    let model = Model::start().await;
    for path in PATHS {
        let bytes = model.bytes(path, "@stub say:a | eof").await;
        assert!(bytes.ends_with("\r\n0\r\n\r\n"), "the body must end properly: {bytes}");
        assert_eq!(hear(&bytes), Heard { text: "a".to_owned(), ..Heard::default() });
        model.wait_for(RequestOutcome::Ended).await;
    }
}

#[tokio::test]
async fn garbage_is_a_line_that_is_not_json() {
    let model = Model::start().await;
    for path in PATHS {
        let stream = model.stream(path, "@stub say:a | badjson | say:b").await;
        let garbage = |data: &&str| *data != "[DONE]" && serde_json::from_str::<Value>(data).is_err();
        let lines: Vec<&str> =
            stream.lines().filter_map(|line| line.strip_prefix("data: ")).filter(garbage).collect();
        assert_eq!(lines, ["{not json"]);
        assert_eq!(hear(&stream).text, "ab");
    }
}

#[tokio::test]
async fn errors_have_their_status_for_as_many_times_as_they_say() {
    let model = Model::start().await;
    for path in PATHS {
        let body = request("@stub status:429,times=2,ra=7 | say:in >> say:later");
        for _ in 0..2 {
            let refused = model.post(path, &body).await;
            assert_eq!(
                (refused.status().as_u16(), &refused.headers()["retry-after"]),
                (429, &"7".parse().unwrap())
            );
            let document: Value = refused.json().await.unwrap();
            assert_eq!(document["error"]["message"], "the scripted model says 429");
            assert_eq!(document["type"] == "error", path == ANTHROPIC);
            assert_eq!(model.log.requests().last().unwrap().outcome, RequestOutcome::Refused(429));
        }
        assert_eq!(hear(&model.post(path, &body).await.text().await.unwrap()).text, "in");
        model.post("/reset", &json!({})).await;
        assert_eq!(model.post(path, &body).await.status(), 429, "a reset starts the counters anew");
        model.post("/reset", &json!({})).await;
    }
    for _ in 0..3 {
        let refused = model.post(OPENAI, &request("@stub status:503")).await;
        assert_eq!((refused.status().as_u16(), refused.headers().get("retry-after")), (503, None));
    }
}

#[tokio::test]
async fn counters_belong_to_one_turn_of_one_session() {
    let model = Model::start().await;
    let send = async |session: &str, messages: Value| {
        let body = json!({"model": "m", "stream": true, "messages": messages});
        let post = model.client.post(format!("{}{OPENAI}", model.base)).header("x-session-id", session);
        post.json(&body).send().await.unwrap().status().as_u16()
    };
    let prompt = json!({"role": "user", "content": "@stub status:500,times=1 | say:a"});
    let answer = json!({"role": "assistant", "content": "a"});
    assert_eq!(send("ses_1", json!([prompt])).await, 500);
    assert_eq!(send("ses_2", json!([prompt])).await, 500);
    assert_eq!(send("ses_1", json!([prompt])).await, 200);
    assert_eq!(send("ses_1", json!([prompt, answer, prompt])).await, 500);
    assert_eq!(model.log.requests().last().unwrap().session.as_deref(), Some("ses_1"));
}

#[tokio::test]
async fn a_bounded_drop_lets_the_next_try_through() {
    let model = Model::start().await;
    for (path, finish) in [(OPENAI, "stop"), (ANTHROPIC, "end_turn")] {
        model.post("/reset", &json!({})).await;
        let prompt = "@stub say:a | dropn:1 | say:b";
        let cut = hear(&model.bytes(path, prompt).await);
        assert_eq!((cut.text.as_str(), cut.closed), ("a", false));
        assert_eq!(hear(&model.stream(path, prompt).await), heard("ab", "", finish));
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_work() {
    let model = Model::start().await;
    for path in PATHS {
        for (script, first) in
            [("say:a | hang", "\"a\""), ("text:n=100000,d=5", "word0"), ("say:a | sleep:3600000", "\"a\"")]
        {
            let mut connection = model.connect(path, &request(&format!("@stub {script}"))).await;
            let mut bytes = Vec::new();
            while !String::from_utf8_lossy(&bytes).contains(first) {
                assert!(bounded(connection.read_buf(&mut bytes)).await.unwrap() > 0, "{path} {script}");
            }
            assert_eq!(model.log.requests().last().unwrap().outcome, RequestOutcome::Running);
            drop(connection);
            model.wait_for(RequestOutcome::ClientLeft).await;
        }
    }
}

#[tokio::test]
async fn held_headers_never_come() {
    let model = Model::start().await;
    let mut connection = model.connect(OPENAI, &request("@stub hangpre")).await;
    model.wait_for(RequestOutcome::Running).await;
    let mut byte = [0];
    let silence = tokio::time::timeout(Duration::from_millis(200), connection.read(&mut byte)).await;
    assert!(silence.is_err(), "something came: {silence:?}");
    drop(connection);
    model.wait_for(RequestOutcome::ClientLeft).await;
}

#[tokio::test]
async fn stopping_ends_what_runs_and_returns() {
    let model = Model::start().await;
    let mut streaming = model.connect(ANTHROPIC, &request("@stub say:a | hang")).await;
    let held = model.connect(OPENAI, &request("@stub hangpre")).await;
    let all_run = |requests: &[berth_testkit::RecordedRequest]| requests.len() == 2;
    bounded(model.log.wait_until(all_run)).await;
    model.shutdown.cancel();
    let mut bytes = Vec::new();
    bounded(streaming.read_to_end(&mut bytes)).await.unwrap();
    assert!(!bytes.ends_with(b"\r\n0\r\n\r\n"));
    bounded(model.tasks.wait()).await;
    let outcomes: Vec<_> = model.log.requests().iter().map(|request| request.outcome).collect();
    assert_eq!(outcomes, [RequestOutcome::Stopped; 2]);
    drop(held);
}

#[tokio::test]
async fn malformed_requests_are_refused_by_name() {
    let model = Model::start().await;
    let send = async |path: &str, body: String| {
        let post = model.client.post(format!("{}{path}", model.base)).body(body);
        let response = post.send().await.unwrap();
        (
            response.status().as_u16(),
            response.json::<Value>().await.unwrap()["error"]["message"].as_str().unwrap().to_owned(),
        )
    };
    for path in PATHS {
        let (status, message) = send(path, "{".to_owned()).await;
        assert_eq!(status, 400);
        assert!(message.starts_with("the body is not a request: "), "{message}");
        let (status, message) = send(path, "{}".to_owned()).await;
        assert!(status == 400 && message.contains("`messages`"), "{message}");
    }
    let (status, message) = send("/v1/nothing", String::new()).await;
    assert_eq!((status, message.as_str()), (404, "the scripted model has no path /v1/nothing"));
    assert_eq!(model.log.requests(), []);
}

#[tokio::test]
async fn a_body_over_the_bound_is_refused() {
    let model = Model::start().await;
    let announced = model.base.trim_start_matches("http://");
    let mut connection = TcpStream::connect(announced).await.unwrap();
    let head = format!(
        "POST {OPENAI} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        MAX_BODY + 1
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    let mut bytes = [0; 12];
    bounded(connection.read_exact(&mut bytes)).await.unwrap();
    assert_eq!(&bytes, b"HTTP/1.1 413");
    let body = request(&"x".repeat(MAX_BODY)).to_string();
    let chunked = reqwest::Body::wrap_stream(futures_util::stream::iter([Ok::<_, std::io::Error>(body)]));
    let refused = model.client.post(format!("{}{OPENAI}", model.base)).body(chunked).send().await.unwrap();
    assert_eq!(refused.status(), 413);
}

#[tokio::test]
async fn models_and_log_can_be_read() {
    let model = Model::start().await;
    let read = async |path: &str| -> Value {
        model.client.get(format!("{}{path}", model.base)).send().await.unwrap().json().await.unwrap()
    };
    let models = read("/v1/models").await;
    assert_eq!(
        models["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect::<Vec<_>>(),
        ["m", "small"]
    );
    model.stream(ANTHROPIC, "@stub say:a").await;
    let log = read("/log").await;
    assert_eq!(log["dropped"], 0);
    let request = &log["requests"][0];
    assert_eq!(
        (&request["wire"], &request["outcome"], &request["script"]),
        (&json!("anthropic"), &json!("ended"), &json!("say:a"))
    );
    assert_eq!(model.log.requests()[0].wire, ModelWire::Anthropic);
    model.post("/reset", &json!({})).await;
    assert_eq!(read("/log").await["requests"], json!([]));
}

#[tokio::test]
async fn a_newcomer_and_a_title_are_answered() {
    let model = Model::start().await;
    for path in PATHS {
        let help = hear(&model.stream(path, "hello").await);
        assert!(
            help.closed
                && help.text.contains("You wrote: \"hello\".")
                && help.text.contains("`scenario: demo`"),
            "{help:?}"
        );
        let mut body = request("Fix the login page, please, it is broken");
        body["model"] = json!("small");
        let title = hear(&model.post(path, &body).await.text().await.unwrap());
        assert_eq!(title.text, "Fix the login page, please, it");
    }
}

//! Recordings become fixtures: nothing volatile and nothing secret is left, and doing it twice changes nothing more.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is a failed test")]

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use berth_testkit::fixture::{BASE_TIME_MS, Plain, REDACTED, Surroundings, normalise, to_bytes};
use berth_wire::sse::SseEvent;
use proptest::prelude::*;
use secrecy::SecretString;
use serde_json::{Value, json};

const PASSWORD: &str = "correct horse";

fn surroundings() -> Surroundings {
    Surroundings { secrets: vec![SecretString::from(PASSWORD)], home: Some("/home/ada".to_owned()) }
}

fn frame(value: &Value) -> SseEvent {
    SseEvent { data: value.to_string(), ..SseEvent::default() }
}

fn event(kind: &str, properties: &Value) -> SseEvent {
    frame(&json!({ "id": "evt_22ac8eb89001BnfjGYH1RshWeX", "type": kind, "properties": properties }))
}

fn delta(part: &str, text: &str) -> SseEvent {
    event("message.part.delta", &json!({ "partID": part, "field": "text", "delta": text }))
}

fn properties(frame: &SseEvent) -> Value {
    serde_json::from_str::<Value>(&frame.data).unwrap()["properties"].take()
}

/// What becomes of one text.
fn text(text: &str) -> String {
    let session = event("session.updated", &json!({ "info": { "directory": "/home/ada/src/shop" } }));
    let frames = normalise(&[session, event("x", &json!({ "text": text }))], &surroundings());
    properties(&frames[1])["text"].as_str().unwrap().to_owned()
}

#[test]
fn secrets_go_by_value_by_shape_and_by_name() {
    let cases = [
        ("the password is correct horse!", "the password is REDACTED!"),
        ("sk-ant-api03-abcdefghijklmnop-q", "REDACTED"),
        ("push with ghp_abcdefghijklmnopqrstuvwxyz0123456789", "push with REDACTED"),
        ("Authorization: Basic b3BlbmNvZGU6aHVudGVyMg==", "Authorization: Basic REDACTED"),
        ("-H 'Bearer abcdefghijklmnop1234'", "-H 'Bearer REDACTED'"),
        ("OPENAI_API_KEY=abc-def-ghi make", "OPENAI_API_KEY=REDACTED make"),
        (r#"{"password": "two words"}"#, r#"{"password": "REDACTED"}"#),
        (r#"{\"api_key\":\"x y\"}"#, r#"{\"api_key\":\"REDACTED\"}"#),
        ("https://ada:hunter2@example.com/x", "https://REDACTED@example.com/x"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nafter", "REDACTED\nafter"),
        ("-----BEGIN PRIVATE KEY-----\nMII", "REDACTED"),
        ("19 tokens: 11 in", "19 tokens: 11 in"),
        ("http://127.0.0.1:39121/v1", "http://127.0.0.1:4096/v1"),
    ];
    for (raw, wanted) in cases {
        assert_eq!(text(raw), wanted);
    }
    let headers = json!({ "headers": { "Set-Cookie": ["a=b"], "x-api-key": "k", "accept": "*/*" } });
    let frames = normalise(&[event("x", &headers)], &surroundings());
    let wanted =
        json!({ "headers": { "Set-Cookie": ["REDACTED"], "x-api-key": "REDACTED", "accept": "*/*" } });
    assert_eq!(properties(&frames[0]), wanted);
}

#[test]
fn secrets_go_however_they_are_written_down() {
    let cases = [
        // A quote of the other kind, or one that is escaped, ends no value; at any depth of JSON in JSON.
        (r#"{"password": "it's hunter2"}"#, r#"{"password": "REDACTED"}"#),
        (r#"{"password":"a\"hunter2","b":"c"}"#, r#"{"password":"REDACTED","b":"c"}"#),
        (r#"{\"password\":\"a\\\"hunter2\",\"b\":1}"#, r#"{\"password\":\"REDACTED\",\"b\":1}"#),
        (r#"{"password":"hunter2\\","b":"c"}"#, r#"{"password":"REDACTED","b":"c"}"#),
        ("password='say \"hunter2\"' make", "password='REDACTED' make"),
        ("PASSWORD=abcd,hunter2 make", "PASSWORD=REDACTED make"),
        // Schemes of authorisation, whatever their name.
        ("Authorization: Token hunter2hunter2", "Authorization: Token REDACTED"),
        ("authorization: ApiKey hunter2", "authorization: ApiKey REDACTED"),
        ("AUTHORIZATION: bEaReR hunter2", "AUTHORIZATION: bEaReR REDACTED"),
        (r#"Authorization: Digest username="ada", response="hunter2""#, "Authorization: Digest REDACTED"),
        (r#"-H "Proxy-Authorization: Token hunter2" x"#, r#"-H "Proxy-Authorization: Token REDACTED" x"#),
        ("> Cookie: a=hunter2; b=hunter3\n> Accept: */*", "> Cookie: REDACTED\n> Accept: */*"),
        ("Set-Cookie: sid=hunter2; Path=/", "Set-Cookie: REDACTED"),
        ("/event?auth_token=b3BlbmNvZGU6cHc=&x=1", "/event?auth_token=REDACTED&x=1"),
        // Names that end otherwise.
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI", "AWS_SECRET_ACCESS_KEY=REDACTED"),
        ("STRIPE_KEY=hunter2", "STRIPE_KEY=REDACTED"),
        ("private-key: hunter2", "private-key: REDACTED"),
        ("PASSPHRASE=hunter2", "PASSPHRASE=REDACTED"),
        (r#"{"auths":{"ghcr.io":{"auth":"aHVudGVyMg=="}}}"#, r#"{"auths":{"ghcr.io":{"auth":"REDACTED"}}}"#),
        // Options of a command.
        ("mysql --password hunter2 db", "mysql --password REDACTED db"),
        ("curl -u opencode:hunter2 http://x", "curl -u opencode:REDACTED http://x"),
        ("curl --user 'opencode:hunter2' http://x", "curl --user 'opencode:REDACTED' http://x"),
        // Userinfo.
        ("redis://:hunter2@db:6379/0", "redis://REDACTED@db:6379/0"),
        ("postgres://u:p@ss@db/x", "postgres://REDACTED@db/x"),
        ("https://hunter2hunter2@github.com/a/b", "https://REDACTED@github.com/a/b"),
        // Shapes.
        ("glpat-abcdefghij0123456789", "REDACTED"),
        ("npm_abcdefghijklmnopqrstuvwxyz0123456789", "REDACTED"),
        ("sk_live_abcdefghijklmnop", "REDACTED"),
        (
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\nMII\n-----END PGP PRIVATE KEY BLOCK-----\nafter",
            "REDACTED\nafter",
        ),
        // What is none.
        ("the key is under the mat", "the key is under the mat"),
        (
            "git@github.com:a/b.git and mailto:ada@example.com",
            "git@github.com:a/b.git and mailto:ada@example.com",
        ),
        ("http://example.com/@scope/name", "http://example.com/@scope/name"),
        ("max_tokens: 4096, tokens=19", "max_tokens: 4096, tokens=19"),
    ];
    for (raw, wanted) in cases {
        assert_eq!(text(raw), wanted, "of {raw}");
    }
}

#[test]
fn a_known_secret_goes_in_every_form_in_which_it_is_sent() {
    let secret = r#"pa"ss\wört/+"#;
    let known = Surroundings { secrets: vec![SecretString::from(secret)], home: None };
    let escaped = json!(secret).to_string();
    let twice = json!(escaped).to_string();
    let forms = [
        secret.to_owned(),
        escaped.trim_matches('"').to_owned(),
        twice.trim_matches('"').trim_matches(['\\', '"']).to_owned(),
        "pa%22ss%5Cw%C3%B6rt%2F%2B".to_owned(),
        "pa%22ss%5cw%c3%b6rt%2f%2b".to_owned(),
        STANDARD.encode(secret),
        STANDARD.encode(format!("opencode:{secret}")),
        URL_SAFE_NO_PAD.encode(format!("opencode:{secret}")),
    ];
    for form in forms {
        let raw = event("x", &json!({ "output": format!("it is {form} !") }));
        let raw = SseEvent { event: Some(form.clone()), id: Some(form.clone()), ..raw };
        let fixture = normalise(&[raw], &known);
        assert_eq!(properties(&fixture[0]), json!({ "output": "it is REDACTED !" }), "{form}");
        assert_eq!(fixture[0].event.as_deref(), Some("REDACTED"), "{form}");
        assert_eq!(fixture[0].id.as_deref(), Some("REDACTED"), "{form}");
    }
}

#[test]
fn everything_under_a_secret_name_goes() {
    let raw = json!({
        "credentials": { "user": "ada", "all": [{ "value": "hunter2" }] }, "password": 12_345_678, "cookies": ["a=b"],
        "secretKey": "hunter2", "auth": "hunter2", "passphrase": "hunter2", "token": null, "secret": true,
        "env": [{ "name": "API_KEY", "value": "hunter2" }, { "name": "LANG", "value": "C" }],
        "tokens": { "input": 11 }, "maxTokens": 5, "author": "ada",
    });
    let uuid = |digit: &str| format!("{0}-0000-4000-8000-000000000000", digit.repeat(8));
    let hidden = event("x", &json!({ "token": uuid("a"), "shown": uuid("b") }));
    let fixture = normalise(&[event("x", &raw), hidden], &surroundings());
    let shown = json!({ "token": REDACTED, "shown": "00000000-0000-4000-8000-000000000001" });
    assert_eq!(properties(&fixture[1]), shown, "what is hidden takes no number");
    let wanted = json!({
        "credentials": { "user": REDACTED, "all": [{ "value": REDACTED }] }, "password": 0, "cookies": [REDACTED],
        "secretKey": REDACTED, "auth": REDACTED, "passphrase": REDACTED, "token": null, "secret": true,
        "env": [{ "name": "API_KEY", "value": REDACTED }, { "name": "LANG", "value": "C" }],
        "tokens": { "input": 11 }, "maxTokens": 5, "author": "ada",
    });
    assert_eq!(properties(&fixture[0]), wanted);
}

#[test]
fn paths_become_those_of_the_fixture() {
    let cases = [
        ("/home/ada/src/shop/a.txt", concat!("/work", "/a.txt")),
        ("cat /home/ada/src/shop", "cat /work"),
        ("/home/ada/src/shopping", "/home/agent/src/shopping"),
        ("/home/ada/.config/x", "/home/agent/.config/x"),
        ("/home/adam", "/home/adam"),
        ("/mnt/home/ada/x", "/mnt/home/ada/x"),
    ];
    for (raw, wanted) in cases {
        assert_eq!(text(raw), wanted);
    }
    let directory = |path: &str| event("x", &json!({ "cwd": path, "path": &path[1..] }));
    let frames = normalise(&[directory("/a/b"), directory("/a/b/c"), directory("/a/b")], &surroundings());
    let seen: Vec<Value> = frames.iter().map(properties).collect();
    assert_eq!(seen[0], json!({ "cwd": "/work", "path": "work" }));
    assert_eq!(seen[1], json!({ "cwd": "/work-2", "path": "work-2" }));
    assert_eq!(seen[2], seen[0]);
}

/// An id as opencode makes them at this time.
fn id(prefix: &str, unix_ms: i64, count: i64, tail: &str) -> String {
    let time = unix_ms * 0x1000 + count;
    let time = if prefix == "ses" { !time } else { time };
    format!("{prefix}_{:012x}{tail}", time & 0xffff_ffff_ffff)
}

#[test]
fn ids_and_times_keep_their_order_and_differences() {
    const NOW: i64 = 1_796_014_140_297;
    const NONE: &str = "00000000000000";
    assert_eq!(
        id("msg", NOW, 1, "BnfjGYH1RshWeX"),
        "msg_22ac8eb89001BnfjGYH1RshWeX",
        "as opencode makes them"
    );
    let message = |ms, count| id("msg", NOW + ms, count, "BnfjGYH1RshWeX");
    let session = |ms| id("ses", NOW + ms, 0, "4n6YKWKAgTtwWg");
    let said = format!("see {}.", message(-5, 1));
    let frames = normalise(
        &[
            event("x", &json!({ "id": message(0, 1), "created": NOW, "in": session(0) })),
            event("x", &json!({ "id": message(-5, 1), "next": NOW + 1000, "in": session(-7) })),
            event("x", &json!({ "callID": "toolu_01Qx", "at": "2026-11-30T04:49:00.298Z", "tokens": 19 })),
            event("x", &json!({ "callID": "call_000045_0", "said": said })),
            event(
                "x",
                &json!({ "ids": [id("prt", NOW, 2, "BnfjGYH1RshWeX"), id("prt", NOW, 2, "AnfjGYH1RshWeX")] }),
            ),
        ],
        &surroundings(),
    );
    let seen: Vec<Value> = frames.iter().map(properties).collect();
    let moved = |prefix, ms, count| id(prefix, BASE_TIME_MS + ms, count, NONE);
    let first = json!({ "id": moved("msg", 0, 1), "created": BASE_TIME_MS, "in": moved("ses", 0, 0) });
    assert_eq!(seen[0], first);
    let second = json!({ "id": moved("msg", -5, 1), "next": BASE_TIME_MS + 1000, "in": moved("ses", -7, 0) });
    assert_eq!(seen[1], second);
    assert_eq!(seen[2], json!({ "callID": "toolu_0001", "at": "2027-01-15T08:00:00.001Z", "tokens": 19 }));
    let said = format!("see {}.", moved("msg", -5, 1));
    assert_eq!(seen[3], json!({ "callID": "call_00000002", "said": said }));
    let part = |tail| id("prt", BASE_TIME_MS, 2, tail);
    assert_eq!(seen[4], json!({ "ids": [part("00000000000001"), part(NONE)] }));
}

#[test]
fn a_doors_cursors_are_counted_from_one() {
    let id = |id: &str| Some(id.to_owned());
    let resync = json!({ "payload": { "type": "berth.resync", "properties": { "oldest": "8f2c-41" } } });
    let frames = [
        SseEvent { id: id("8f2c-40"), ..frame(&json!({})) },
        SseEvent { id: id("8f2c-41"), ..frame(&resync) },
    ];
    let fixture = normalise(&frames, &surroundings());
    assert_eq!((fixture[0].id.as_deref(), fixture[1].id.as_deref()), (Some("e1-1"), Some("e1-2")));
    assert!(fixture[1].data.contains(r#""oldest":"e1-2""#), "{}", fixture[1].data);
}

#[test]
fn what_was_streamed_in_pieces_is_looked_at_as_a_whole() {
    let pieces = ["my key is sk-abcdef", "ghijklmnop", "qrstuvw and", " correct ho", "rse", "!"];
    let mut frames: Vec<SseEvent> = pieces.iter().map(|piece| delta("prt_1", piece)).collect();
    frames.insert(3, delta("prt_2", "another part"));
    let fixture = normalise(&frames, &surroundings());
    let of = |part: &str| -> String {
        let deltas = fixture.iter().map(properties).filter(|delta| delta["partID"] == part);
        deltas.map(|delta| delta["delta"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(of("prt_1"), "my key is REDACTED and REDACTED!");
    assert_eq!(of("prt_2"), "another part");
    assert_eq!(fixture.len(), frames.len());
}

#[test]
fn what_is_no_json_is_redacted_all_the_same() {
    let raw = SseEvent { data: "half {\"a\": correct horse".to_owned(), ..SseEvent::default() };
    assert_eq!(to_bytes(&normalise(&[raw], &surroundings())), b"data: half {\"a\": REDACTED\n\n");
}

#[test]
fn plain_values_count_ids_and_leave_times_out() {
    let mut plain = Plain::default();
    let (a, b) = ("msg_22ac8eb89001BnfjGYH1RshWeX", "msg_22ac8eb80001BnfjGYH1RshWeX");
    let first = plain.value(json!({ "id": a, "at": "2026-11-30T04:49:00.298Z", "tokens": 19 }));
    assert_eq!(first, json!({ "id": "msg_1", "at": "(time)", "tokens": 19 }));
    assert_eq!(plain.value(json!([format!("{b} after {a}")])), json!(["msg_2 after msg_1"]));
}

/// Pieces of text that mean something to the rules.
fn fragment() -> impl Strategy<Value = String> {
    let known = [
        PASSWORD,
        "sk-abcdefghijklmnopqrst",
        "token=",
        "password: \"",
        "Bearer ",
        "abcdefghijklmnopqrstu",
        "/home/ada",
        "/work",
        "/src/shop",
        "msg_22ac8eb89001BnfjGYH1RshWeX",
        "2026-11-30T04:49:00.298Z",
        "127.0.0.1:80",
        "0123456789012345678901234567890123456789",
        "REDACTED",
        "authorization: ",
        "Cookie: ",
        "--password ",
        "-u ada:",
        "redis://:",
        "\\\"api_key\\\":\\\"",
        "@",
        "\n",
    ];
    prop_oneof![3 => prop::sample::select(known.to_vec()).prop_map(str::to_owned), 2 => "[ a-z\"'=:/\\\\\u{e9}\u{1f980}-]{0,6}"]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]
    #[test]
    fn twice_is_as_good_as_once_and_no_secret_is_left(
        fragments in prop::collection::vec(fragment(), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let whole: String = fragments.concat();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
        places.extend([0, whole.len()]);
        places.retain(|place| whole.is_char_boundary(*place));
        places.sort_unstable();
        let directory = event("x", &json!({ "directory": "/home/ada/src/shop", "created": 1_796_014_140_297_i64 }));
        let pieces = places.windows(2).map(|pair| delta("prt_1", &whole[pair[0]..pair[1]]));
        let frames: Vec<SseEvent> =
            [directory, event("x", &json!({ "text": whole }))].into_iter().chain(pieces).collect();
        let once = normalise(&frames, &surroundings());
        let streamed: String =
            once[2..].iter().map(|frame| properties(frame)["delta"].as_str().unwrap().to_owned()).collect();
        prop_assert_eq!(&properties(&once[1])["text"], &Value::from(streamed));
        let bytes = String::from_utf8(to_bytes(&once)).unwrap();
        prop_assert!(!bytes.contains(PASSWORD), "{}", bytes);
        let twice = String::from_utf8(to_bytes(&normalise(&once, &surroundings()))).unwrap();
        prop_assert_eq!(twice, bytes);
    }
}

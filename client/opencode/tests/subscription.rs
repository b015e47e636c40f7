//! The subscription that is made again, and messages page by page, against a server that answers as opencode or a door
//! does. IO on the loopback only.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is a failed test")]

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Query, State},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use berth_opencode::{
    ClientConfig, ClientError, Event, OpencodeClient, PermissionReply, SubscriptionCounts, SubscriptionItem,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet, time::timeout};

const BOUND: Duration = Duration::from_secs(20);

struct Peer {
    client: OpencodeClient,
    _serving: JoinSet<()>,
}

async fn serve(router: Router) -> Peer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
    let client = OpencodeClient::new(ClientConfig::new(format!("http://{address}"), "x".into())).unwrap();
    Peer { client, _serving: serving }
}

/// Each subscription gets two events, then the stream ends; the second one is refused, as while a door starts.
fn two_events(calls: &AtomicUsize, journal: bool, headers: &HeaderMap) -> Response {
    let call = calls.fetch_add(1, Ordering::SeqCst);
    if call == 1 {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    let after: u64 = headers
        .get("last-event-id")
        .map_or(0, |id| id.to_str().unwrap().strip_prefix("e-").unwrap().parse().unwrap());
    let frame = |seq: u64| {
        let id = if journal { format!("id: e-{seq}\n") } else { String::new() };
        let idle = json!({ "type": "session.idle", "properties": { "sessionID": format!("ses_{seq}") } });
        format!("{id}data: {}\n\n", json!({ "directory": "/w", "payload": idle }))
    };
    let odd = "data: {\n\ndata: {\"type\":\"from.the.future\",\"properties\":{}}\n\n";
    let body = format!("{}{odd}{}", frame(after + 1), frame(after + 2));
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

fn events(journal: bool) -> Router {
    let handler = move |state: State<Arc<AtomicUsize>>, headers: HeaderMap| {
        std::future::ready(two_events(&state, journal, &headers))
    };
    Router::new().route("/global/event", get(handler)).with_state(Arc::default())
}

/// What a subscription tells until it stands for the second time, and the event after that.
async fn told(peer: &Peer) -> (Vec<String>, SubscriptionCounts) {
    let mut subscription = peer.client.subscribe(None);
    let mut words = Vec::new();
    let mut stood = 0;
    while stood < 2 || words.len() < 10 {
        let word = match timeout(BOUND, subscription.next()).await.unwrap() {
            SubscriptionItem::Connected { gap } => {
                stood += 1;
                format!("connected, gap {gap}")
            }
            SubscriptionItem::Event(item) => match item.event.event {
                Event::SessionIdle { session_id } => session_id,
                other => format!("{other:?}"),
            },
            SubscriptionItem::Unreadable(_) => "unreadable".to_owned(),
            SubscriptionItem::Lost(None) => "closed".to_owned(),
            SubscriptionItem::Lost(Some(_)) => "lost".to_owned(),
        };
        words.push(word);
    }
    (words, subscription.counts())
}

#[tokio::test]
async fn a_subscription_goes_on_where_the_journal_says() {
    let (words, counts) = told(&serve(events(true)).await).await;
    let first = ["connected, gap false", "ses_1", "unreadable", "Unknown", "ses_2", "closed", "lost"];
    assert_eq!(words[..7], first);
    assert_eq!(words[7..], ["connected, gap false", "ses_3", "unreadable"]);
    assert_eq!(counts, SubscriptionCounts { events: 4, unknown: 1, unreadable: 2, lost: 2 });
}

#[tokio::test]
async fn without_a_journal_each_new_subscription_is_a_gap() {
    let (words, _) = told(&serve(events(false)).await).await;
    assert_eq!(words[0], "connected, gap false", "before the first there was nothing to lose");
    assert_eq!(words[7..9], ["connected, gap true", "ses_1"]);
}

fn message(index: usize) -> Value {
    let id = format!("msg_{index:03}");
    json!({ "info": { "id": id, "sessionID": "ses_1", "role": "user", "time": { "created": index } }, "parts": [] })
}

/// 250 messages in pages, as opencode lists them. The cursor of the oldest page may lead to itself.
fn page(query: &HashMap<String, String>, loops: bool) -> Response {
    let end: usize = query.get("before").map_or(250, |before| before.parse().unwrap());
    let start = end.saturating_sub(query["limit"].parse().unwrap());
    let listed: Vec<Value> = (start..end).map(message).collect();
    let next = if start > 0 || loops { start.to_string() } else { String::new() };
    ([("x-next-cursor", next)], Json(listed)).into_response()
}

fn messages(loops: bool) -> Router {
    Router::new()
        .route("/session/{id}/message", get(move |Query(query)| std::future::ready(page(&query, loops))))
}

#[tokio::test]
async fn messages_are_read_back_to_a_prompt_in_order() {
    for loops in [false, true] {
        let peer = serve(messages(loops)).await;
        let ids = async |back_to: &str| {
            let read =
                timeout(BOUND, peer.client.messages_back_to("/w", "ses_1", back_to)).await.unwrap().unwrap();
            read.into_iter().map(|message| message.info.id).collect::<Vec<_>>()
        };
        let expected = |from: usize| (from..250).map(|index| format!("msg_{index:03}")).collect::<Vec<_>>();
        assert_eq!(ids("msg_200").await, expected(150), "the page of it is whole");
        assert_eq!(ids("msg_120").await, expected(50));
        assert_eq!(ids("msg_none").await, expected(0));
    }
}

async fn refuses_nothing(version: &'static str) -> (Peer, Arc<AtomicUsize>) {
    let replies: Arc<AtomicUsize> = Arc::default();
    let counted = Arc::clone(&replies);
    let listed = json!([{ "id": "per_1", "sessionID": "ses_1", "permission": "bash", "patterns": ["ls"] }]);
    let router = Router::new()
        .route(
            "/global/health",
            get(move || async move { Json(json!({ "healthy": true, "version": version })) }),
        )
        .route("/permission", get(move || async move { Json(listed) }))
        .route(
            "/permission/{id}/reply",
            post(move || async move {
                counted.fetch_add(1, Ordering::SeqCst);
                Json(true)
            }),
        );
    (serve(router).await, replies)
}

#[tokio::test]
async fn an_answer_to_an_unknown_request_is_not_found_also_where_opencode_takes_it() {
    let (peer, replies) = refuses_nothing("1.15.4").await;
    peer.client.health().await.unwrap();
    let reply = async |id: &str| peer.client.reply_permission("/w", id, PermissionReply::Once, None).await;
    let error = reply("per_gone").await.unwrap_err();
    assert!(matches!(error, ClientError::NotFound { .. }), "{error:?}");
    assert_eq!(replies.load(Ordering::SeqCst), 0);
    reply("per_1").await.unwrap();
    assert_eq!(replies.load(Ordering::SeqCst), 1);

    // Later versions tell it themselves.
    let (peer, replies) = refuses_nothing("1.18.33").await;
    peer.client.health().await.unwrap();
    peer.client.reply_permission("/w", "per_gone", PermissionReply::Once, None).await.unwrap();
    assert_eq!(replies.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn what_lists_no_health_is_another_line() {
    let peer = serve(Router::new().route("/session", get(|| async { "" }))).await;
    let error = peer.client.health().await.unwrap_err();
    let ClientError::UnsupportedVersion { seen } = &error else { panic!("{error:?}") };
    assert!(seen.contains("404"), "{seen}");
    assert_eq!(peer.client.protocol(), None);
}

#[tokio::test]
async fn sizes_of_models_are_read_and_nothing_else() {
    let providers = json!({ "providers": [
        { "id": "p", "options": { "apiKey": "a secret" }, "models": {
            "m": { "limit": { "context": 200_000, "output": 8192 } },
            "unlimited": { "limit": { "context": 0 } },
            "odd": 7,
        } },
        { "models": {} }, 3,
    ] });
    let router = Router::new().route("/config/providers", get(move || async move { Json(providers) }));
    let sizes = serve(router).await.client.context_sizes("/w").await.unwrap();
    let sizes: Vec<_> = sizes.iter().map(|(model, size)| (model.model_id.as_str(), *size)).collect();
    assert_eq!(sizes, [("m", 200_000)]);
}

#[tokio::test]
async fn a_subscription_that_breaks_as_soon_as_it_stands_is_made_again_ever_later() {
    let connected = "data: {\"payload\":{\"type\":\"server.connected\",\"properties\":{}}}\n\n";
    let handler = move || async move { ([(CONTENT_TYPE, "text/event-stream")], connected) };
    let peer = serve(Router::new().route("/global/event", get(handler))).await;
    let mut subscription = peer.client.subscribe(None);
    let began = tokio::time::Instant::now();
    while subscription.counts().lost < 5 {
        timeout(BOUND, subscription.next()).await.unwrap();
    }
    // 50, 100, 200 and 400 ms.
    assert!(began.elapsed() >= Duration::from_millis(750), "{:?}", began.elapsed());
}

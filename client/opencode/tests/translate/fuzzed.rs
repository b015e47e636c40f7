//! What the fuzzer found.

use berth_opencode::{SessionTranslator, Translation, TurnPhase};
use serde_json::json;

use crate::made::{ROOT, apply, asked, event, finished_json, idle, outcome, started, user};

#[test]
fn what_no_step_can_cost_is_not_counted() {
    for cost in [json!(-1), json!(1.7e308), json!("much")] {
        let mut translator = started();
        let mut info = finished_json("msg_a1", "msg_u1", 101, "stop");
        info["cost"] = cost.clone();
        let out = apply(&mut translator, &[event("message.updated", &json!({ "info": info })), idle()]);
        assert!(outcome(&out).usage.unwrap().cost_usd.abs() < f64::EPSILON, "{cost}");
        let stored = serde_json::to_string(&translator).unwrap();
        assert_eq!(serde_json::from_str::<SessionTranslator>(&stored).unwrap(), translator, "{cost}");
    }
}

#[test]
fn nothing_is_asked_before_the_turn_has_started() {
    let mut translator = SessionTranslator::new(ROOT);
    translator.begin_turn("msg_u1");
    let child = json!({ "id": "ses_child", "parentID": ROOT, "title": "t", "directory": "/w", "time": { "created": 200 } });
    let created = event("session.created", &json!({ "info": child }));
    let out = apply(&mut translator, &[user("msg_u1", 100), created, asked("per_1", "ses_child", "msg_c1")]);
    assert_eq!(out, Vec::<Translation>::new());
    assert_eq!(translator.phase(), TurnPhase::Admitted);
}

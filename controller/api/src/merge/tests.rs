//! Tables of single cases, and what holds for any settings.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn settings(value: Value) -> Settings {
    serde_json::from_value(value).unwrap()
}

fn merged(over: Value, under: Value) -> Value {
    serde_json::to_value(merge(settings(over), settings(under))).unwrap()
}

#[test]
fn single_values_and_members_of_objects() {
    for (over, under, expected) in [
        (json!({}), json!({ "image": "a" }), json!({ "image": "a" })),
        (
            json!({ "image": "b" }),
            json!({ "image": "a", "model": "p/m" }),
            json!({ "image": "b", "model": "p/m" }),
        ),
        (
            json!({ "resources": { "requests": { "cpu": 1 } } }),
            json!({ "resources": { "requests": { "cpu": 2, "memory": "1Gi" }, "limits": { "cpu": 3 } } }),
            json!({ "resources": { "requests": { "cpu": 1, "memory": "1Gi" }, "limits": { "cpu": 3 } } }),
        ),
        (
            json!({ "turnLimits": { "steps": 5 } }),
            json!({ "turnLimits": { "steps": 9, "duration": "1h" } }),
            json!({ "turnLimits": { "steps": 5, "duration": "1h" } }),
        ),
        (
            json!({ "pod": { "labels": { "a": "2" }, "dnsPolicy": "None" } }),
            json!({ "pod": { "labels": { "a": "1", "b": "1" } } }),
            json!({ "pod": { "labels": { "a": "2", "b": "1" }, "dnsPolicy": "None" } }),
        ),
        // False and nothing are words too.
        (
            json!({ "workspace": { "seed": { "git": { "lfs": false } } } }),
            json!({ "workspace": { "seed": { "git": { "url": "https://a.test/b", "lfs": true } } } }),
            json!({ "workspace": { "seed": { "git": { "url": "https://a.test/b", "lfs": false } } } }),
        ),
        (
            json!({ "opencode": { "env": [{ "name": "A", "value": "" }] } }),
            json!({ "opencode": { "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }] } }),
            json!({ "opencode": { "env": [{ "name": "A", "value": "" }] } }),
        ),
    ] {
        assert_eq!(merged(over.clone(), under.clone()), expected, "{over} over {under}");
    }
}

#[test]
fn lists_with_names_are_merged_by_them() {
    let over = json!({
        "providers": [{ "name": "new" }, { "name": "a", "baseURL": "https://b.test" }],
        "ports": [{ "name": "web", "port": 81 }],
        "files": [{ "path": "x", "configMapKeyRef": { "name": "m", "key": "k" } }],
    });
    let under = json!({
        "providers": [{ "name": "a", "apiKeySecretRef": { "name": "s", "key": "k" } }, { "name": "other" }],
        "ports": [{ "name": "web", "port": 80, "from": [{ "podSelector": {} }] }],
        "files": [{ "path": "x", "secretKeyRef": { "name": "s", "key": "k" } }],
    });
    let expected = json!({
        "providers": [
            { "name": "a", "apiKeySecretRef": { "name": "s", "key": "k" }, "baseURL": "https://b.test" },
            { "name": "other" },
            { "name": "new" },
        ],
        "ports": [{ "name": "web", "port": 81, "from": [{ "podSelector": {} }] }],
        "files": [{ "path": "x", "configMapKeyRef": { "name": "m", "key": "k" } }],
    });
    assert_eq!(merged(over, under), expected);
}

#[test]
fn rules_follow_each_other_and_the_sandboxs_come_last() {
    let rule =
        |pattern: &str, action: &str| json!({ "permission": "bash", "pattern": pattern, "action": action });
    let over = json!({ "permissions": { "rules": [rule("git *", "Allow"), rule("a", "Ask")] } });
    let under =
        json!({ "permissions": { "default": "Ask", "rules": [rule("a", "Ask"), rule("*", "Deny")] } });
    let expected = json!({ "permissions": {
        "default": "Ask", "rules": [rule("*", "Deny"), rule("git *", "Allow"), rule("a", "Ask")],
    } });
    assert_eq!(merged(over, under), expected);
    let cidr = |text: &str| json!({ "network": { "egress": { "allow": [{ "cidr": text }] } } });
    let both = json!({ "network": { "egress": { "allow": [{ "cidr": "10.2.0.0/16" }, { "cidr": "10.1.0.0/16" }] } } });
    assert_eq!(merged(cidr("10.1.0.0/16"), cidr("10.2.0.0/16")), both);
}

#[test]
fn configuration_is_merged_at_every_depth_and_null_takes_away() {
    let config = |value: Value| json!({ "opencode": { "config": value } });
    let over = config(json!({ "agent": { "build": { "prompt": null, "steps": 3 } }, "mcp": [1] }));
    let under = config(json!({ "agent": { "build": { "prompt": "x" }, "plan": {} }, "mcp": [2, 3] }));
    let expected =
        config(json!({ "agent": { "build": { "prompt": null, "steps": 3 }, "plan": {} }, "mcp": [1] }));
    assert_eq!(merged(over, under), expected);
}

#[test]
fn one_kind_of_workspace_takes_the_place_of_the_other() {
    let of = |value: Value| json!({ "workspace": value });
    let seed = json!({ "git": { "url": "https://a.test/b" } });
    for (over, under, expected) in [
        (
            json!({ "ephemeral": {} }),
            json!({ "persistent": { "size": "1Gi" }, "seed": seed }),
            json!({ "ephemeral": {}, "seed": seed }),
        ),
        (json!({ "persistent": {} }), json!({ "ephemeral": {} }), json!({ "persistent": {} })),
        (
            json!({ "persistent": { "size": "2Gi" } }),
            json!({ "persistent": { "size": "1Gi", "storageClassName": "fast" } }),
            json!({ "persistent": { "size": "2Gi", "storageClassName": "fast" } }),
        ),
        (json!({ "seed": seed }), json!({ "ephemeral": {} }), json!({ "ephemeral": {}, "seed": seed })),
    ] {
        assert_eq!(merged(of(over.clone()), of(under.clone())), of(expected), "{over} over {under}");
    }
}

#[test]
fn credentials_do_not_go_over_to_another_repository() {
    let of = |value: Value| json!({ "workspace": { "seed": { "git": value } } });
    let under = json!({ "url": "https://a.test/b", "ref": "main", "credentialsSecretRef": { "name": "s" } });
    let other = json!({ "url": "https://evil.test/b" });
    assert_eq!(merged(of(other.clone()), of(under.clone())), of(other));
    let branch = json!({ "url": "https://a.test/b", "ref": "v2", "credentialsSecretRef": { "name": "s" } });
    assert_eq!(merged(of(json!({ "ref": "v2" })), of(under)), of(branch));
}

/// One value of a few, or nothing.
fn some(values: Vec<Value>) -> impl Strategy<Value = Option<Value>> {
    proptest::option::of(proptest::sample::select(values))
}

/// An object with some of these members.
fn object(
    members: Vec<(&'static str, BoxedStrategy<Option<Value>>)>,
) -> impl Strategy<Value = Option<Value>> {
    let (names, values): (Vec<_>, Vec<_>) = members.into_iter().unzip();
    let built = values.prop_map(move |values| {
        let members = names.iter().zip(values).filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
        Value::Object(members.collect())
    });
    proptest::option::of(built)
}

/// A list with some of the elements of each of these groups, of each at most one: they have one name.
fn list(groups: Vec<Vec<Value>>) -> impl Strategy<Value = Option<Value>> {
    let groups: Vec<_> = groups.into_iter().map(|group| some(group).boxed()).collect();
    groups.prop_map(|elements| {
        let elements: Vec<Value> = elements.into_iter().flatten().collect();
        (!elements.is_empty()).then(|| Value::Array(elements))
    })
}

fn policy() -> BoxedStrategy<Option<Value>> {
    let rule = |action: &str| json!({ "permission": "bash", "action": action });
    let default = some(vec![json!("Ask"), json!("Deny")]).boxed();
    let rules = list(vec![vec![rule("Ask"), rule("Deny")], vec![rule("Allow")]]).boxed();
    object(vec![("default", default), ("rules", rules)]).boxed()
}

fn git() -> BoxedStrategy<Option<Value>> {
    // Of one repository, or of none that is named: see the test on others.
    let git = object(vec![
        ("url", some(vec![json!("https://a.test/b")]).boxed()),
        ("ref", some(vec![json!("main"), json!("v2")]).boxed()),
        ("lfs", some(vec![json!(true), json!(false)]).boxed()),
    ]);
    object(vec![("git", git.boxed())]).boxed()
}

/// Settings in which each part may be absent; of what has several kinds it is always the same one.
fn any_settings() -> impl Strategy<Value = Settings> {
    let text = |a: &str, b: &str| some(vec![json!(a), json!(b)]).boxed();
    let numbers = || object(vec![("cpu", text("1", "2")), ("memory", text("1Gi", "2Gi"))]).boxed();
    let config = object(vec![
        ("one", object(vec![("a", text("1", "2")), ("b", text("1", "2"))]).boxed()),
        ("two", some(vec![json!([1]), json!([2])]).boxed()),
    ]);
    let env = list(vec![
        vec![json!({ "name": "A", "value": "1" }), json!({ "name": "A", "value": "2" })],
        vec![json!({ "name": "B", "value": "" })],
    ]);
    let opencode = object(vec![("config", config.boxed()), ("env", env.boxed()), ("image", text("x", "y"))]);
    let providers = list(vec![
        vec![
            json!({ "name": "p", "baseURL": "https://1" }),
            json!({ "name": "p", "apiKeySecretRef": { "name": "s", "key": "k" } }),
        ],
        vec![json!({ "name": "q" })],
    ]);
    let persistent = object(vec![("size", text("1Gi", "2Gi")), ("storageClassName", text("a", "b"))]);
    let workspace = object(vec![("persistent", persistent.boxed()), ("seed", git())]);
    let allow = list(vec![vec![json!({ "cidr": "10.0.0.0/8" })], vec![json!({ "cidr": "10.1.0.0/16" })]]);
    let egress = object(vec![("preset", text("None", "PublicInternet")), ("allow", allow.boxed())]);
    let ports = list(vec![vec![
        json!({ "name": "w", "port": 80 }),
        json!({ "name": "w", "port": 81, "from": [{ "podSelector": {} }] }),
    ]]);
    let pod = object(vec![
        ("labels", object(vec![("a", text("1", "2")), ("b", text("1", "2"))]).boxed()),
        (
            "tolerations",
            list(vec![vec![json!({ "key": "a" }), json!({ "key": "b" })], vec![json!({ "key": "c" })]])
                .boxed(),
        ),
        ("hostAliases", list(vec![vec![json!({ "ip": "10.0.0.1" }), json!({ "ip": "10.0.0.2" })]]).boxed()),
    ]);
    object(vec![
        ("image", text("a", "b")),
        ("opencode", opencode.boxed()),
        ("providers", providers.boxed()),
        ("resources", object(vec![("requests", numbers()), ("limits", numbers())]).boxed()),
        ("workspace", workspace.boxed()),
        ("network", object(vec![("egress", egress.boxed())]).boxed()),
        ("ports", ports.boxed()),
        ("permissions", policy()),
        ("expiresAfter", text("1h", "2h")),
        ("pod", pod.boxed()),
    ])
    .prop_map(|value| settings(value.unwrap_or_else(|| json!({}))))
}

/// Whether each value that stands in `over`, lists excepted, stands in `merged` too.
fn stands(over: &Value, merged: &Value) -> bool {
    match (over, merged) {
        (Value::Object(over), Value::Object(merged)) => {
            over.iter().all(|(name, value)| merged.get(name).is_some_and(|other| stands(value, other)))
        }
        (Value::Array(_), Value::Array(_)) => true,
        (over, merged) => over == merged,
    }
}

proptest! {
    #[test]
    fn what_is_absent_takes_nothing_away(one in any_settings()) {
        prop_assert_eq!(merge(Settings::default(), one.clone()), one.clone());
        prop_assert_eq!(merge(one.clone(), Settings::default()), one.clone());
        prop_assert_eq!(merge(one.clone(), one.clone()), one);
    }

    #[test]
    fn what_is_above_stands_and_what_is_below_is_still_there(over in any_settings(), under in any_settings()) {
        let json = |settings: &Settings| serde_json::to_value(settings).unwrap();
        let merged = json(&merge(over.clone(), under.clone()));
        prop_assert!(stands(&json(&over), &merged));
        let members = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        for name in members(&json(&under)) {
            prop_assert!(merged.get(&name).is_some(), "{}", name);
        }
    }

    #[test]
    fn it_does_not_matter_which_two_are_merged_first(
        one in any_settings(), two in any_settings(), three in any_settings(),
    ) {
        let right = merge(one.clone(), merge(two.clone(), three.clone()));
        prop_assert_eq!(merge(merge(one, two), three), right);
    }
}

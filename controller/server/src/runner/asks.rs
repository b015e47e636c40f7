//! What is answered to an ask, and which asks a rule answers. Pure.

use berth_opencode::PermissionReply;
use berth_wire::{
    api::PermissionDecision,
    event::{EventPayload, PermissionRequested, Resolution, ResolvedBy},
};

use crate::store::{Answer, AskKind, PermissionRule};

/// What is told to opencode.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reply {
    Permission(PermissionReply, Option<String>),
    Question(Option<Vec<Vec<String>>>),
}

/// What is told to opencode, and what the log says of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settlement {
    pub(super) reply: Reply,
    pub(super) resolution: Resolution,
    pub(super) by: ResolvedBy,
}

/// Id and kind of an ask, if this is one.
pub(super) fn ask_of(payload: &EventPayload) -> Option<(&str, AskKind)> {
    match payload {
        EventPayload::PermissionRequested(asked) => Some((&asked.permission_id, AskKind::Permission)),
        EventPayload::QuestionRequested(asked) => Some((&asked.question_id, AskKind::Question)),
        _ => None,
    }
}

/// What a person's answer means. opencode's own "always" lasts for every session of the directory until its
/// restart, so it is told "once", and the rule is ours.
pub(super) fn by_person(answer: &Answer) -> Settlement {
    let (reply, resolution) = match answer {
        Answer::Permission { decision, message } => match decision {
            PermissionDecision::Once => (Reply::Permission(PermissionReply::Once, None), Resolution::Once),
            PermissionDecision::Always => {
                (Reply::Permission(PermissionReply::Once, None), Resolution::Always)
            }
            PermissionDecision::Reject => {
                (Reply::Permission(PermissionReply::Reject, message.clone()), Resolution::Rejected)
            }
        },
        Answer::Question { answers: None } => (Reply::Question(None), Resolution::Rejected),
        Answer::Question { answers } => (Reply::Question(answers.clone()), Resolution::Answered),
    };
    Settlement { reply, resolution, by: ResolvedBy::User }
}

/// Nobody answered in time: the default is to reject.
pub(super) fn by_deadline(kind: AskKind) -> Settlement {
    let reply = match kind {
        AskKind::Permission => Reply::Permission(PermissionReply::Reject, None),
        AskKind::Question => Reply::Question(None),
    };
    Settlement { reply, resolution: Resolution::Rejected, by: ResolvedBy::Deadline }
}

/// An earlier "always" allows it, if each of its patterns matches a rule.
pub(super) fn by_rule(request: &EventPayload, rules: &[PermissionRule]) -> Option<Settlement> {
    let EventPayload::PermissionRequested(asked) = request else { return None };
    if !allowed(asked, rules) {
        return None;
    }
    let reply = Reply::Permission(PermissionReply::Once, None);
    Some(Settlement { reply, resolution: Resolution::Once, by: ResolvedBy::Rule })
}

fn allowed(asked: &PermissionRequested, rules: &[PermissionRule]) -> bool {
    let matches = |pattern: &String| {
        rules.iter().any(|rule| rule.permission == asked.permission && wildcard(&rule.pattern, pattern))
    };
    !asked.patterns.is_empty() && asked.patterns.iter().all(matches)
}

/// True when `text` matches `pattern`, in which `*` stands for any run of characters.
fn wildcard(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let tail = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some((_, after)) = text.split_once(piece) else { return false };
        text = after;
    }
    text.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn asked(permission: &str, patterns: &[&str]) -> EventPayload {
        EventPayload::PermissionRequested(PermissionRequested {
            permission_id: "per_1".to_owned(),
            permission: permission.to_owned(),
            patterns: patterns.iter().map(|&pattern| pattern.to_owned()).collect(),
            always: vec![],
            tool_call_id: None,
            title: String::new(),
            metadata: Value::Null,
            expires_at: None,
        })
    }

    #[test]
    fn wildcards() {
        for (pattern, text, expected) in [
            ("ls *", "ls -la", true),
            ("ls *", "lsof", false),
            ("*", "", true),
            ("*", "anything", true),
            ("git * --force*", "git push --force-with-lease", true),
            ("git * --force*", "git push", false),
            ("a*a", "a", false),
            ("a*b*c", "a-b-b-c", true),
            ("exact", "exactly", false),
            ("", "", true),
        ] {
            assert_eq!(wildcard(pattern, text), expected, "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn a_rule_answers_only_what_it_names() {
        let rules = [PermissionRule { permission: "bash".to_owned(), pattern: "ls *".to_owned() }];
        assert!(by_rule(&asked("bash", &["ls -la"]), &rules).is_some());
        assert!(by_rule(&asked("bash", &["ls -la", "rm x"]), &rules).is_none(), "each pattern needs a rule");
        assert!(by_rule(&asked("edit", &["ls -la"]), &rules).is_none());
        assert!(by_rule(&asked("doom_loop", &["bash"]), &rules).is_none());
        assert!(by_rule(&asked("bash", &[]), &rules).is_none());
    }
}

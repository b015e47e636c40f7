//! Other names of a session's working directory, through symbolic links. opencode compares names and not what they lead
//! to (measured on opencode 1.18.33): to it, a file that is named through a link is outside, and a permission is asked
//! for each. Rules of the session tell it otherwise. Pure.

use berth_opencode::model::{PermissionAction, PermissionRule};

/// What opencode asks for what is outside of the directory.
const OUTSIDE: &str = "external_directory";

/// The rules that must be added to those that a session has, so that what is beneath one of `aliases` is inside. What
/// is beneath a name that the directory does not have any more is asked for again: a link may lead elsewhere now.
pub(super) fn rules(present: &[PermissionRule], aliases: &[String]) -> Vec<PermissionRule> {
    let wanted: Vec<String> =
        aliases.iter().map(|alias| format!("{}/*", alias.trim_end_matches('/'))).collect();
    let last = |pattern: &str| {
        let about = present.iter().rev().filter(|rule| rule.permission == OUTSIDE);
        about.into_iter().find(|rule| rule.pattern == pattern).map(|rule| rule.action)
    };
    let rule = |pattern: &str, action| PermissionRule {
        permission: OUTSIDE.to_owned(),
        pattern: pattern.to_owned(),
        action,
    };
    let mut added: Vec<PermissionRule> = Vec::new();
    for known in present.iter().filter(|rule| rule.permission == OUTSIDE && rule.pattern.starts_with('/')) {
        let stale = !wanted.contains(&known.pattern) && last(&known.pattern) == Some(PermissionAction::Allow);
        if stale && added.iter().all(|rule| rule.pattern != known.pattern) {
            added.push(rule(&known.pattern, PermissionAction::Ask));
        }
    }
    let missing = wanted.iter().filter(|pattern| last(pattern) != Some(PermissionAction::Allow));
    added.extend(missing.map(|pattern| rule(pattern, PermissionAction::Allow)));
    added
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(pattern: &str, action: PermissionAction) -> PermissionRule {
        PermissionRule { permission: OUTSIDE.to_owned(), pattern: pattern.to_owned(), action }
    }

    #[test]
    fn names_are_added_once_and_taken_back_when_they_are_gone() {
        let aliases = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (allow, ask) = (PermissionAction::Allow, PermissionAction::Ask);
        assert_eq!(rules(&[], &[]), []);
        assert_eq!(rules(&[], &aliases(&["/link/"])), [rule("/link/*", allow)]);
        let mut present = vec![rule("/link/*", allow)];
        assert_eq!(rules(&present, &aliases(&["/link"])), []);
        let moved = rules(&present, &aliases(&["/other"]));
        assert_eq!(moved, [rule("/link/*", ask), rule("/other/*", allow)]);
        present.extend(moved);
        assert_eq!(rules(&present, &aliases(&["/other"])), []);
        assert_eq!(rules(&present, &aliases(&["/link", "/other"])), [rule("/link/*", allow)]);
        let other = PermissionRule { permission: "bash".to_owned(), ..rule("/x", allow) };
        assert_eq!(rules(&[other], &[]), []);
    }
}

//! The memory of failures, with files that are made up.

use super::*;

const ASKED: i128 = 1_800_000_000_000_000_000;

fn question(boot_id: &str, directory: &str) -> Question {
    let asked = Timestamp::from_nanosecond(ASKED).unwrap();
    Question { boot_id: boot_id.to_owned(), directory: directory.to_owned(), asked }
}

/// A file that was changed so long before the question.
fn stamp(length: u64, before: Duration) -> Stamp {
    let changed = ASKED - i128::try_from(before.as_nanos()).unwrap();
    Stamp { inode: 1, length, modified: changed, changed }
}

fn old(length: u64) -> Stamp {
    stamp(length, Duration::from_mins(1))
}

fn heard() -> Failures {
    let mut failures = Failures::default();
    failures.hears("one", None);
    failures
}

#[test]
fn the_file_is_read_from_failures_of_the_configuration_only() {
    let json = r#"{"name":"ConfigJsonError","data":{"path":"/w/opencode.json","message":"x"}}"#;
    let invalid = r#"{"name":"ConfigInvalidError","data":{"path":"/w/a.md","issues":[{"path":["mode"]}]}}"#;
    assert_eq!(named(json.as_bytes()), Some("/w/opencode.json".into()));
    assert_eq!(named(invalid.as_bytes()), Some("/w/a.md".into()));
    for other in [
        r#"{"name":"NotFoundError","data":{"path":"/w/a","message":"x"}}"#,
        r#"{"name":"ConfigJsonError","data":{"path":"a.json"}}"#,
        r#"{"name":"ConfigJsonError","data":{"path":7}}"#,
        r#"{"name":"ConfigJsonError"}"#,
        r#"{"name":"ConfigJsonError","data":{"path":"/w/"#,
        "",
    ] {
        assert_eq!(named(other.as_bytes()), None, "{other}");
    }
    let long = format!(r#"{{"name":"ConfigJsonError","data":{{"path":"/{}"}}}}"#, "x".repeat(PATH));
    assert_eq!(named(long.as_bytes()), None);
}

#[test]
fn a_start_is_due_when_the_file_looks_otherwise_than_when_it_failed() {
    let touched = Stamp { changed: ASKED - 1_000_000_000, ..stamp(9, Duration::from_mins(1)) };
    for (then, now, due) in [
        (Some(old(9)), Some(old(9)), false),
        (Some(old(9)), Some(old(10)), true),
        (Some(old(9)), None, true),
        (Some(old(9)), Some(touched), true),
        (None, None, false),
        (None, Some(old(9)), true),
        // It was changed while opencode may have read it.
        (Some(stamp(9, Duration::from_millis(1))), Some(stamp(9, Duration::from_millis(1))), true),
    ] {
        let mut failures = heard();
        assert!(failures.note(&question("one", "/w"), "/w/a".into(), then));
        assert_eq!(failures.files("one", "/w"), [Path::new("/w/a")]);
        assert!(failures.files("one", "/other").is_empty());
        assert_eq!(failures.due(), None);
        assert_eq!(failures.looked("one", "/w", Path::new("/w/a"), now), due, "{then:?} {now:?}");
        assert!(!failures.looked("one", "/other", Path::new("/w/a"), now));
        assert_eq!(failures.due(), due.then_some("one"), "{then:?} {now:?}");
    }
}

#[test]
fn the_first_failure_counts_until_the_next_run() {
    let mut failures = heard();
    failures.note(&question("one", "/w"), "/w/a".into(), Some(old(1)));
    failures.note(&question("one", "/w"), "/w/a".into(), Some(old(2)));
    assert!(
        failures.looked("one", "/w", Path::new("/w/a"), Some(old(2))),
        "opencode still tells what it read first"
    );
    failures.hears("one", Some(Timestamp::UNIX_EPOCH));
    assert_eq!(failures.due(), Some("one"), "it is the same run");
    failures.started(Instant::now());
    assert_eq!(failures.due(), None);
    failures.hears("two", None);
    assert!(failures.files("two", "/w").is_empty());
    failures.note(&question("one", "/w"), "/w/a".into(), Some(old(1)));
    assert!(failures.files("two", "/w").is_empty(), "an answer of the run before");
    failures.note(&question("two", "/w"), "/w/a".into(), Some(old(2)));
    assert!(!failures.looked("one", "/w", Path::new("/w/a"), Some(old(3))));
    assert!(!failures.looked("two", "/w", Path::new("/w/a"), Some(old(2))), "broken still, and not changed");
    assert!(failures.looked("two", "/w", Path::new("/w/a"), Some(old(3))));
}

#[test]
fn a_directory_may_fail_for_several_files() {
    let mut failures = heard();
    failures.note(&question("one", "/own"), "/a/opencode.json".into(), Some(old(1)));
    failures.note(&question("one", "/own"), "/b/opencode.json".into(), Some(old(2)));
    assert_eq!(failures.files("one", "/own").len(), 2);
    assert!(!failures.looked("one", "/own", Path::new("/a/opencode.json"), Some(old(1))));
    assert!(failures.looked("one", "/own", Path::new("/b/opencode.json"), Some(old(3))));
}

#[test]
fn of_a_run_that_was_not_heard_whole_a_file_is_sure_only_if_it_is_older() {
    let since =
        |seconds: i64| Timestamp::from_nanosecond(ASKED - i128::from(seconds) * 1_000_000_000).unwrap();
    for (unheard, sure) in [(since(59), true), (since(61), false), (Timestamp::UNIX_EPOCH, false)] {
        let mut failures = Failures::default();
        failures.hears("one", Some(unheard));
        failures.note(&question("one", "/w"), "/w/a".into(), Some(old(1)));
        assert_eq!(failures.looked("one", "/w", Path::new("/w/a"), Some(old(1))), !sure);
    }
}

#[test]
fn starts_are_some_time_apart_over_all_runs_and_failures_are_bounded() {
    let mut failures = heard();
    let now = Instant::now();
    assert_eq!(failures.rest(now), Duration::ZERO);
    failures.started(now);
    failures.hears("two", None);
    assert_eq!(failures.rest(now + REST / 4), REST * 3 / 4);
    assert_eq!(failures.rest(now + REST), Duration::ZERO);
    for number in 0..FAILURES {
        assert!(failures.note(&question("two", &format!("/{number}")), "/w/a".into(), None));
    }
    assert!(!failures.note(&question("two", "/w"), "/w/a".into(), None));
    assert!(failures.note(&question("two", "/0"), "/w/a".into(), None), "it is known");
}

proptest::proptest! {
    #[test]
    fn never_panics(body: Vec<u8>) {
        named(&body);
    }
}

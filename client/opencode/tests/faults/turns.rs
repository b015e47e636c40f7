//! Each spoiled turn ends for its own reason, once, with its whole text; or it does not end, and then it is the caller's
//! watchdog that must see it.

use berth_opencode::{Awaits, SessionTranslator, Translation, TurnPhase};
use berth_testkit::fake_serve::{Fault, TurnFault};
use berth_wire::turn::{TurnError, TurnErrorReason};
use futures_util::future::join_all;

use crate::rig::{Asks, Rig, Seen};

const PROMPT: &str = "@stub think:n=2 | say:one | say: two | say: three";
const TEXT: &str = "one two three";

struct Expected {
    prompt: &'static str,
    cancel: bool,
    ending: &'static str,
    text: &'static str,
}

fn plain(ending: &'static str) -> Expected {
    Expected { prompt: PROMPT, cancel: false, ending, text: TEXT }
}

fn expected(fault: TurnFault) -> Expected {
    use TurnFault as T;
    match fault {
        T::NeverStarts | T::Swallows => Expected { text: "", ..plain("none, Admitted") },
        T::RefusedLate => Expected { text: "", ..plain("Failed AgentNotFound") },
        T::NeverIdle => plain("none, Started"),
        T::StartsLate(_)
        | T::LostIdle
        | T::IdleTwice
        | T::IdleEarly
        | T::LostBusy
        | T::LateType
        | T::OutOfOrder
        | T::Doubled
        | T::LostDeltas
        | T::NoFinal
        | T::LateWords => plain("Succeeded EndTurn"),
        T::DoubledErrors => Expected { text: "", ..plain("Failed ProviderError") },
        T::LeftOpen => plain("Failed OpencodeError"),
        T::Stalls => Expected {
            prompt: "@stub say:one | say: two",
            cancel: true,
            ending: "Cancelled Cancelled",
            text: "one",
        },
        // Each call of the model says one word more; three are too many, and some come while it is aborted.
        T::Endless => Expected { text: "and and and ", ..plain("Failed ProviderStreamIncomplete") },
        T::Deaf => {
            Expected { prompt: "@stub say:one | hang", cancel: true, ending: "none, Started", text: "one" }
        }
        T::LostAsk => Expected {
            prompt: "ask:bash\n@stub tool:bash:{\"command\":\"echo x\"} >> say:one two three",
            ..plain("Succeeded EndTurn")
        },
    }
}

/// What is peculiar to some of them.
fn check_more(fault: TurnFault, seen: &Seen) {
    use TurnFault as T;
    match fault {
        T::LostAsk => assert_eq!(seen.requests, 1, "asked once, as it was listed"),
        T::LostIdle => assert!(!seen.doubted && seen.snapshots > 0, "only silence tells"),
        // On a slow machine a silence may have told of the completed message before the idle came.
        T::NoFinal => assert!(seen.doubted || seen.snapshots > 0, "only a snapshot tells of the end"),
        T::LeftOpen => assert!(seen.doubted && seen.snapshots >= 3, "three snapshots settle a doubt"),
        _ => {}
    }
}

#[tokio::test]
async fn each_spoiled_turn_ends_for_its_own_reason_or_is_seen_not_to_end() {
    let faults = Fault::all(100).filter_map(|fault| match fault {
        Fault::Turn(fault) => Some(fault),
        _ => None,
    });
    join_all(faults.map(|fault| async move {
        let rig = Rig::start().await;
        let mut session = rig.session().await;
        let (word, wanted) = (Fault::from(fault), expected(fault));
        let seen =
            session.turn(&format!("fault:{word}\n{}", wanted.prompt), Asks { cancel: wanted.cancel }).await;
        let text = seen.text.as_str();
        let whole = text == wanted.text || (fault == TurnFault::Endless && text.starts_with(wanted.text));
        assert_eq!(seen.ending(), wanted.ending, "{word}: {seen:?}");
        assert!(whole, "{word}: {text:?} instead of {:?}", wanted.text);
        assert!(seen.lost.is_empty(), "{word}: the stream was fine");
        check_more(fault, &seen);
        if seen.outcomes.is_empty() {
            give_up(fault, &mut session.translator);
        } else {
            // Nothing of it is taken for the next turn, not even what comes late.
            let after = session.turn(PROMPT, Asks::default()).await;
            assert_eq!(
                (after.ending().as_str(), after.text.as_str()),
                ("Succeeded EndTurn", TEXT),
                "after {word}: {after:?}"
            );
        }
        rig.works_again(fault).await;
    }))
    .await;
}

/// What does not end is seen by who watches, whose last word is an end like any other.
fn give_up(fault: TurnFault, translator: &mut SessionTranslator) {
    let observed = translator.observe().expect("a turn that has not ended");
    let not_begun = matches!(fault, TurnFault::NeverStarts | TurnFault::Swallows);
    assert_eq!(observed.started, !not_begun, "{fault:?}");
    assert_eq!((observed.aborting, observed.awaits), (fault == TurnFault::Deaf, Awaits::Model), "{fault:?}");
    let message = "it took too long".to_owned();
    let error = TurnError { reason: TurnErrorReason::OpencodeError, message, retry_at: None, cause: None };
    assert!(matches!(translator.fail(error)[..], [Translation::Ended(_)]));
    assert_eq!(translator.phase(), TurnPhase::Idle);
}

#[tokio::test]
async fn an_abort_before_the_start_waits_for_it() {
    let rig = Rig::start().await;
    let mut session = rig.session().await;
    // Wanted from the first event on: an abort before the start would be answered, and lost.
    let prompt = "fault:starts-late=300\n@stub say:one | hang";
    let seen = session.turn(prompt, Asks { cancel: true }).await;
    assert_eq!(seen.ending(), "Cancelled Cancelled");
    let aborts = rig.fake.requests().iter().filter(|request| request.path.ends_with("/abort")).count();
    assert_eq!(aborts, 1);
}

//! Each spoiled event stream ends in an error of its own or is borne, and no turn is lost by it.

use berth_testkit::fake_serve::{Fault, StreamFault};
use futures_util::future::join_all;

use crate::rig::{Asks, LIMIT, Rig, Seen, in_words};

const PROMPT: &str = "@stub say:one | say: two | say: three | sleep:20 | say: four";
const TEXT: &str = "one two three four";

/// How the subscription is lost, if it is.
fn expected(fault: StreamFault) -> Option<&'static str> {
    use StreamFault as S;
    match fault {
        S::Silent | S::Drip(_) => Some("StreamIdle"),
        S::HugeFrame => Some("Stream FrameTooLarge"),
        S::HalfFrame | S::Cut(_) | S::Dies(_) => Some("Stream Body"),
        S::Ends => Some("end"),
        S::BadUtf8 => Some("Stream Malformed"),
        S::HeartbeatsOnly
        | S::BadJson
        | S::NoType
        | S::BadShape
        | S::UnknownKind
        | S::Loses(_)
        | S::Dribble => None,
    }
}

fn lost(seen: &Seen) -> Option<String> {
    let first = seen.lost.first()?;
    Some(first.as_ref().map_or_else(|| "end".to_owned(), in_words))
}

/// Faults of streams, with a number for those that have one: 200 bytes for a cut, three events, 100 ms for each byte.
fn faults() -> impl Iterator<Item = StreamFault> {
    use StreamFault as S;
    Fault::all(200).filter_map(|fault| match fault {
        Fault::Stream(S::Loses(_)) => Some(S::Loses(3)),
        Fault::Stream(S::Drip(_)) => Some(S::Drip(100)),
        Fault::Stream(fault) => Some(fault),
        _ => None,
    })
}

#[tokio::test]
async fn each_spoiled_stream_is_an_error_of_its_own_or_is_borne() {
    join_all(faults().map(|fault| async move {
        let rig = Rig::start_for(expected(fault) == Some("StreamIdle")).await;
        rig.fake.spoil(fault);
        let mut events = rig.client.global_events(None).await.unwrap();
        let until = tokio::time::Instant::now() + LIMIT * 2;
        let mut end = None;
        while end.is_none() && tokio::time::Instant::now() < until {
            end = match events.next().await {
                Some(Ok(_) | Err(berth_opencode::ClientError::Event(_))) => None,
                Some(Err(error)) => Some(in_words(&error)),
                None => Some("end".to_owned()),
            };
        }
        assert_eq!(end.as_deref(), expected(fault), "{}", Fault::from(fault));
        rig.works_again(fault).await;
    }))
    .await;
}

#[tokio::test]
async fn no_turn_is_lost_by_a_spoiled_stream() {
    let faults = faults().filter(|fault| !matches!(fault, StreamFault::Dies(_)));
    join_all(faults.map(|fault| async move {
        let rig = Rig::start().await;
        let mut session = rig.session().await;
        let word = Fault::from(fault);
        let seen = session.turn(&format!("fault:{word}\n{PROMPT}"), Asks::default()).await;
        assert_eq!(
            (seen.ending().as_str(), seen.text.as_str()),
            ("Succeeded EndTurn", TEXT),
            "{word}: {seen:?}"
        );
        // Reading state may settle the turn before the fault is noticed.
        let lost = lost(&seen);
        assert!(lost.is_none() || lost.as_deref() == expected(fault), "{word}: {lost:?}");
        let after = session.turn(PROMPT, Asks::default()).await;
        assert_eq!(
            (after.ending().as_str(), after.text.as_str()),
            ("Succeeded EndTurn", TEXT),
            "after {word}"
        );
    }))
    .await;
}

/// Cuts the first stream at this byte; false when the turn ended before that.
async fn cut_at(bytes: u64) -> bool {
    let rig = Rig::start().await;
    let mut session = rig.session().await;
    rig.fake.spoil_once(StreamFault::Cut(bytes));
    let seen = session.turn(PROMPT, Asks::default()).await;
    let end = (seen.ending(), seen.text.as_str());
    assert_eq!(end, ("Succeeded EndTurn".to_owned(), TEXT), "cut at {bytes}: {seen:?}");
    !seen.lost.is_empty()
}

#[tokio::test]
async fn a_turn_survives_a_cut_of_its_stream_at_any_byte() {
    const STEP: u64 = 263;
    let mut first = 0;
    loop {
        let cuts = join_all((0..8).map(|number| cut_at(first + number * STEP))).await;
        first += 8 * STEP;
        if cuts.contains(&false) {
            break;
        }
    }
    assert!(first > 10_000, "the turn has that many bytes at least: {first}");
}

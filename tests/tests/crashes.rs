//! SIGKILL of every program, each a process of its own, at seeded points under 20 sessions: no hole and no double in any
//! log, one end for each turn, and what a succeeded turn said is what the script says.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use berth_tests::{BOUND, Cutter, Fleet, Scale, SessionLog, send, within, words};
use berth_wire::{
    api::PostMessage,
    event::Voice,
    turn::{TurnErrorReason, TurnState},
};
use nix::sys::signal::Signal;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::task::JoinSet;
use uuid::Uuid;

const SESSIONS: usize = 20;

/// A turn with a thought, text, a tool and text again.
const TURN: &str = r#"@stub think:n=5,d=10 | text:n=20,d=20 | tool:bash:{"command":"for i in 1 2 3; do echo $i; sleep 0.1; done","description":"Count"} >> text:n=30,d=20"#;

/// Who dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Server(usize),
    Sidecar,
    Supervisor,
    Opencode,
}

impl Victim {
    /// Each in turn: of the two servers at least one owns the sandbox when it is killed.
    fn of(point: u64) -> Self {
        match point % 5 {
            0 => Self::Opencode,
            1 => Self::Sidecar,
            2 => Self::Supervisor,
            3 => Self::Server(0),
            _ => Self::Server(1),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Server(_) => "server",
            Self::Sidecar => "sidecar",
            Self::Supervisor => "supervisor",
            Self::Opencode => "opencode",
        }
    }

    /// Kills it, and starts it again where nobody else does.
    async fn kill(self, fleet: &mut Fleet) {
        let program = match self {
            Self::Opencode => {
                if let Some(pid) = fleet.opencode_pid().await {
                    send(pid, Signal::SIGKILL);
                }
                return;
            }
            Self::Server(index) => &mut fleet.servers[index],
            Self::Sidecar => &mut fleet.sidecar,
            Self::Supervisor => &mut fleet.supervisor,
        };
        program.kill().await;
        program.start();
    }
}

/// A prompt for each session, sent to either server; the killed one is back soon.
async fn post_all(fleet: &Fleet, sessions: &[Uuid], point: u64) -> Vec<(Uuid, Uuid)> {
    let mut posts = JoinSet::new();
    for (index, &session) in sessions.iter().enumerate() {
        let client = fleet.client(index % 2);
        posts.spawn(async move {
            let key = format!("point-{point}");
            let turn = client.post_message(session, &PostMessage::text(TURN), &key).await;
            (session, turn.expect("the prompt is taken").id)
        });
    }
    posts.join_all().await
}

/// What of a turn may come to its end after a kill, and what it said then.
fn check_end(log: &SessionLog, turn: Uuid, victim: Victim, said: &str) -> TurnState {
    let (outcome, text) = (log.outcome(turn), log.text(turn, Voice::Message));
    if outcome.state == TurnState::Succeeded {
        assert_eq!(text, said, "{victim:?}");
        return outcome.state;
    }
    assert_eq!(outcome.state, TurnState::Failed, "{victim:?}: {outcome:?}");
    let reason = outcome.error.as_ref().map(|error| error.reason);
    assert_eq!(reason, Some(TurnErrorReason::OpencodeExited), "{victim:?}: {outcome:?}");
    assert!(said.starts_with(&text), "{victim:?}: {text:?}");
    let of_opencode = matches!(victim, Victim::Opencode | Victim::Supervisor);
    assert!(of_opencode, "{victim:?} must not cost a turn: {outcome:?}");
    outcome.state
}

#[tokio::test]
async fn killed_programs_leave_no_hole_no_double_and_one_end_for_each_turn() {
    let scale = Scale::current();
    let points = scale.pick(10, 200);
    let mut fleet = Fleet::start(2).await;
    fleet.servers[1].start();
    fleet.serves(1).await;
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(fleet.session(0).await);
    }
    let said = words(20) + &words(30);
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for point in 0..points {
        let (victim, mut random) = (Victim::of(point), StdRng::seed_from_u64(point));
        let began = Instant::now();
        let turns = post_all(&fleet, &sessions, point).await;
        tokio::time::sleep(Duration::from_millis(random.random_range(0..4_000))).await;
        victim.kill(&mut fleet).await;
        let mut logs = JoinSet::new();
        for (index, (session, turn)) in turns.into_iter().enumerate() {
            let client = fleet.client(index % 2);
            logs.spawn(async move { (turn, SessionLog::until_end(&client, session, turn).await) });
        }
        while let Some(read) = logs.join_next().await {
            let (turn, log) = read.expect("the log is read");
            log.check();
            let state = check_end(&log, turn, victim, &said);
            *counts.entry(format!("{} {state:?}", victim.name())).or_default() += 1;
        }
        assert!(began.elapsed() < BOUND * 2, "point {point} took {:?}", began.elapsed());
        println!("point {point}, {victim:?}: {:?}", began.elapsed());
    }
    println!("{counts:?}");
    let counts: Vec<(&str, u64)> = counts.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    scale.report("killed_programs_leave_no_hole_no_double_and_one_end_for_each_turn", points, &counts);
    fleet.stop().await;
}

/// The server dies when opencode has made a session for it and the answer is on its way: nothing of it is written. The one
/// that comes after it uses that session, and makes no second one.
#[tokio::test]
async fn a_session_that_was_made_before_the_server_was_killed_is_found_and_used() {
    let mut fleet = Fleet::start(1).await;
    let keeper = Cutter::keeping_back(fleet.door(), "POST /session?").await;
    fleet.servers[0].terminate().await;
    fleet.reach_door_at(keeper.address());
    fleet.servers[0].start();
    fleet.serves(0).await;
    let (client, session) = (fleet.client(0), fleet.session(0).await);
    let turn = client.post_message(session, &PostMessage::text("@stub say:hello"), "one").await;
    let turn = turn.expect("the prompt is taken").id;
    within("opencode's session", keeper.held()).await;
    fleet.servers[0].kill().await;

    let (opencode, directory) = (fleet.opencode(), fleet.work.to_str().expect("a plain path").to_owned());
    let of_ours = async || {
        let listed = opencode.list_sessions(&directory).await.expect("they are listed");
        let ours = listed.into_iter().filter(|one| one.berth_session_id() == Some(session));
        ours.map(|one| one.id).collect::<Vec<_>>()
    };
    let made = of_ours().await;
    assert_eq!(made.len(), 1, "it was made");
    fleet.reach_door_at(fleet.door());
    fleet.servers[0].start();
    fleet.serves(0).await;
    let log = SessionLog::until_end(&client, session, turn).await;
    log.check();
    assert_eq!(log.text(turn, Voice::Message), "hello", "{:?}", log.outcome(turn));
    assert_eq!(of_ours().await, made, "no second one");
    let known = client.get_session(session).await.expect("it is there").opencode_session_id;
    assert_eq!(known.as_ref(), made.first());
    fleet.stop().await;
}

//! A real opencode: how it ends, what it leaves, and what of the environment it sees.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use berth_serve::{ServePhase, ServeState, Supervisor};
use berth_testkit::Scale;
use berth_wire::door::ExitCause;
use nix::sys::signal::Signal;

use crate::{
    program::{Place, Program, signal},
    rig::{self, START, until, within},
};

#[tokio::test]
async fn each_death_of_a_real_opencode_has_one_cause_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = rig::real(&directory);
    config.timings.health_every = Duration::from_millis(200);
    config.timings.health = Duration::from_secs(2);
    config.timings.grace = Duration::from_millis(500);
    config.timings.backoff_first = Duration::from_millis(100);
    config.timings.backoff_longest = Duration::from_millis(100);
    let work = config.directory.clone();
    let supervisor = Supervisor::start(config).await.unwrap();
    let mut state = supervisor.ready(START).await.unwrap();
    for (sent, cause) in [
        (Signal::SIGKILL, ExitCause::Killed),
        (Signal::SIGSTOP, ExitCause::Wedged),
        (Signal::SIGTERM, ExitCause::Killed),
    ] {
        rig::shell(state.address.unwrap(), "setsid sleep 600 >/dev/null 2>&1 & echo started").await;
        until("tool", || rig::processes_in(&work).iter().any(|line| line.starts_with("sleep 600"))).await;
        let boot = state.boot;
        signal(state.pid.unwrap(), sent);
        let mut followed = supervisor.watch();
        let next = followed.wait_for(|state| state.boot == boot + 1 && state.phase == ServePhase::Ready);
        state = tokio::time::timeout(START, next).await.expect("a restart").unwrap().clone();
        let exits: Vec<_> = state.exits.iter().filter(|exit| exit.boot == boot).collect();
        assert_eq!(exits.iter().map(|exit| exit.cause).collect::<Vec<_>>(), [cause], "{exits:?}");
        let tools = rig::processes_in(&work);
        assert!(!tools.iter().any(|line| line.starts_with("sleep 600")), "{tools:?}");
    }
    assert_eq!(state.exits.len(), 3);
    supervisor.stop().await;
    assert_eq!(rig::processes_in(&work), Vec::<String>::new());
}

#[tokio::test]
async fn a_tool_sees_the_containers_environment_and_nothing_of_ours() {
    let mut place = Place::with_opencode();
    let variables = [
        ("THE_AGENTS_OWN", "seen"),
        ("APP_PORT", "8080"),
        ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
        ("REDIS_PORT", "tcp://10.0.0.2:6379"),
        ("REDIS_PORT_6379_TCP_ADDR", "10.0.0.2"),
        ("BERTH_SUPERVISOR_LOG_LEVEL", "info"),
        ("BERTH_SECRET", "secret"),
    ];
    place.environment.extend(variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let program = place.start();
    let address = program.ready().await.address.unwrap();
    let printed = rig::shell(address, "env; echo -n x").await;
    let names: Vec<&str> = printed.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert!(names.contains(&"THE_AGENTS_OWN") && names.contains(&"APP_PORT"), "{names:?}");
    let berths: Vec<_> = names.iter().filter(|name| name.starts_with("BERTH_")).collect();
    assert!(
        berths.iter().all(|name| name.starts_with("BERTH_SERVE_")),
        "only the marks of the run: {berths:?}"
    );
    let others: Vec<_> =
        names.iter().filter(|name| name.starts_with("KUBERNETES_") || name.starts_with("REDIS_")).collect();
    assert_eq!(others, Vec::<&&str>::new());
    assert_eq!(program.stop().await, Some(0));
    assert_eq!(rig::processes_in(&place.work()), Vec::<String>::new());
}

/// Libraries below a folder that opencode's runtime has unpacked.
fn libraries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = entries.flat_map(|path| if path.is_dir() { libraries(&path) } else { vec![path] });
    files.filter(|file| file.extension().is_some_and(|kind| kind == "so" || kind == "node")).collect()
}

/// Lets a run of opencode unpack, in its own directory and nowhere else; a tool leaves a file in the temporary one.
async fn unpack(place: &Place, program: &Program, state: &ServeState) {
    let command = format!("echo $TMPDIR; touch \"$TMPDIR/{}\"", state.boot_id);
    let printed = rig::shell(state.address.unwrap(), &command).await;
    assert_eq!(Path::new(printed.trim()), place.path("temporary"), "a tool's own is the container's");
    rig::find_file(state.address.unwrap()).await;
    let unpacked = place.path("data/unpacked");
    until("unpacked libraries", || !libraries(&unpacked.join(&state.boot_id)).is_empty()).await;
    assert_eq!(fs::read_dir(&unpacked).unwrap().count(), 1, "those of earlier runs are gone");
    assert_eq!(program.link.state().borrow().boot_id, state.boot_id);
}

#[tokio::test]
async fn what_opencode_unpacks_goes_with_each_run_and_what_tools_left_stays() {
    let kills = Scale::current().pick(3, 30);
    let mut place = Place::with_opencode();
    let temporary = place.path("temporary");
    fs::create_dir(&temporary).unwrap();
    place.environment.push(("TMPDIR".to_owned(), temporary.to_str().unwrap().to_owned()));
    let mut runs = 0;
    let mut program = place.start();
    for kill in 0..kills {
        let state = program.ready().await;
        unpack(&place, &program, &state).await;
        runs += 1;
        if kill % 3 == 1 {
            within("end by SIGKILL", program.child.kill()).await.unwrap();
            until("end of opencode", || rig::processes_in(&place.work()).is_empty()).await;
            assert_ne!(libraries(&place.path("data/unpacked")), Vec::<PathBuf>::new(), "nobody could");
            program = place.start();
        } else {
            let sent = if kill % 3 == 0 { Signal::SIGKILL } else { Signal::SIGTERM };
            signal(state.pid.unwrap(), sent);
            program.until("restart", |next| next.boot == state.boot + 1).await;
        }
    }
    let state = program.ready().await;
    unpack(&place, &program, &state).await;
    assert_eq!(program.stop().await, Some(0));
    assert!(!place.path("data/unpacked").exists());
    assert_eq!(libraries(place.directory.path()), Vec::<PathBuf>::new(), "after {kills} kills");
    let of_tools = fs::read_dir(&temporary).unwrap().flatten().filter(|entry| entry.path().is_file()).count();
    assert_eq!(of_tools, runs + 1, "a tool's files are its own");
}

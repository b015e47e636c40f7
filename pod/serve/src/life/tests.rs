//! Lives that are told in a few steps each, with a clock of the test's own.

use proptest::prelude::*;

use super::*;

struct Told {
    life: Life,
    now: Instant,
    boots: u32,
}

impl Told {
    fn begin() -> Self {
        let (life, effects) = Life::begin(Timings::default());
        assert_eq!(effects, [Effect::Ask]);
        Self { life, now: Instant::now(), boots: 0 }
    }

    fn after(&mut self, seconds: u64) -> &mut Self {
        self.now += Duration::from_secs(seconds);
        self
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        self.life.step(self.now, input)
    }

    /// Lets time pass until something is due.
    fn tick(&mut self) -> Vec<Effect> {
        self.now = self.now.max(self.life.deadline().expect("something is due"));
        self.step(Input::Tick)
    }

    /// From the question whether it may start to an answering opencode.
    fn ready(&mut self) -> String {
        assert_eq!(self.step(Input::Allowed), [Effect::Spawn]);
        self.boots += 1;
        let boot_id = format!("run{}", self.boots);
        assert_eq!(self.step(Input::Spawned { boot_id: boot_id.clone() }), []);
        assert_eq!(self.step(Input::Answered), []);
        assert_eq!(self.life.phase(), ServePhase::Ready);
        boot_id
    }

    fn dies(&mut self, signal: Option<i32>, out_of_memory: bool) -> Vec<Effect> {
        self.step(Input::Exited(Death { signal, out_of_memory }))
    }
}

fn record(cause: ExitCause) -> Effect {
    Effect::Record { cause, failure: None }
}

fn restart(boot_id: &str, cause: RestartCause) -> Input {
    Input::Command(ServeCommand::Restart { boot_id: boot_id.to_owned(), cause })
}

#[test]
fn pauses_double_to_a_bound_and_start_anew_after_a_stable_run() {
    let mut backoff = Backoff::new(&Timings::default());
    let mut pauses = |healthy: &[u64]| -> Vec<u64> {
        healthy.iter().map(|secs| backoff.pause(Duration::from_secs(*secs)).as_secs()).collect()
    };
    assert_eq!(pauses(&[0, 5, 59, 0, 0, 0, 0]), [1, 2, 4, 8, 16, 30, 30]);
    assert_eq!(pauses(&[60, 0, 3600]), [1, 2, 1]);
}

#[test]
fn each_end_has_its_cause() {
    for (signal, out_of_memory, cause) in [
        (None, false, ExitCause::Exited),
        (None, true, ExitCause::Exited),
        (Some(9), false, ExitCause::Killed),
        (Some(9), true, ExitCause::OutOfMemory),
        (Some(11), true, ExitCause::Killed),
    ] {
        let mut told = Told::begin();
        told.ready();
        assert_eq!(told.dies(signal, out_of_memory), [record(cause)], "{signal:?} {out_of_memory}");
        assert_eq!(told.life.phase(), ServePhase::Starting);
        assert_eq!(told.tick(), [Effect::Ask]);
    }
}

#[test]
fn three_misses_in_a_row_are_a_wedge_until_the_next_start() {
    let mut told = Told::begin();
    told.ready();
    for answered in [false, false, true, false, false] {
        assert_eq!(told.tick(), [Effect::Check]);
        assert_eq!(told.life.deadline(), None, "one check at a time");
        assert_eq!(told.after(10).step(Input::Health(answered)), []);
        assert_eq!(told.life.deadline(), Some(told.now), "a slow check delays none");
    }
    assert_eq!(told.tick(), [Effect::Check]);
    assert_eq!(told.step(Input::Health(false)), [Effect::Terminate]);
    assert_eq!(told.life.phase(), ServePhase::Wedged);
    let begun = told.now;
    assert_eq!(told.tick(), [Effect::Kill]);
    assert_eq!(told.now - begun, Duration::from_secs(5));
    assert_eq!(told.dies(Some(9), false), [record(ExitCause::Wedged)]);
    assert_eq!(told.life.phase(), ServePhase::Wedged);
    assert_eq!(told.tick(), [Effect::Ask]);
    assert_eq!(told.life.phase(), ServePhase::Wedged);
    told.ready();
}

#[test]
fn quick_checks_keep_their_pace() {
    let mut told = Told::begin();
    told.ready();
    assert_eq!(told.tick(), [Effect::Check]);
    let begun = told.now;
    told.after(1).step(Input::Health(true));
    assert_eq!(told.tick(), [Effect::Check]);
    assert_eq!(told.now - begun, Duration::from_secs(5));
}

#[test]
fn one_that_thrashes_and_is_killed_for_memory_is_out_of_memory() {
    let mut told = Told::begin();
    told.ready();
    for _ in 0..3 {
        told.tick();
        told.step(Input::Health(false));
    }
    assert_eq!(told.dies(Some(9), true), [record(ExitCause::OutOfMemory)]);
}

#[test]
fn a_start_fails_by_its_end_its_silence_or_its_version() {
    let mut told = Told::begin();
    told.step(Input::Allowed);
    assert_eq!(told.step(Input::SpawnFailed), [record(ExitCause::StartFailed)]);
    told.tick();
    told.step(Input::Allowed);
    told.step(Input::Spawned { boot_id: "2".to_owned() });
    assert_eq!(told.dies(None, false), [record(ExitCause::StartFailed)]);
    told.tick();
    told.step(Input::Allowed);
    told.step(Input::Spawned { boot_id: "3".to_owned() });
    assert_eq!(told.tick(), [Effect::Terminate]);
    let failure = Some(NotReady::Timeout(Duration::from_mins(1)));
    assert_eq!(told.dies(Some(15), false), [Effect::Record { cause: ExitCause::StartFailed, failure }]);
    told.tick();
    told.step(Input::Allowed);
    told.step(Input::Spawned { boot_id: "4".to_owned() });
    assert_eq!(told.step(Input::Unsupported("version 2".to_owned())), [Effect::Terminate]);
    let failure = Some(NotReady::Unsupported("version 2".to_owned()));
    assert_eq!(told.dies(Some(15), false), [Effect::Record { cause: ExitCause::StartFailed, failure }]);
}

#[test]
fn a_restart_is_of_the_run_that_is_meant_and_has_no_pause() {
    for (wanted, cause) in [
        (RestartCause::Memory, ExitCause::Recycled),
        (RestartCause::NeverStarted, ExitCause::NeverStarted),
        (RestartCause::Configuration, ExitCause::Reconfigured),
    ] {
        let mut told = Told::begin();
        let boot_id = told.ready();
        assert_eq!(told.step(restart("another", wanted)), []);
        assert_eq!(told.step(restart(&boot_id, wanted)), [Effect::Terminate]);
        assert_eq!(told.life.phase(), ServePhase::Starting);
        assert_eq!(told.step(restart(&boot_id, wanted)), [], "it is under way");
        assert_eq!(told.dies(Some(15), false), [record(cause), Effect::Ask]);
        told.ready();
        assert_eq!(told.step(restart(&boot_id, wanted)), [], "that run is over");
    }
}

#[test]
fn a_stop_lasts_until_a_start() {
    let mut told = Told::begin();
    told.ready();
    assert_eq!(told.step(Input::Command(ServeCommand::Stop)), [Effect::Terminate]);
    assert_eq!(told.life.phase(), ServePhase::Stopped);
    assert_eq!(told.dies(Some(15), false), [record(ExitCause::Stopped)]);
    assert_eq!((told.life.phase(), told.life.deadline()), (ServePhase::Stopped, None));
    assert!(!told.life.is_over());
    assert_eq!(told.step(Input::Command(ServeCommand::Stop)), []);
    assert_eq!(told.step(Input::Command(ServeCommand::Start)), [Effect::Ask]);
    told.ready();
    told.step(Input::Command(ServeCommand::Stop));
    assert_eq!(told.step(Input::Command(ServeCommand::Start)), [], "it ends first");
    assert_eq!(told.life.phase(), ServePhase::Starting);
    assert_eq!(told.dies(Some(15), false), [record(ExitCause::Stopped), Effect::Ask]);
}

#[test]
fn commands_act_at_once_in_a_pause() {
    let mut told = Told::begin();
    told.ready();
    told.dies(Some(9), false);
    assert_eq!(told.step(Input::Command(ServeCommand::Start)), [Effect::Ask]);
    told.ready();
    told.dies(Some(9), false);
    assert_eq!(told.step(Input::Command(ServeCommand::Stop)), []);
    assert_eq!((told.life.phase(), told.life.deadline()), (ServePhase::Stopped, None));
}

#[test]
fn a_stop_while_it_may_not_start_yet_holds() {
    let mut told = Told::begin();
    told.step(Input::Command(ServeCommand::Stop));
    assert_eq!(told.step(Input::Allowed), [], "the answer comes late");
    assert_eq!(told.step(Input::Command(ServeCommand::Start)), [Effect::Ask]);
    assert_eq!(told.step(Input::Allowed), [Effect::Spawn]);
}

#[test]
fn nothing_is_started_beside_one_that_hangs_in_the_kernel_but_a_shutdown_goes_on() {
    let mut told = Told::begin();
    let boot_id = told.ready();
    told.step(restart(&boot_id, RestartCause::Memory));
    assert_eq!(told.tick(), [Effect::Kill]);
    assert_eq!(told.tick(), [Effect::Hangs]);
    assert_eq!(told.life.deadline(), None);
    assert_eq!(told.step(Input::Shutdown), [record(ExitCause::Recycled)]);
    assert!(told.life.is_over());
}

#[derive(Debug, Clone)]
enum Move {
    Input(Input),
    Tick,
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        Just(Move::Tick),
        Just(Move::Input(Input::Answered)),
        any::<bool>().prop_map(|answered| Move::Input(Input::Health(answered))),
        (prop_oneof![Just(None), Just(Some(9)), Just(Some(15))], any::<bool>())
            .prop_map(|(signal, out_of_memory)| Move::Input(Input::Exited(Death { signal, out_of_memory }))),
        Just(Move::Input(Input::Command(ServeCommand::Stop))),
        Just(Move::Input(Input::Command(ServeCommand::Start))),
        (0..4_u32).prop_map(|boot| Move::Input(restart(&format!("run{boot}"), RestartCause::Memory))),
        Just(Move::Input(Input::Unsupported("x".to_owned()))),
    ]
}

proptest! {
    /// Whatever happens: one process at a time, each end recorded once, nothing signalled that is not there, and a
    /// shutdown ends it.
    #[test]
    fn one_process_at_a_time_and_each_end_once(moves in proptest::collection::vec(moves(), 0..80)) {
        let (mut life, first) = Life::begin(Timings::default());
        let (mut now, mut alive, mut spawned, mut recorded) = (Instant::now(), false, 0_u32, 0_u32);
        let mut effects = first;
        let mut moves = moves.into_iter();
        let mut shut = false;
        loop {
            for effect in std::mem::take(&mut effects) {
                match effect {
                    Effect::Ask => effects.extend(life.step(now, Input::Allowed)),
                    Effect::Spawn => {
                        prop_assert!(!alive);
                        (alive, spawned) = (true, spawned + 1);
                        effects.extend(life.step(now, Input::Spawned { boot_id: format!("run{spawned}") }));
                    }
                    Effect::Terminate | Effect::Kill | Effect::Hangs => prop_assert!(alive),
                    Effect::Check => {}
                    Effect::Record { .. } => {
                        recorded += 1;
                        alive = false;
                    }
                }
            }
            if !effects.is_empty() {
                continue;
            }
            prop_assert_eq!(recorded + u32::from(alive), spawned);
            let input = match moves.next() {
                Some(Move::Input(Input::Exited(_))) if !alive => continue,
                Some(Move::Input(input)) => input,
                Some(Move::Tick) => {
                    now = now.max(life.deadline().unwrap_or(now));
                    Input::Tick
                }
                None if !shut => {
                    shut = true;
                    Input::Shutdown
                }
                None if alive => Input::Exited(Death { signal: Some(9), out_of_memory: false }),
                None => break,
            };
            alive &= !matches!(input, Input::Exited(_));
            effects = life.step(now, input);
        }
        prop_assert!(life.is_over() && life.deadline().is_none());
        prop_assert_eq!(life.phase(), ServePhase::Stopped);
        prop_assert_eq!(recorded, spawned);
    }
}

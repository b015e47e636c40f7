//! Runs test programs, a few at a time, since most of them mostly wait. The output of each is shown whole.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{BufRead, BufReader, PipeReader, Write},
    process::{Child, Command},
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;

use super::{programs::Program, tally::Tally};
use crate::process::pause;

/// Between two looks at a program.
const TICK: Duration = Duration::from_millis(20);

/// How programs are run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    /// How many at a time. The output of the only one is shown as it comes.
    pub(crate) at_a_time: usize,
    /// How long one may take before it is killed.
    pub(crate) takes_at_most: Duration,
    /// How long the output may stay open after a program has ended.
    pub(crate) output_closes_within: Duration,
}

/// Seconds that programs took, by name.
pub(crate) type Times = BTreeMap<String, f64>;

/// Runs all of them, and gives what they said, and how long each took. `command` makes the command of one; what they
/// say goes to `out` too.
pub(crate) fn run(
    programs: Vec<Program>,
    way: Way,
    command: impl Fn(&Program) -> Command + Sync,
    out: impl Write + Send,
) -> (Tally, Times) {
    let out = Mutex::new(out);
    let show = |line: &[u8]| show(&mut *lock(&out), line);
    let waiting = Mutex::new(VecDeque::from(programs));
    let done = Mutex::new((Tally::default(), Times::new(), true));
    let work = || {
        loop {
            let Some(program) = lock(&waiting).pop_front() else { return };
            let began = Instant::now();
            let is_live = way.at_a_time == 1;
            let ran = watch(&program, command(&program), way, |line| {
                if is_live {
                    show(line);
                }
            });
            let took = began.elapsed().as_secs_f64();
            // While it is held, nobody else prints.
            let mut done = lock(&done);
            let (tally, times, all_succeeded) = &mut *done;
            tally.add_line(&program.notice);
            ran.lines.iter().for_each(|line| tally.add_line(String::from_utf8_lossy(line).trim_end()));
            ran.failures.into_iter().for_each(|failure| tally.fail(failure));
            *all_succeeded &= ran.is_success;
            if !is_live {
                show(program.notice.as_bytes());
                ran.lines.iter().for_each(|line| show(line));
            }
            eprintln!("{} took {took:.1} s", program.name);
            times.insert(program.name, took);
        }
    };
    thread::scope(|scope| {
        for _ in 0..way.at_a_time {
            scope.spawn(work);
        }
    });
    let (mut tally, times, all_succeeded) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    tally.close(all_succeeded);
    (tally, times)
}

/// Those that took longest before are first, so that none of them is left at the end; what is new comes before all.
pub(crate) fn sort(programs: &mut [Program], times: &Times) {
    let time = |program: &Program| times.get(&program.name).copied().unwrap_or(f64::INFINITY);
    programs.sort_by(|one, other| time(other).total_cmp(&time(one)));
}

/// What came of a program.
#[derive(Debug, Default)]
struct Ran {
    lines: Vec<Vec<u8>>,
    is_success: bool,
    /// What it did not say itself.
    failures: Vec<String>,
}

fn watch(program: &Program, command: Command, way: Way, said: impl Fn(&[u8])) -> Ran {
    said(program.notice.as_bytes());
    match start(command) {
        Ok((child, output)) => follow(&program.name, child, &output, way, said),
        Err(error) => {
            let failures = vec![format!("{} does not start: {error:#}", program.name)];
            Ran { failures, ..Ran::default() }
        }
    }
}

/// Starts it with both of its outputs in one, so that lines stay in their order.
fn start(mut command: Command) -> anyhow::Result<(Child, mpsc::Receiver<Vec<u8>>)> {
    let (reader, writer) = std::io::pipe().context("a pipe")?;
    command.stdout(writer.try_clone().context("a pipe")?).stderr(writer);
    let child = command.spawn()?;
    // The command has the ends that are written to: with them here, the output would never end.
    drop(command);
    let (lines, received) = mpsc::channel();
    thread::spawn(move || read_lines(reader, &lines));
    Ok((child, received))
}

/// Ends with its input, which nobody waits for without a bound.
fn read_lines(from: PipeReader, lines: &mpsc::Sender<Vec<u8>>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        if lines.send(std::mem::take(&mut line)).is_err() {
            return;
        }
    }
}

fn follow(
    name: &str,
    mut child: Child,
    output: &mpsc::Receiver<Vec<u8>>,
    way: Way,
    said: impl Fn(&[u8]),
) -> Ran {
    let mut ran = Ran::default();
    let began = Instant::now();
    let mut ended = None;
    let mut is_open = true;
    while is_open || ended.is_none() {
        match output.recv_timeout(TICK) {
            Ok(line) => {
                said(&line);
                ran.lines.push(line);
                // What it said before is taken in first, unless it never stops.
                if began.elapsed() < way.takes_at_most {
                    continue;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                is_open = false;
                pause(TICK);
            }
        }
        match (ended, child.try_wait()) {
            (Some(at), _) if Instant::elapsed(&at) > way.output_closes_within => {
                ran.failures.push(format!("a process that outlived {name} holds its output open"));
                break;
            }
            (None, Ok(Some(status))) => {
                ran.is_success = status.success();
                ended = Some(Instant::now());
            }
            (None, Ok(None)) if began.elapsed() > way.takes_at_most => {
                let bound = way.takes_at_most.as_secs();
                ran.failures.push(format!("{name} was killed, since it took longer than {bound} s"));
                // It has ended by itself at this very moment, or ends now.
                let _ = child.kill();
                let _ = child.wait();
                ended = Some(Instant::now());
            }
            (None, Err(error)) => {
                ran.failures.push(format!("{name}: {error}"));
                break;
            }
            _ => {}
        }
    }
    ran
}

/// Prints a line. A closed terminal must not end the count.
fn show(out: &mut impl Write, line: &[u8]) {
    let end: &[u8] = if line.ends_with(b"\n") { b"" } else { b"\n" };
    let _ = out.write_all(line).and_then(|()| out.write_all(end)).and_then(|()| out.flush());
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::programs::script;

    const RESULT: &str = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'";

    fn way(at_a_time: usize) -> Way {
        let long = Duration::from_mins(1);
        Way { at_a_time, takes_at_most: long, output_closes_within: long }
    }

    fn run_scripts(scripts: &[(&str, &str)], way: Way) -> (Tally, Times) {
        show_scripts(scripts, way, &mut Vec::new())
    }

    fn show_scripts(scripts: &[(&str, &str)], way: Way, out: &mut Vec<u8>) -> (Tally, Times) {
        let programs = scripts.iter().map(|(name, text)| script(name, text)).collect();
        let command = |program: &Program| {
            let workspace = crate::workspace::Workspace::find().unwrap();
            program.command(&workspace)
        };
        run(programs, way, command, out)
    }

    #[test]
    fn results_of_all_programs_are_added_up() {
        for at_a_time in [1, 2, 5] {
            let (tally, times) = run_scripts(&[("a", RESULT), ("b", RESULT), ("c", RESULT)], way(at_a_time));
            assert_eq!(tally.to_string(), "6 passed, 0 failed");
            assert_eq!(times.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        }
    }

    #[test]
    fn the_output_of_each_is_shown_whole_and_in_its_order() {
        let say = |name: &str| {
            format!("for n in 1 2 3; do echo {name} $n; echo {name} $n, loud >&2; done; {RESULT}")
        };
        let said = |name: &str| {
            let lines = [1, 2, 3].map(|n| format!("{name} {n}\n{name} {n}, loud\n")).concat();
            format!("     Running {name} (sh)\n{lines}test result: ok. 2 passed; 0 failed; 0 ignored\n")
        };
        for at_a_time in [1, 2] {
            let mut out = Vec::new();
            show_scripts(&[("a", &say("a")), ("b", &say("b"))], way(at_a_time), &mut out);
            let out = String::from_utf8(out).unwrap();
            assert!([said("a") + &said("b"), said("b") + &said("a")].contains(&out), "{out}");
        }
    }

    #[test]
    fn two_run_at_the_same_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display();
        // Each waits for the other.
        let meet = |own: &str, other: &str| {
            format!("touch {path}/{own}; while [ ! -e {path}/{other} ]; do sleep 0.01; done; {RESULT}")
        };
        let (tally, _) = run_scripts(&[("a", &meet("a", "b")), ("b", &meet("b", "a"))], way(2));
        assert_eq!(tally.to_string(), "4 passed, 0 failed");
    }

    #[test]
    fn a_program_that_fails_or_dies_or_is_not_there_is_a_failure() {
        let (tally, _) = run_scripts(&[("a", RESULT), ("b", "kill -9 $$")], way(2));
        assert_eq!(tally.to_string(), "2 passed, 1 failed");
        let (tally, _) = run_scripts(&[("a", &format!("{RESULT}; exit 1"))], way(2));
        assert_eq!(tally.to_string(), "2 passed, 1 failed");
        let (tally, _) = run(vec![script("a", "")], way(2), |_| Command::new("/no/such/program"), Vec::new());
        assert!(!tally.is_success() && tally.failures[0].starts_with("a does not start: "));
    }

    #[test]
    fn what_outlives_a_program_or_never_ends_is_told() {
        let short = Way { output_closes_within: Duration::from_millis(500), ..way(2) };
        let (tally, _) = run_scripts(&[("a", &format!("sleep 5 & {RESULT}"))], short);
        assert_eq!(tally.failures, ["a process that outlived a holds its output open"]);
        assert_eq!(tally.to_string(), "2 passed, 1 failed");
        let short = Way { takes_at_most: Duration::from_millis(50), ..way(2) };
        let (tally, _) = run_scripts(&[("a", "exec sleep 60")], short);
        assert_eq!(tally.failures[0], "a was killed, since it took longer than 0 s");
        assert!(!tally.is_success());
    }

    #[test]
    fn the_longest_is_first_and_the_unknown_before_it() {
        let mut programs = ["short", "long", "new"].map(|name| script(name, "")).to_vec();
        let times = [("short", 1.0), ("long", 100.0)].map(|(name, time)| (name.to_owned(), time));
        sort(&mut programs, &Times::from(times));
        let names: Vec<&str> = programs.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["new", "long", "short"]);
    }
}

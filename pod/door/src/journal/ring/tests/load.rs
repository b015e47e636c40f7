//! What the journal holds at the loads that were measured on opencode 1.18.33, in virtual time.

use super::*;

/// The default of [`crate::DoorConfig::ring_bytes`].
const LIMIT: usize = 32 << 20;

/// How far back a cursor must reach.
const PROMISED: Duration = Duration::from_mins(1);

/// Virtual time in steps of 20 ms.
const STEP: Duration = Duration::from_millis(20);

/// A session that streams text, 50 deltas a second, in frames as large as opencode's.
fn delta(session: usize) -> Frame {
    let id = format!("{session:026}");
    let text = format!(
        r#"{{"directory":"/workspace/sessions/ses_{id}","project":"{id}00112233445566","payload":{{"id":"evt_{id}","type":"message.part.delta","properties":{{"sessionID":"ses_{id}","messageID":"msg_{id}","partID":"prt_{id}","field":"text","delta":"words of "}}}}}}"#
    );
    Frame::parse(text).unwrap().unwrap()
}

/// As [`super::tool`], for large outputs and many of them.
fn tool(part: &str, status: &str, output: &str) -> Frame {
    let text = format!(
        r#"{{"directory":"/workspace/repo","payload":{{"type":"message.part.updated","properties":{{"part":{{"id":"{part}","sessionID":"ses_{part}","type":"tool","state":{{"status":"{status}","metadata":{{"output":"{output}"}}}}}}}}}}}}"#
    );
    Frame::parse(text).unwrap().unwrap()
}

/// A command that prints: each half second the whole output so far, up to 50 KB; twice that where it is completed.
struct Command {
    session: usize,
    /// Steps between two commands of the session.
    every: u32,
    growth: usize,
}

impl Command {
    fn step(&self, step: u32, ring: &mut Ring, at: Instant, text: &str) -> usize {
        let (nth, within) = (step / self.every, step % self.every);
        if within % 25 != 0 {
            return 0;
        }
        let part = format!("prt_{}_{nth}", self.session);
        let output = |size: usize| &text[..size];
        let size = (self.growth * within as usize / 25).min(50_000);
        let updates = match within {
            0 => vec![tool(&part, "pending", ""), tool(&part, "running", "")],
            _ if within + 25 >= self.every => vec![tool(&part, "completed", output(2 * size))],
            _ => vec![tool(&part, "running", output(size))],
        };
        let bytes = size * updates.len();
        for update in updates {
            ring.append(update, at);
        }
        bytes
    }
}

struct Seen {
    appended: usize,
    held: usize,
    /// Bytes that went through, about.
    bytes: usize,
}

/// Some time of a load; from the first minute on, each second, a cursor of a minute ago must be honoured.
fn run(limit: usize, commands: &[Command], streams: usize) -> Seen {
    let mut ring = Ring::new(limit, "e");
    let (begin, text) = (Instant::now(), "x".repeat(100_000));
    let seconds = berth_testkit::Scale::current().pick(70, 300);
    let (mut cursors, mut bytes) = (Vec::new(), 0);
    for step in 0..seconds * 50 {
        let at = begin + STEP * step;
        for session in 0..streams {
            let frame = delta(session);
            bytes += 370;
            ring.append(frame, at);
        }
        bytes += commands.iter().map(|command| command.step(step, &mut ring, at, &text)).sum::<usize>();
        if step % 50 == 0 {
            cursors.push(ring.current().to_string());
            let minute_ago = (cursors.len() - 1).checked_sub(60).map(|index| &cursors[index]);
            if let Some(cursor) = minute_ago {
                assert_eq!(ring.start(Some(cursor)).resync, None, "{} s after the beginning", step / 50);
            }
        }
    }
    let end = begin + STEP * (seconds * 50);
    assert!(end - ring.oldest().unwrap().at >= PROMISED);
    Seen { appended: usize::try_from(ring.last()).unwrap(), held: ring.bytes(), bytes }
}

fn report(name: &str, seen: &Seen) {
    berth_testkit::Scale::current().report(
        name,
        1,
        &[("events", seen.appended as u64), ("held_bytes", seen.held as u64), ("bytes", seen.bytes as u64)],
    );
}

#[test]
fn one_chatty_command_and_twenty_streams_for_a_minute() {
    let seen = run(LIMIT, &[Command { session: 0, every: 60 * 50, growth: 1_000 }], 20);
    report("one_chatty_command_and_twenty_streams_for_a_minute", &seen);
    assert!(seen.appended > 70_000 && seen.bytes > 26_000_000, "{} {}", seen.appended, seen.bytes);
}

#[test]
fn twenty_chatty_commands_one_after_the_other_in_each_session() {
    // A quick run has less of everything.
    let divisor = berth_testkit::Scale::current().pick(4, 1);
    let command = |session| Command { session, every: 18 * 50, growth: 2_500 / divisor };
    let seen = run(LIMIT / divisor, &(0..20).map(command).collect::<Vec<_>>(), 0);
    report("twenty_chatty_commands_one_after_the_other_in_each_session", &seen);
    assert!(seen.bytes > 50_000_000 / divisor, "{}", seen.bytes);
}

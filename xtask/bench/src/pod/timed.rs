//! A turn with a clock beside it, whoever runs it.

use std::time::Instant;

use anyhow::Context;

/// What a turn took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    /// From the prompt to its first delta, in milliseconds.
    pub(crate) first_delta: f64,
    /// From the prompt to the end, in milliseconds.
    pub(crate) whole: f64,
    /// Deltas that were seen.
    pub(crate) deltas: usize,
}

/// What an event says of the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Text of the agent.
    Delta,
    /// It is over.
    End,
    /// Nothing that is measured.
    Other,
}

/// Prompts by `sent`, and looks at events until the turn has ended.
pub(crate) async fn turn(
    sent: impl Future<Output = anyhow::Result<()>>,
    next: impl AsyncFnMut() -> anyhow::Result<Seen>,
) -> anyhow::Result<Turn> {
    let begun = Instant::now();
    let (sent, turn) = tokio::join!(sent, watch(next, begun));
    sent.context("the prompt was refused")?;
    turn
}

async fn watch(mut next: impl AsyncFnMut() -> anyhow::Result<Seen>, begun: Instant) -> anyhow::Result<Turn> {
    let elapsed = || begun.elapsed().as_secs_f64() * 1e3;
    let (mut first_delta, mut deltas) = (None, 0);
    loop {
        match next().await? {
            Seen::Delta => {
                first_delta.get_or_insert_with(elapsed);
                deltas += 1;
            }
            Seen::End => {
                let first_delta = first_delta.context("the turn ended without a delta")?;
                return Ok(Turn { first_delta, whole: elapsed(), deltas });
            }
            Seen::Other => {}
        }
    }
}

//! How a turn ends: state, stop reason, error and usage go together. Pure.

use berth_wire::{
    event::EventPayload,
    turn::{TurnOutcome, TurnState, TurnStopReason},
};

use super::{Entry, Fault, Violation};

pub(super) fn check<T: Copy + Ord>(entries: &[Entry<'_, T>]) -> Vec<Violation> {
    let ends = entries.iter().enumerate().filter_map(|(at, entry)| match entry.payload {
        EventPayload::TurnEnded(outcome) => Some((at, outcome)),
        _ => None,
    });
    ends.flat_map(|(at, outcome)| {
        let faults = [stop_reason(outcome), error(outcome), usage(outcome)];
        faults.into_iter().flatten().map(move |what| Violation { at, what })
    })
    .collect()
}

fn stop_reason(outcome: &TurnOutcome) -> Option<Fault> {
    let state = outcome.state;
    if !state.is_final() {
        return Some(Fault::NotFinal(state));
    }
    let Some(reason) = outcome.stop_reason else {
        let needed = matches!(state, TurnState::Succeeded | TurnState::Cancelled);
        return needed.then_some(Fault::StopReasonMissing(state));
    };
    let allowed = match state {
        TurnState::Succeeded => {
            !matches!(reason, TurnStopReason::Cancelled | TurnStopReason::MaxTurnRequests)
        }
        TurnState::Cancelled => reason == TurnStopReason::Cancelled,
        // The bound on calls of the model is ours: it ends the turn as failed.
        TurnState::Failed => reason == TurnStopReason::MaxTurnRequests,
        _ => false,
    };
    (!allowed).then_some(Fault::StopReasonNotAllowed(state, reason))
}

fn error(outcome: &TurnOutcome) -> Option<Fault> {
    let state = outcome.state;
    match (state, &outcome.error) {
        (TurnState::Failed, None) => Some(Fault::ErrorMissing(state)),
        (TurnState::Succeeded | TurnState::Cancelled, Some(_)) => Some(Fault::ErrorNotAllowed(state)),
        _ => None,
    }
}

fn usage(outcome: &TurnOutcome) -> Option<Fault> {
    match outcome.usage {
        None => (outcome.state == TurnState::Succeeded).then_some(Fault::UsageMissing),
        Some(usage) => {
            let cost = usage.cost_usd;
            (!cost.is_finite() || cost < 0.0).then_some(Fault::UsageNotNumeric(cost))
        }
    }
}

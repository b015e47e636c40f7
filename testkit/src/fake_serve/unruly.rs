//! What a spoiled turn does to its events on their way out: some are dropped, doubled, held back or swapped. Pure.

use serde_json::Value;

use super::fault::TurnFault;

/// An event on its way to the subscribers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outgoing {
    /// Directory of its instance; none for the server's own events.
    pub(super) directory: Option<String>,
    /// The event as `/event` sends it.
    pub(super) payload: Value,
    /// The `sync` event that follows it on `/global/event`, for those that opencode keeps.
    pub(super) sync: Option<Value>,
}

impl Outgoing {
    pub(super) fn kind(&self) -> &str {
        self.payload["type"].as_str().unwrap_or_default()
    }

    fn status(&self) -> Option<&str> {
        self.payload["properties"]["status"]["type"].as_str()
    }

    fn is_idle(&self) -> bool {
        self.kind() == "session.idle" || self.status() == Some("idle")
    }

    fn opens_text(&self) -> bool {
        let part = &self.payload["properties"]["part"];
        matches!(part["type"].as_str(), Some("text" | "reasoning"))
            && part["time"]["start"].is_i64()
            && part["time"]["end"].is_null()
    }

    fn completes_message(&self) -> bool {
        self.kind() == "message.updated" && self.payload["properties"]["info"]["time"]["completed"].is_i64()
    }
}

/// How many deltas go before their part in [`TurnFault::LateType`].
const DELTAS_BEFORE_TYPE: usize = 2;

/// The events of one session, spoiled.
#[derive(Debug, Default)]
pub(super) struct Unruly {
    fault: Option<TurnFault>,
    held: Vec<Outgoing>,
    deltas: usize,
}

impl Unruly {
    pub(super) fn new(fault: Option<TurnFault>) -> Self {
        Self { fault, ..Self::default() }
    }

    pub(super) fn fault(&self) -> Option<TurnFault> {
        self.fault
    }

    /// What goes out instead of `event`.
    pub(super) fn pass(&mut self, event: Outgoing) -> Vec<Outgoing> {
        use TurnFault as T;
        let Some(fault) = self.fault else { return vec![event] };
        let drops = match fault {
            T::NeverIdle | T::LostIdle => event.is_idle(),
            T::LostBusy => event.status() == Some("busy"),
            T::LostDeltas => event.kind() == "message.part.delta",
            T::NoFinal => event.completes_message(),
            T::LostAsk => matches!(event.kind(), "permission.asked" | "question.asked"),
            _ => false,
        };
        match fault {
            _ if drops => Vec::new(),
            T::Doubled => vec![event.clone(), event],
            T::DoubledErrors if event.kind() == "session.error" => vec![event.clone(), event],
            T::IdleTwice => self.idle_twice(event),
            T::LateType => self.late_type(event),
            T::OutOfOrder => self.out_of_order(event),
            _ => vec![event],
        }
    }

    fn idle_twice(&mut self, event: Outgoing) -> Vec<Outgoing> {
        match event.kind() {
            "session.status" if event.is_idle() => {
                self.held = vec![event.clone()];
                vec![event]
            }
            "session.idle" => {
                let mut out = vec![event.clone()];
                out.append(&mut self.held);
                out.push(event);
                out
            }
            _ => vec![event],
        }
    }

    fn late_type(&mut self, event: Outgoing) -> Vec<Outgoing> {
        if event.opens_text() {
            self.deltas = 0;
            self.held.push(event);
            return Vec::new();
        }
        if event.kind() != "message.part.delta" {
            let mut out = std::mem::take(&mut self.held);
            out.push(event);
            return out;
        }
        self.deltas += 1;
        let mut out = vec![event];
        if self.deltas >= DELTAS_BEFORE_TYPE {
            out.append(&mut self.held);
        }
        out
    }

    fn out_of_order(&mut self, event: Outgoing) -> Vec<Outgoing> {
        let of_a_message = event.kind().starts_with("message.");
        if of_a_message && self.held.is_empty() {
            self.held.push(event);
            return Vec::new();
        }
        let held = std::mem::take(&mut self.held);
        if of_a_message {
            std::iter::once(event).chain(held).collect()
        } else {
            held.into_iter().chain([event]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, properties: Value) -> Outgoing {
        let mut payload = json!({ "id": "evt_1", "type": kind });
        payload["properties"] = properties;
        Outgoing { directory: None, payload, sync: None }
    }

    fn turn() -> Vec<Outgoing> {
        let open = json!({ "part": { "id": "prt_1", "type": "text", "text": "", "time": { "start": 1 } } });
        let end = json!({ "part": { "id": "prt_1", "type": "text", "text": "ab", "time": { "start": 1, "end": 2 } } });
        vec![
            event("session.status", json!({ "status": { "type": "busy" } })),
            event("message.part.updated", open),
            event("message.part.delta", json!({ "delta": "a" })),
            event("message.part.delta", json!({ "delta": "b" })),
            event("message.part.updated", end),
            event("message.updated", json!({ "info": { "time": { "created": 1, "completed": 2 } } })),
            event("session.error", json!({})),
            event("session.status", json!({ "status": { "type": "idle" } })),
            event("session.idle", json!({})),
        ]
    }

    /// The places in the plain turn of what comes out.
    fn passed(fault: TurnFault) -> Vec<usize> {
        let plain = turn();
        let mut unruly = Unruly::new(Some(fault));
        let out: Vec<_> = plain.clone().into_iter().flat_map(|event| unruly.pass(event)).collect();
        out.iter().map(|event| plain.iter().position(|other| other == event).unwrap()).collect()
    }

    #[test]
    fn each_fault_spoils_what_it_says() {
        use TurnFault as T;
        assert_eq!(passed(T::Stalls), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(passed(T::NeverIdle), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(passed(T::LostBusy), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(passed(T::LostDeltas), [0, 1, 4, 5, 6, 7, 8]);
        assert_eq!(passed(T::NoFinal), [0, 1, 2, 3, 4, 6, 7, 8]);
        assert_eq!(passed(T::DoubledErrors), [0, 1, 2, 3, 4, 5, 6, 6, 7, 8]);
        assert_eq!(passed(T::IdleTwice), [0, 1, 2, 3, 4, 5, 6, 7, 8, 7, 8]);
        assert_eq!(passed(T::LateType), [0, 2, 3, 1, 4, 5, 6, 7, 8]);
        assert_eq!(passed(T::OutOfOrder), [0, 2, 1, 4, 3, 5, 6, 7, 8]);
        assert_eq!(passed(T::Doubled).len(), 18);
    }
}

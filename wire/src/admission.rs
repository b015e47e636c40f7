//! What decides at the door whether a request may change something: the fence, which names the one replica of the
//! server that may, and the gate, a lease that keeps work out for a while.

use serde::{Deserialize, Serialize};

/// Header with the door's instance that the caller knows: [`FenceState::epoch`].
pub const EPOCH_HEADER: &str = "berth-epoch";

/// Header with the caller's fence, a number from 1.
pub const FENCE_HEADER: &str = "berth-fence";

/// Header with a name for what a call makes: 1 to 128 visible ASCII characters. While a call that changes something
/// with this name goes on at the door, whatever became of its caller, every other call with it is refused as busy.
pub const KEY_HEADER: &str = "berth-key";

/// Body of `PUT /berth/fence`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaiseFence {
    /// From 1; never lower than any before.
    pub fence: u64,
}

/// Where the fence stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceState {
    /// Names this instance of the door: it knows of no fence that another instance was given.
    pub epoch: String,
    /// Highest fence so far; 0 before the first.
    pub fence: u64,
}

/// How much a gate lets through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatePhase {
    /// Everything.
    #[default]
    Open,
    /// Everything but new prompts and terminals.
    Draining,
    /// Reads only.
    Closed,
    /// Reads only, for as long as this instance of the door lives.
    Sealed,
}

/// What [`HoldGate`] asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldPhase {
    /// See [`GatePhase::Draining`].
    Draining,
    /// See [`GatePhase::Closed`].
    Closed,
}

/// Body of `PUT /berth/gate`: takes the gate, keeps it, or moves it on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldGate {
    /// Who holds it: 1 to 128 characters.
    pub owner: String,
    /// Why, for those who are refused: at most 512 characters.
    #[serde(default)]
    pub reason: String,
    /// From now, in ms, until it opens by itself: 1 to 3,600,000.
    pub ttl_ms: u64,
    /// How much it lets through.
    pub phase: HeldPhase,
    /// Which lease is kept or moved on; absent to take the gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Longest time, in ms, to wait for what must end before the gate is closed: at most 600,000.
    #[serde(default)]
    pub wait_ms: u64,
    /// Whether every turn must have ended, too, before the gate is closed.
    #[serde(default)]
    pub idle: bool,
}

/// Body of `POST /berth/gate/seal`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealGate {
    /// The lease under which the gate is closed.
    pub generation: u64,
}

/// Where the gate stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateState {
    /// How much it lets through.
    pub phase: GatePhase,
    /// The lease, or the last one; counts from 1 in an instance of the door, 0 before the first.
    pub generation: u64,
    /// Who holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// From now, in ms, until it opens by itself; absent when it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
}

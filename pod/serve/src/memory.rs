//! How much memory opencode and its tools hold. IO, on demand only.

use serde::{Deserialize, Serialize};

use crate::proc;

/// Resident memory, read at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServeMemory {
    /// Of opencode itself, in bytes; 0 when it does not run.
    pub opencode: u64,
    /// Of all that it started and that still runs, in bytes. What several of them share is counted for each.
    pub tools: u64,
    /// How many those are.
    pub tool_processes: u64,
}

/// Reads it. A supervisor that adopts orphans counts what descends from itself: tools may outlive their parents.
pub(crate) async fn read(pid: Option<u32>, adopts: bool) -> ServeMemory {
    let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()) else { return ServeMemory::default() };
    let read = move || {
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        let mut tools = proc::descendants(&proc::all(), if adopts { own } else { pid });
        tools.remove(&pid);
        let resident = tools.iter().map(|tool| proc::resident(*tool)).sum();
        ServeMemory { opencode: proc::resident(pid), tools: resident, tool_processes: tools.len() as u64 }
    };
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

//! Kills processes of pods from the node: in an image without a shell nothing else can, and no pod sees another's.

use anyhow::{Context, ensure};

use crate::{
    cluster::{Cluster, SHARED, SURGEON},
    wait::until,
};

/// Sends a signal to the processes of a pod that run a program. A pod's UID stands in the names of its control groups,
/// with underscores where systemd names them.
const SCRIPT: &str = r#"
for process in /proc/[0-9]*; do
  if [ "$(readlink "$process/exe")" = "$2" ] && tr _ - <"$process/cgroup" | grep -q "$1"; then
    kill "-$3" "${process#/proc/}" && echo "${process#/proc/}"
  fi
done"#;

/// Who dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// opencode itself.
    Opencode,
    /// What keeps it running, and process 1 of the agent's container.
    Supervisor,
    /// The door.
    Sidecar,
    /// What holds the pod's network.
    Pause,
    /// The operator, or the server: they are one program.
    Controller,
}

impl Victim {
    fn program(self) -> &'static str {
        match self {
            Self::Opencode => "/opt/berth/bin/opencode",
            Self::Supervisor => "/opt/berth/bin/berth-supervisor",
            Self::Sidecar => "/berth-sidecar",
            Self::Pause => "/pause",
            Self::Controller => "/berth-controller",
        }
    }
}

/// Who was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Process ids, as the node counts.
    pub processes: Vec<String>,
}

impl Cluster {
    /// Sends a signal, such as `KILL`, to a victim in the pod of this UID, as soon as it runs.
    pub async fn send(&self, pod_uid: &str, victim: Victim, signal: &str) -> Outcome {
        until(&format!("{victim:?} to get {signal}"), async || self.try_send(pod_uid, victim, signal).await)
            .await
    }

    async fn try_send(&self, pod_uid: &str, victim: Victim, signal: &str) -> anyhow::Result<Outcome> {
        let place = (SHARED, SURGEON, SURGEON);
        let arguments = [pod_uid, victim.program(), signal];
        let killed = self.kubectl.shell(place, SCRIPT, &arguments).await.context("the surgeon")?;
        let processes: Vec<String> = killed.lines().map(str::to_owned).collect();
        ensure!(!processes.is_empty(), "no {victim:?} runs in the pod of UID {pod_uid}");
        Ok(Outcome { processes })
    }
}

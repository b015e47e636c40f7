//! Conditions of a `Sandbox` and their reasons, and how a new set follows an old one. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

macro_rules! names {
    ($(#[$outer:meta])* $name:ident { $($(#[$inner:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$inner])* $variant),+ }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// As it stands in the status.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

names! {
    /// What a condition is about. Each is good when it is `True`.
    ConditionType {
        /// A prompt would be answered: the summary of the others.
        Ready,
        /// The manifest can be built, and everything in it is there.
        Accepted,
        /// The pod has a node.
        PodScheduled,
        /// The pod's containers run, and its door lets requests pass.
        PodReady,
        /// opencode answers, in a version that Berth speaks.
        OpencodeReady,
        /// The workspace holds all that was ever written to it.
        WorkspaceIntact,
        /// The pod is what the manifest and the platform would make now.
        UpToDate,
        /// The sandbox has no pod, since its manifest wants it to rest.
        Suspended,
        /// The operator's last pass did all that the manifest asks for.
        Reconciled,
    }
}

names! {
    /// Why a condition is what it is.
    Reason {
        /// All is well.
        Available,
        /// The manifest is sound.
        Valid,
        /// The manifest asks for what cannot be built.
        Invalid,
        /// The pod was not made yet, or is being made again.
        Creating,
        /// Something of the pod's name is there and is not this sandbox's.
        NameConflict,
        /// The cluster refused an object.
        AdmissionDenied,
        /// A quota of the namespace is used up.
        QuotaExceeded,
        /// The claim has no volume yet.
        ClaimPending,
        /// The pod has a node.
        Scheduled,
        /// No node takes the pod.
        Unschedulable,
        /// An image is being fetched, or containers are being made.
        Starting,
        /// An image cannot be fetched.
        ImagePullBackOff,
        /// A Secret or ConfigMap, or a key in one, is missing.
        ConfigurationMissing,
        /// The kernel ended the agent's container for memory.
        OOMKilled,
        /// A container ends again and again.
        OpencodeCrashLoop,
        /// The containers run, and opencode does not answer yet.
        OpencodeStarting,
        /// What listens on the door's port does not prove that it is the door, or keeps the door from listening.
        PortTaken,
        /// The door does not take the password of the sandbox's Secret.
        Unauthorized,
        /// The node moved the pod away, such as for disk space.
        Evicted,
        /// The pod's node is not heard of.
        NodeLost,
        /// The pod ended.
        PodEnded,
        /// The workspace lives as long as the sandbox.
        Persistent,
        /// Nothing was lost yet, in a workspace that lives as long as its pod.
        Ephemeral,
        /// A workspace was lost with its pod.
        WorkspaceLost,
        /// The pod runs what an earlier manifest or platform said.
        SpecChanged,
        /// opencode ended, and was started again.
        OpencodeExited,
        /// opencode did not answer, and was ended for it.
        Wedged,
        /// The manifest wants the sandbox to rest.
        Suspended,
        /// It is on its way to that.
        Suspending,
        /// Nobody wants it to rest.
        NotSuspended,
        /// The time that the manifest gives the sandbox is over.
        Expired,
        /// Its pod is made again on another node.
        Moving,
        /// The last pass came to its end.
        Reconciled,
        /// Passes over the sandbox fail: what the other conditions say may be old.
        ReconcileFailed,
        /// The sandbox is being deleted.
        Deleting,
    }
}

/// What is found about one condition now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub kind: ConditionType,
    /// `None` while it cannot be told.
    pub holds: Option<bool>,
    /// Why.
    pub reason: Reason,
    /// For people; says what to do where they can do something.
    pub message: String,
}

impl Finding {
    /// It holds.
    pub fn yes(kind: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self { kind, holds: Some(true), reason, message: message.into() }
    }

    /// It does not hold.
    pub fn no(kind: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self { kind, holds: Some(false), reason, message: message.into() }
    }

    /// It cannot be told yet.
    pub fn unknown(kind: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self { kind, holds: None, reason, message: message.into() }
    }

    /// `True`, `False` or `Unknown`.
    pub fn status(&self) -> &'static str {
        match self.holds {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
    }
}

/// The conditions that follow `old` when this is found at `now`, in the order of `findings`. The time of a transition
/// moves when the status flips, and only then. Conditions that nobody found anything about are dropped.
pub fn follow(
    old: &[Condition],
    findings: &[Finding],
    generation: Option<i64>,
    now: &Time,
) -> Vec<Condition> {
    findings
        .iter()
        .map(|finding| {
            let before = find(old, finding.kind).filter(|before| before.status == finding.status());
            Condition {
                type_: finding.kind.to_string(),
                status: finding.status().to_owned(),
                reason: finding.reason.to_string(),
                message: finding.message.clone(),
                observed_generation: generation,
                last_transition_time: before
                    .map_or_else(|| now.clone(), |before| before.last_transition_time.clone()),
            }
        })
        .collect()
}

/// The condition of this type, if it is there.
pub fn find(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == kind.as_str())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn the_time_moves_only_when_the_status_flips() {
        let starting = [Finding::no(ConditionType::Ready, Reason::Starting, "a")];
        let first = follow(&[], &starting, Some(1), &at(1));
        let ended = [Finding::no(ConditionType::Ready, Reason::PodEnded, "b")];
        let second = follow(&first, &ended, Some(2), &at(2));
        assert_eq!(second[0].last_transition_time, at(1));
        assert_eq!((second[0].reason.as_str(), second[0].observed_generation), ("PodEnded", Some(2)));
        let ready = [Finding::yes(ConditionType::Ready, Reason::Available, "")];
        assert_eq!(follow(&second, &ready, Some(2), &at(3))[0].last_transition_time, at(3));
    }

    #[test]
    fn reasons_are_what_the_cluster_takes() {
        let plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        assert!(Reason::ALL.iter().all(|reason| plain(reason.as_str())));
        assert!(ConditionType::ALL.iter().all(|kind| plain(kind.as_str())));
    }
}

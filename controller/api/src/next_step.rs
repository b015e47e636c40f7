//! What a person does about a reason: one step for each, for whoever shows conditions to people. Pure.

use crate::{Reason, names};

/// Which sandbox a step is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl Reason {
    /// What to do next about a sandbox with this reason; nothing where all is well, or where it passes by itself.
    pub fn next_step(self, subject: Subject<'_>) -> Option<String> {
        let Subject { namespace, name } = subject;
        let filled = self
            .template()?
            .replace("{namespace}", namespace)
            .replace("{name}", name)
            .replace("{pod}", &names::pod(name))
            .replace("{claim}", &names::claim(name));
        Some(filled)
    }

    /// The step with `{namespace}`, `{name}`, `{pod}` and `{claim}` in it.
    #[expect(clippy::too_many_lines, reason = "a table with one row for each reason")]
    fn template(self) -> Option<&'static str> {
        Some(match self {
            Self::Available
            | Self::Valid
            | Self::Scheduled
            | Self::Persistent
            | Self::Ephemeral
            | Self::Creating
            | Self::Starting
            | Self::NotSuspended
            | Self::Suspending
            | Self::Moving
            | Self::Reconciled
            | Self::Deleting => return None,
            Self::Invalid => "change the manifest as the message says, and apply it again",
            Self::NameConflict => {
                "see whose object it is (kubectl -n {namespace} get pods,secrets,pvc --show-labels); remove it, or make the \
                 Sandbox again under another name"
            }
            Self::AdmissionDenied => {
                "the message is of an admission policy of the cluster: change the manifest as it asks, or ask whoever keeps \
                 the policy for an exception"
            }
            Self::QuotaExceeded => {
                "make room (kubectl -n {namespace} describe resourcequota): delete what is not needed, lower \
                 spec.resources, or ask for a larger quota"
            }
            Self::ClaimPending => {
                "see what the claim waits for: kubectl -n {namespace} describe pvc {claim}; without a default storage class, \
                 name one in spec.workspace.persistent.storageClassName"
            }
            Self::Unschedulable => {
                "compare what the pod asks for (spec.resources, spec.pod.nodeSelector, tolerations, affinity) with what the \
                 message says of the nodes: kubectl describe nodes"
            }
            Self::ImagePullBackOff => {
                "correct spec.image, or give the registry's credentials in spec.pod.imagePullSecrets: kubectl -n \
                 {namespace} describe pod {pod}"
            }
            Self::ConfigurationMissing => {
                "make the Secret or ConfigMap that the message names, with that key, in namespace {namespace}"
            }
            Self::OOMKilled => {
                "raise spec.resources.limits.memory, or have the agent do less at a time; the last words: kubectl berth -n \
                 {namespace} logs {name} --previous"
            }
            Self::OpencodeCrashLoop => {
                "read why it ends: kubectl berth -n {namespace} logs {name} --previous; often it is spec.opencode.config"
            }
            Self::OpencodeStarting => {
                "wait a minute; if it stays, read what it does: kubectl berth -n {namespace} logs {name}"
            }
            Self::PortTaken | Self::Unauthorized => {
                "have the pod made anew: kubectl -n {namespace} delete pod {pod}; if it comes back, what the agent runs in \
                 there listens on the door's ports"
            }
            Self::Evicted => {
                "see what the node was short of (the message says it), and ask for it in spec.resources.requests, \
                 ephemeral-storage too"
            }
            Self::NodeLost => {
                "look at the node (kubectl get nodes): bring it back, or delete it when it is gone for good, and the pod is \
                 made elsewhere"
            }
            Self::PodEnded => {
                "wait for the next pod; if that ends too, read why: kubectl -n {namespace} describe pod {pod}"
            }
            Self::WorkspaceLost => {
                "what was in it is gone: for work that must last, make a Sandbox with spec.workspace.persistent"
            }
            Self::Suspended => {
                "it rests since spec.suspended says so: set that to false in its manifest to wake it"
            }
            Self::Expired => {
                "it is being deleted, since its time is over; make another one, with a longer spec.expiresAfter"
            }
            Self::OpencodeExited => {
                "it was started again; read why it ended: kubectl berth -n {namespace} logs {name}"
            }
            Self::Wedged => {
                "it was ended since it did not answer, and is started again; read what it did: kubectl berth -n {namespace} \
                 logs {name}"
            }
            Self::ReconcileFailed => {
                "the operator tries again by itself; if it stays, the message says what is in the way, and `kubectl berth \
                 -n {namespace} doctor` looks for it in the cluster"
            }
            Self::SpecChanged => {
                "have the pod made anew when its turns have ended: kubectl -n {namespace} delete pod {pod}"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBJECT: Subject<'static> = Subject { namespace: "team", name: "one" };

    #[test]
    fn a_step_is_one_line_with_everything_filled_in() {
        for reason in Reason::ALL {
            let Some(step) = reason.next_step(SUBJECT) else { continue };
            assert!(!step.contains(['{', '}', '\n']) && !step.contains("  "), "{reason}: {step}");
            assert!(!step.ends_with('.') && step.starts_with(char::is_lowercase), "{reason}: {step}");
        }
    }

    #[test]
    fn whoever_waits_is_told_nothing_and_whoever_can_act_is_told_what_to_do() {
        assert_eq!(Reason::Starting.next_step(SUBJECT), None);
        let step = Reason::ClaimPending.next_step(SUBJECT).unwrap();
        assert!(step.contains("kubectl -n team describe pvc one-workspace"), "{step}");
        let commands = Reason::ALL.iter().filter_map(|reason| reason.next_step(SUBJECT));
        assert!(commands.clone().any(|step| step.contains("kubectl -n team delete pod one-sandbox")));
        assert!(commands.filter(|step| step.contains("kubectl berth")).all(|step| step.contains("-n team")));
    }
}

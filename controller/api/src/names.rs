//! Names, labels, annotations and the finalizer of what belongs to a `Sandbox`. Pure.

/// Longest name of a `Sandbox`, in bytes: with the longest ending below it stays within the 63 of a label.
pub const NAME_MAX: usize = 52;

/// Field manager of the operator, also the value of [`MANAGED_BY`].
pub const MANAGER: &str = "berth-operator";

/// Whose object this is, as Kubernetes recommends to say it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Label of a pod, Secret or claim with the name of its `Sandbox`.
pub const SANDBOX: &str = "berth.dev/sandbox";

/// Label of a pod with the hash of the rule set that holds for its network, and of the policy that has these rules.
pub const RULE_SET: &str = "berth.dev/rule-set";

/// Annotation of a pod with the hash of what it was built from.
pub const POD_HASH: &str = "berth.dev/pod-hash";

/// Annotation of a claim that outlives its `Sandbox`, with the UID of that.
pub const OWNER_UID: &str = "berth.dev/owner-uid";

/// Beginning of every label and annotation that is Berth's.
pub const PREFIX: &str = "berth.dev/";

/// Keeps a `Sandbox` until its turns have ended.
pub const FINALIZER: &str = "berth.dev/end-turns";

/// Headless Service of each namespace with sandboxes, and the `subdomain` of their pods.
pub const SERVICE: &str = "berth-sandboxes";

/// Network policy of each namespace with sandboxes that closes their pods.
pub const DEFAULT_DENY: &str = "berth-default-deny";

/// Key of the door's password in a sandbox's Secret.
pub const DOOR_PASSWORD: &str = "password";

/// Key of opencode's internal password in a sandbox's Secret.
pub const OPENCODE_PASSWORD: &str = "opencode-password";

/// Key of the other password that the door takes, while they are exchanged.
pub const DOOR_PASSWORD_PREVIOUS: &str = "password-previous";

/// Annotation of a `Sandbox`: at each other value the door's password is exchanged.
pub const ROTATE_PASSWORD: &str = "berth.dev/rotate-password";

/// Annotation of a sandbox's Secret with how far the exchange of its password is.
pub const PASSWORD_STAGE: &str = "berth.dev/password-stage";

/// Annotation of a sandbox's Secret with when that began.
pub const PASSWORD_STAGE_SINCE: &str = "berth.dev/password-stage-since";

/// Annotation of a sandbox's Secret with when its password became another one.
pub const PASSWORD_CHANGED_AT: &str = "berth.dev/password-changed-at";

/// Annotation of a sandbox's Secret while something else is, or was, at the door's port for which the password was
/// exchanged already.
pub const PASSWORD_INCIDENT: &str = "berth.dev/password-incident";

/// Annotation of a sandbox's Secret with the value of [`ROTATE_PASSWORD`] that was answered last.
pub const PASSWORD_REQUEST: &str = "berth.dev/password-request";

/// Name of a sandbox's pod.
pub fn pod(sandbox: &str) -> String {
    format!("{sandbox}-sandbox")
}

/// Name of a sandbox's Secret.
pub fn secret(sandbox: &str) -> String {
    format!("{sandbox}-door")
}

/// Name of the claim for a sandbox's workspace.
pub fn claim(sandbox: &str) -> String {
    format!("{sandbox}-workspace")
}

/// Name of the network policy with the rules of this hash.
pub fn rule_set(hash: &str) -> String {
    format!("berth-rules-{hash}")
}

/// The variable in which a provider's key is handed to opencode: `my-gateway` gives `PROVIDER_MY_GATEWAY_API_KEY`.
pub fn key_variable(provider: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
    format!("PROVIDER_{}_API_KEY", provider.chars().map(plain).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_gives_names_within_the_bound_of_a_label() {
        let longest = "a".repeat(NAME_MAX);
        for name in [pod(&longest), secret(&longest), claim(&longest)] {
            assert!(name.len() <= 63, "{name}");
        }
    }

    #[test]
    fn a_key_has_a_variable_of_its_own() {
        assert_eq!(key_variable("my-gateway.2"), "PROVIDER_MY_GATEWAY_2_API_KEY");
    }
}

//! Exchanges the password of a sandbox's door, as [`rotation`] says. IO.

use std::time::Duration;

use berth_api::{Reason, Sandbox, names};
use k8s_openapi::{
    api::core::v1::{Pod, Secret},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use rand::Rng;
use secrecy::SecretString;

use crate::{
    build::hexadecimal,
    door,
    error::{ReconcileError, cannot},
    judge::{self, Trouble},
    reconcile::Context,
    rotation::{self, Sight, Step},
};

/// 256 random bits.
pub(crate) fn new_password() -> SecretString {
    let mut bytes = [0_u8; 32];
    rand::rng().fill_bytes(&mut bytes);
    SecretString::from(hexadecimal(&bytes))
}

/// Takes the next step, where there is one: the Secret as it is then, and when to look again.
pub(crate) async fn exchange(
    context: &Context,
    sandbox: &Sandbox,
    secret: Secret,
    pod: Option<&Pod>,
    told: Option<&Trouble>,
) -> Result<(Secret, Option<Duration>), ReconcileError> {
    let namespace = sandbox.namespace().unwrap_or_default();
    let trouble = pod.and_then(judge::trouble);
    let port_taken = [trouble.as_ref(), told].into_iter().flatten().any(is_taken);
    let proved = rotation::is_of_an_incident(&secret)
        && !port_taken
        && proves(context, sandbox, &namespace, pod).await;
    let request = sandbox.annotations().get(names::ROTATE_PASSWORD).map(String::as_str);
    let sight = Sight { port_taken, proved, request };
    let (step, again) = rotation::next(&secret, &sight, Timestamp::now());
    let Some(step) = step else { return Ok((secret, again)) };
    let change = rotation::change(&secret, step, &sight, &new_password(), Timestamp::now());
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    let written = api.patch(&secret.name_any(), &PatchParams::default(), &Patch::Merge(&change)).await;
    let secret = written.map_err(cannot("exchange the door's password"))?;
    tracing::info!(
        namespace,
        sandbox = sandbox.name_any(),
        port_taken,
        ?step,
        "the door's password is exchanged"
    );
    if step == Step::Switch {
        context.metrics.passwords_exchanged.inc();
    }
    let (_, again) = rotation::next(&secret, &sight, Timestamp::now());
    Ok((secret, again))
}

fn is_taken(trouble: &Trouble) -> bool {
    trouble.reason == Reason::PortTaken
}

/// Whether the door is itself: asked where the pod says that it is ready, since nothing is there to ask before.
async fn proves(context: &Context, sandbox: &Sandbox, namespace: &str, pod: Option<&Pod>) -> bool {
    let Some(pod) = pod.filter(|pod| judge::is_sidecar_ready(pod)) else { return false };
    match door::connect(&context.client, sandbox, namespace, pod).await {
        Ok(Some(door)) => door.door_state().await.is_ok(),
        Ok(None) | Err(_) => false,
    }
}

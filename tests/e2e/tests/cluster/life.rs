//! A sandbox that rests, and one whose time is over.

use berth_api::{ConditionType, Sandbox, names};
use berth_e2e::{Case, Shape, until};
use berth_tests::SessionLog;
use berth_wire::turn::TurnState;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

const WORK: &str =
    "@stub tool:bash:{\"command\":\"echo work > kept.txt\",\"description\":\"Work\"} >> say:done";

pub(crate) async fn rests_and_returns_with_its_work(case: Case) {
    case.sandbox("sleeper", Shape::default()).await;
    let session = case.session("sleeper").await;
    let (turn, log) = case.prompt(session, WORK).await;
    assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded);
    let before = kept(&case).await;

    suspend(&case, true).await;
    let told = case.condition("sleeper", ConditionType::Suspended, "True").await;
    assert_eq!(told.reason, "Suspended");
    case.gone::<Pod>(&names::pod("sleeper")).await;
    let ready = case.condition("sleeper", ConditionType::Ready, "False").await;
    assert_eq!(ready.reason, "Suspended", "{ready:?}");
    assert_eq!(kept(&case).await, before, "claim and password stay");

    // A prompt that comes meanwhile waits.
    let waiting = case.post(session, "@stub say:back").await;
    suspend(&case, false).await;
    case.ready("sleeper").await;
    let log = SessionLog::until_end(&case.berth, session, waiting.id).await;
    assert_eq!(log.outcome(waiting.id).state, TurnState::Succeeded, "{:?}", log.outcome(waiting.id));
    let found = case.shell("sleeper", "cat /workspace/work/kept.txt", &[]).await;
    assert_eq!(found.expect("the file is there"), "work\n");
    assert_eq!(kept(&case).await, before);
}

async fn suspend(case: &Case, suspended: bool) {
    let change = Patch::Merge(json!({ "spec": { "suspended": suspended } }));
    let patched = case.api::<Sandbox>().patch("sleeper", &PatchParams::default(), &change).await;
    patched.expect("the manifest can be changed");
}

/// UIDs of what outlives the pod.
async fn kept(case: &Case) -> (Option<String>, Option<String>) {
    let claim = case.api::<PersistentVolumeClaim>().get(&names::claim("sleeper")).await;
    let secret = case.api::<Secret>().get(&names::secret("sleeper")).await;
    (claim.expect("the claim is there").uid(), secret.expect("the secret is there").uid())
}

/// It goes by itself when its time is over; its claim stays, as it was asked for, until somebody deletes it.
pub(crate) async fn expires_and_leaves_its_claim(case: Case) {
    let mut manifest = case.manifest("mayfly", Shape::default());
    manifest["spec"]["expiresAfter"] = json!("1m");
    manifest["spec"]["onDelete"] = json!("Retain");
    let made = case.create(manifest).await;
    let made_at = made.metadata.creation_timestamp.expect("it has a time").0;
    case.ready("mayfly").await;
    let sandbox = case.api::<Sandbox>().get("mayfly").await.expect("it is there");
    let expires_at = sandbox.status.and_then(|status| status.expires_at).expect("its end is told").0;
    assert_eq!(expires_at.duration_since(made_at).as_secs(), 60);

    case.gone::<Sandbox>("mayfly").await;
    case.gone::<Pod>(&names::pod("mayfly")).await;
    case.gone::<Secret>(&names::secret("mayfly")).await;
    let claims = case.api::<PersistentVolumeClaim>();
    let claim = claims.get(&names::claim("mayfly")).await.expect("the claim is there");
    assert_eq!((claim.owner_references().len(), claim.metadata.deletion_timestamp), (0, None));
    claims.delete(&names::claim("mayfly"), &DeleteParams::default()).await.expect("a person deletes it");
    until("the claim to go", async || {
        let left = claims.get_opt(&names::claim("mayfly")).await.map_err(|error| error.to_string())?;
        if left.is_none() { Ok(()) } else { Err("it is there".to_owned()) }
    })
    .await;
}

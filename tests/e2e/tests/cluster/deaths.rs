//! What dies in mid-turn: the turn has one end with the right cause, and the sandbox comes back with its work.

use berth_api::{ConditionType, Reason};
use berth_e2e::{Case, Shape, Victim};
use berth_tests::{SessionLog, words};
use berth_wire::{
    event::Voice,
    turn::{TurnErrorReason, TurnOutcome, TurnState},
};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use uuid::Uuid;

const SANDBOX: &str = "mortal";

/// Pieces of the text during which something dies: fifteen seconds.
const PIECES: usize = 1500;

/// What is in the file that was there before.
const WORK: &str =
    "@stub tool:bash:{\"command\":\"echo work > kept.txt\",\"description\":\"Work\"} >> say:done";

/// A sandbox with a file, and a turn that runs and has said something.
struct Scene {
    case: Case,
    session: Uuid,
    turn: Uuid,
    pod: Pod,
}

impl Scene {
    async fn set(case: Case, ephemeral: bool) -> Self {
        case.sandbox(SANDBOX, Shape { ephemeral, ..Shape::default() }).await;
        let session = case.session(SANDBOX).await;
        let (turn, log) = case.prompt(session, WORK).await;
        assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded);
        let pod = case.pod(SANDBOX).await;
        let turn = case.post(session, &format!("@stub text:n={PIECES},d=10")).await.id;
        let said = |event: &berth_wire::event::SessionEvent| {
            event.turn_id == Some(turn) && event.payload.as_chunk().is_some()
        };
        SessionLog::until(&case.berth, session, 0, "text", said).await;
        Self { case, session, turn, pod }
    }

    async fn kill(&self, victim: Victim) {
        let uid = self.pod.metadata.uid.as_deref().expect("a pod has a UID");
        self.case.cluster.send(uid, victim, "KILL").await;
    }

    /// The one end of the turn, and what it had said.
    async fn end(&self) -> (TurnOutcome, String) {
        let log = SessionLog::until_end(&self.case.berth, self.session, self.turn).await;
        log.check();
        let text = log.text(self.turn, Voice::Message);
        assert!(words(PIECES).starts_with(&text), "{text:?}");
        (log.outcome(self.turn).clone(), text)
    }

    async fn ends_as_exited(&self) {
        let (outcome, _) = self.end().await;
        let reason = outcome.error.as_ref().map(|error| error.reason);
        assert_eq!(
            (outcome.state, reason),
            (TurnState::Failed, Some(TurnErrorReason::OpencodeExited)),
            "{outcome:?}"
        );
    }

    /// The next prompt is answered in the same session, and the sandbox is ready.
    async fn lives_again(&self) {
        let (turn, log) = self.case.prompt(self.session, "@stub say:back").await;
        assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded, "{:?}", log.outcome(turn.id));
        assert_eq!(log.text(turn.id, Voice::Message), "back");
        self.case.ready(SANDBOX).await;
    }

    async fn has_its_work(&self, reason: Reason) {
        let kept = self.case.shell(SANDBOX, "cat /workspace/work/kept.txt", &[]).await;
        assert_eq!(kept.expect("the file is there"), "work\n");
        let intact = self.case.condition(SANDBOX, ConditionType::WorkspaceIntact, "True").await;
        assert_eq!(intact.reason, reason.as_str());
    }

    async fn is_the_same_pod(&self) {
        assert_eq!(self.case.pod(SANDBOX).await.metadata.uid, self.pod.metadata.uid);
    }
}

pub(crate) async fn opencode_killed(case: Case) {
    let scene = Scene::set(case, false).await;
    scene.kill(Victim::Opencode).await;
    scene.ends_as_exited().await;
    scene.lives_again().await;
    scene.has_its_work(Reason::Persistent).await;
    scene.is_the_same_pod().await;
}

pub(crate) async fn supervisor_killed(case: Case) {
    let scene = Scene::set(case, true).await;
    scene.kill(Victim::Supervisor).await;
    scene.ends_as_exited().await;
    scene.lives_again().await;
    // A container goes, and the pod stays with its volumes.
    scene.has_its_work(Reason::Ephemeral).await;
    scene.is_the_same_pod().await;
}

pub(crate) async fn sidecar_killed(case: Case) {
    let scene = Scene::set(case, false).await;
    scene.kill(Victim::Sidecar).await;
    // opencode goes on meanwhile: nothing is lost.
    let (outcome, text) = scene.end().await;
    assert_eq!(outcome.state, TurnState::Succeeded, "{outcome:?}");
    assert_eq!(text, words(PIECES));
    scene.lives_again().await;
    scene.has_its_work(Reason::Persistent).await;
    scene.is_the_same_pod().await;
}

pub(crate) async fn pause_killed(case: Case) {
    let scene = Scene::set(case, true).await;
    scene.kill(Victim::Pause).await;
    scene.ends_as_exited().await;
    scene.lives_again().await;
    scene.has_its_work(Reason::Ephemeral).await;
    scene.is_the_same_pod().await;
}

pub(crate) async fn pod_deleted(case: Case) {
    let scene = Scene::set(case, false).await;
    delete_pod(&scene).await;
    scene.ends_as_exited().await;
    scene.lives_again().await;
    scene.has_its_work(Reason::Persistent).await;
}

pub(crate) async fn pod_with_its_workspace_deleted(case: Case) {
    let scene = Scene::set(case, true).await;
    delete_pod(&scene).await;
    scene.ends_as_exited().await;
    let lost = scene.case.condition(SANDBOX, ConditionType::WorkspaceIntact, "False").await;
    assert_eq!(lost.reason, Reason::WorkspaceLost.as_str());
    scene.lives_again().await;
    let kept = scene.case.shell(SANDBOX, "test ! -e /workspace/work/kept.txt", &[]).await;
    kept.expect("the file went with the pod");
}

async fn delete_pod(scene: &Scene) {
    let name = scene.pod.metadata.name.as_deref().expect("a pod has a name");
    let pods = scene.case.api::<Pod>();
    pods.delete(name, &DeleteParams::default()).await.expect("the pod can be deleted");
}

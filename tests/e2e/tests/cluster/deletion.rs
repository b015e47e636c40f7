//! A sandbox that is deleted.

use berth_api::Sandbox;
use berth_e2e::{Case, Shape};
use berth_tests::SessionLog;
use berth_wire::turn::{TurnErrorReason, TurnState};
use kube::api::DeleteParams;

pub(crate) async fn in_mid_turn(case: Case) {
    case.sandbox("doomed", Shape::default()).await;
    let session = case.session("doomed").await;
    let turn = case.post(session, "@stub text:n=20000,d=10").await;
    case.wait_for(session, "text", |payload| payload.as_chunk().map(|_| ())).await;
    case.api::<Sandbox>().delete("doomed", &DeleteParams::default()).await.expect("it can be deleted");
    let log = SessionLog::until_end(&case.berth, session, turn.id).await;
    log.check();
    let outcome = log.outcome(turn.id);
    let reason = outcome.error.as_ref().map(|error| error.reason);
    assert_eq!(
        (outcome.state, reason),
        (TurnState::Failed, Some(TurnErrorReason::SandboxGone)),
        "{outcome:?}"
    );
    case.gone::<Sandbox>("doomed").await;
}

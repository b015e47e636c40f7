//! Sandboxes that come and move while the server runs, and a password that their door does not take any more.

use std::sync::{Arc, Mutex, PoisonError};

use berth_wire::problem::ProblemType;
use tokio::sync::watch;

use super::{
    door::FakeDoor,
    rig::{Rig, limits, within},
};
use crate::directory::{SandboxAddress, SandboxDirectory};

/// A directory that changes.
#[derive(Debug)]
struct Moving {
    known: Mutex<Vec<SandboxAddress>>,
    changed: watch::Sender<()>,
    refusals: watch::Sender<usize>,
}

impl Moving {
    fn new() -> Arc<Self> {
        let (changed, refusals) = (watch::channel(()).0, watch::channel(0).0);
        Arc::new(Self { known: Mutex::default(), changed, refusals })
    }

    fn set(&self, known: Vec<SandboxAddress>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        self.changed.send_replace(());
    }
}

impl SandboxDirectory for Moving {
    fn changes(&self) -> Option<watch::Receiver<()>> {
        Some(self.changed.subscribe())
    }

    fn refused(&self, _namespace: &str, _name: &str) {
        self.refusals.send_modify(|count| *count += 1);
    }

    fn list(&self) -> Vec<SandboxAddress> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn find(&self, namespace: &str, name: &str) -> Option<SandboxAddress> {
        self.list().into_iter().find(|address| address.namespace == namespace && address.name == name)
    }
}

#[tokio::test]
async fn a_sandbox_that_comes_later_is_run_and_followed_to_where_it_moves() {
    let mut rig = Rig::new(limits()).await;
    let directory = Moving::new();
    rig.start_with(&(Arc::clone(&directory) as Arc<dyn SandboxDirectory>));
    let session = rig.session().await;
    rig.post(session, "go").await;
    directory.set(vec![rig.address.clone()]);
    rig.begun(1).await;
    let next = FakeDoor::start().await;
    directory.set(vec![SandboxAddress { door_url: next.url.clone(), ..rig.address.clone() }]);
    next.wait_for("PUT /berth/fence", 1).await;
    rig.stop().await;
}

#[tokio::test]
async fn a_password_that_is_refused_is_told_and_the_next_one_is_used() {
    let mut rig = Rig::new(limits()).await;
    let directory = Moving::new();
    let mut refusals = directory.refusals.subscribe();
    rig.door.refuse_as("PUT /berth/fence", ProblemType::Unauthorized);
    directory.set(vec![rig.address.clone()]);
    rig.start_with(&(Arc::clone(&directory) as Arc<dyn SandboxDirectory>));
    let session = rig.session().await;
    rig.post(session, "go").await;
    within("the refusal", refusals.wait_for(|count| *count > 0)).await.unwrap();
    directory.set(vec![SandboxAddress { door_password: "another".into(), ..rig.address.clone() }]);
    rig.begun(1).await;
    rig.stop().await;
}

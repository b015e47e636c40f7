//! Many sessions at once.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::{
    rig::{Rig, in_words},
    server::Server,
    sized,
};

pub(crate) async fn twenty_sessions_at_once(server: Arc<Server>) {
    let count = sized(50, 500);
    let mut crowd = JoinSet::new();
    for number in 0..20 {
        let server = Arc::clone(&server);
        crowd.spawn(async move {
            let mut rig = Rig::new(server).await;
            let prompt = rig.begin(&format!("@stub text:n={count},d=20,w=s{number}w")).await;
            assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
            let said = rig.said();
            assert_eq!(said.split_whitespace().count(), count);
            assert!(said.split_whitespace().all(|word| word.starts_with(&format!("s{number}w"))), "{said}");
            assert_eq!(said, rig.kept(&prompt).await);
        });
    }
    crowd.join_all().await;
}

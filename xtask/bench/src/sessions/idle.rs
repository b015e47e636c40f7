//! What a client takes that subscribes to a session in which nothing happens. IO.

use std::time::Duration;

use anyhow::Context;
use futures_util::{StreamExt, future::try_join_all};
use tokio::time::sleep;

use super::{
    Programs, Scale,
    seed::Owned,
    server::{DATABASE, Server},
};
use crate::pod::{
    Figure,
    rig::{free_addresses, write_secret},
    runtime,
};

/// Clients.
const CLIENTS: u32 = 1_000;

/// Sessions that they subscribe to, in turn.
const SESSIONS: u32 = 100;

/// Events in each of their logs, which a client is given first.
const EVENTS: usize = 20;

/// After the last client has come, until memory that was used on the way is free again.
const SETTLE: Duration = Duration::from_secs(2);

/// How long is looked: two rounds of keepalives.
const WATCHED: Duration = Duration::from_secs(30);

/// Runs it.
pub(super) fn run(programs: &Programs, scale: Scale) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(async {
        let folder = tempfile::tempdir()?;
        let root = folder.path().canonicalize()?;
        write_secret(&root.join("secret"))?;
        let owned = Owned::open(&root.join(DATABASE)).await?;
        let mut sessions = Vec::new();
        for _ in 0..scale.count(SESSIONS) {
            sessions.push(owned.session_of(EVENTS).await?.to_string());
        }
        owned.close().await?;
        let [door] = free_addresses();
        let server = Server::start(programs, &root, door).await?;
        // What the first clients take of it stays with it.
        for session in &sessions {
            subscribe(&server, session).await?;
        }
        sleep(SETTLE).await;
        let before = server.resident()?;
        let clients = scale.count(CLIENTS);
        let named = (0..clients as usize).map(|client| &sessions[client % sessions.len()]);
        let streams = try_join_all(named.map(|session| subscribe(&server, session))).await?;
        sleep(SETTLE).await;
        let (resident, used) = (server.resident()?, server.cpu()?);
        sleep(WATCHED).await;
        let used = (server.cpu()? - used) / WATCHED.as_secs_f64() * 100.0;
        drop(streams);
        server.stop().await?;
        let each = (resident - before) * 1024.0 / f64::from(clients);
        Ok(vec![
            Figure::plain("server-memory", "MiB", before),
            Figure::plain("server-memory-client", "KiB/client", each),
            Figure::plain("server-cpu-idle-clients", "% of a core", used),
        ])
    })
}

/// Subscribes, and reads what is in the log.
async fn subscribe(server: &Server, session: &str) -> anyhow::Result<impl Send> {
    let mut body = server.api.stream(session).await?.bytes_stream();
    body.next().await.context("the stream ended")??;
    Ok(body)
}

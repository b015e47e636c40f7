//! From a prompt to its first delta: over the server, from bare opencode, and from an `opencode acp` of its own. IO.

use std::time::Duration;

use berth_testkit::fake_serve::{FakeServe, FakeServeConfig};
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Programs, Scale, acp::Acp, server::Server};
use crate::pod::{
    Figure,
    client::Way,
    figure::Relation,
    rig::{INTERNAL, Pod, free_addresses, start_sidecar, write_secret},
    runtime,
    stand_in::StandInSupervisor,
    statistics::{Pairs, median},
};

/// Rounds; in each of them the ways take turns, and the door and the server run only for theirs.
const ROUNDS: u32 = 10;

/// Counted prompts of each way in a round, after one that warms connections.
const PROMPTS: u32 = 12;

/// Between two prompts: opencode still works for a turn after its end.
const REST: Duration = Duration::from_millis(100);

/// Counted pairs with a fake.
const PAIRS: u32 = 200;

/// What is asked.
const PROMPT: &str = "@stub say:Yes.";

/// What a server may add, in milliseconds.
const ADDED_MAX: f64 = 10.0;

/// How much of the time of an `opencode acp` it may take.
const SHARE_MAX: f64 = 0.1;

/// Runs it.
pub(super) fn run(programs: &Programs, scale: Scale) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(async {
        let fake = with_fake(programs, scale).await?;
        let (bare, acp) = with_opencode(programs, scale).await?;
        Ok(vec![
            Figure::compared(
                "server-first-delta-added",
                "ms",
                fake.medians(),
                (Relation::Added, fake.added()),
            )
            .at_most(ADDED_MAX),
            Figure::compared("server-first-delta", "ms", bare.medians(), (Relation::Added, bare.added()))
                .at_most(ADDED_MAX),
            Figure::compared("server-first-delta-acp", "ms", acp.medians(), (Relation::Ratio, acp.ratio()))
                .at_most(SHARE_MAX),
        ])
    })
}

/// With an opencode that answers at once: what the server and the door add, without the real one's ups and downs.
async fn with_fake(programs: &Programs, scale: Scale) -> anyhow::Result<Pairs> {
    let folder = tempfile::tempdir()?;
    let root = folder.path().canonicalize()?;
    write_secret(&root.join("secret"))?;
    let config = FakeServeConfig {
        password: Some(INTERNAL.into()),
        directory: root.join("work").display().to_string(),
        ..FakeServeConfig::default()
    };
    let fake = FakeServe::bind(([127, 0, 0, 1], 0).into(), config).await?;
    let (address, shutdown) = (fake.address(), CancellationToken::new());
    TaskTracker::new().spawn(fake.run(shutdown.clone()));
    let _shutdown = shutdown.drop_guard();
    let supervisor = StandInSupervisor::start(address).await?;
    let [door, admin] = free_addresses();
    let sidecar = start_sidecar(&programs.pod, &root, [door, admin, supervisor.control]).await?;
    let server = Server::start(programs, &root, door).await?;
    let direct = Way::new(address, INTERNAL)?;
    let (theirs, ours) = (direct.session().await?, server.api.session().await?);
    let (mut bare, mut served) = (direct.subscribe().await?, server.api.events(&ours).await?);
    let mut pairs = Pairs::default();
    for pair in 0..=scale.count(PAIRS) {
        let direct = direct.turn(&mut bare, &theirs, PROMPT).await?.first_delta;
        let served = server.api.turn(&mut served, &ours, PROMPT).await?.first_delta;
        if pair > 0 {
            pairs.push(direct, served);
        }
    }
    drop((bare, served));
    server.stop().await?;
    sidecar.stop().await?;
    Ok(pairs)
}

/// Against bare opencode, and against `opencode acp`.
async fn with_opencode(programs: &Programs, scale: Scale) -> anyhow::Result<(Pairs, Pairs)> {
    let mut pod = Pod::start(&programs.pod).await?;
    let spawned = Acp::new(&programs.pod, &pod.root()?, pod.configuration())?;
    let (mut bare, mut acp) = (Pairs::default(), Pairs::default());
    for round in 0..=scale.count(ROUNDS) {
        pod.close_door().await?;
        let direct = of_bare(&pod.direct, scale).await?;
        let spawned = spawned.first_delta(PROMPT).await?;
        pod.open_door().await?;
        let served = of_server(programs, &pod, scale).await?;
        // The first round warms opencode, and what it keeps on disk.
        if round > 0 {
            bare.push(direct, served);
            acp.push(spawned, served);
        }
    }
    pod.stop().await?;
    Ok((bare, acp))
}

/// The median of some prompts, in a session of their own: opencode becomes slower with each turn of a session.
async fn of_bare(way: &Way, scale: Scale) -> anyhow::Result<f64> {
    let session = way.session().await?;
    let mut events = way.subscribe_to("/event").await?;
    let mut times = Vec::new();
    for prompt in 0..=scale.count(PROMPTS) {
        let turn = way.turn(&mut events, &session, PROMPT).await?;
        if prompt > 0 {
            times.push(turn.first_delta);
        }
        sleep(REST).await;
    }
    Ok(median(&times))
}

/// The same over the server.
async fn of_server(programs: &Programs, pod: &Pod, scale: Scale) -> anyhow::Result<f64> {
    let server = Server::start(programs, &pod.root()?, pod.door_address()).await?;
    let session = server.api.session().await?;
    let mut events = server.api.events(&session).await?;
    let mut times = Vec::new();
    for prompt in 0..=scale.count(PROMPTS) {
        let turn = server.api.turn(&mut events, &session, PROMPT).await?;
        if prompt > 0 {
            times.push(turn.first_delta);
        }
        sleep(REST).await;
    }
    drop(events);
    server.stop().await?;
    Ok(median(&times))
}

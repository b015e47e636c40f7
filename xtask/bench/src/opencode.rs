//! The opencode client, over HTTP on loopback, against opencode's own SDK under node on the same bytes.

use anyhow::{Context, ensure};
use berth_opencode::{ClientConfig, EventStream, OpencodeClient, SessionTranslator, Translation};
use berth_wire::turn::TurnState;
use secrecy::SecretString;
use tokio::runtime::Runtime;

use crate::{
    measure::{Benchmark, Pass, Setting},
    node::Node,
    server::serve,
    turn,
};

const BASELINE: &str = "opencode's SDK under node: events as JSON";

/// Events read and parsed: the same work as the SDK's.
pub(crate) const READER: Benchmark =
    Benchmark { name: "opencode-events", baseline_name: BASELINE, items: turn::FRAMES, prepare: reader };

/// Events read, parsed and translated: the SDK does not do the last.
pub(crate) const TRANSLATOR: Benchmark = Benchmark {
    name: "opencode-translate",
    baseline_name: BASELINE,
    items: turn::FRAMES,
    prepare: translator,
};

fn reader(setting: &Setting) -> anyhow::Result<(Pass, Pass)> {
    let ours = Ours::new()?;
    let node = node(setting, &ours.address)?;
    Ok((Box::new(move || ours.read()), node))
}

fn translator(setting: &Setting) -> anyhow::Result<(Pass, Pass)> {
    let ours = Ours::new()?;
    let node = node(setting, &ours.address)?;
    Ok((Box::new(move || ours.translate()), node))
}

fn node(setting: &Setting, address: &str) -> anyhow::Result<Pass> {
    let sdk = setting.sdk.as_ref().context("where opencode's SDK is installed is not said: --sdk")?;
    let (node, address) = (Node::start(sdk)?, address.to_owned());
    Ok(Box::new(move || node.read(&address)))
}

/// Our client, on one thread as node is.
struct Ours {
    runtime: Runtime,
    client: OpencodeClient,
    address: String,
}

impl Ours {
    fn new() -> anyhow::Result<Self> {
        let address = serve(&turn::frames())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = OpencodeClient::new(ClientConfig::new(&address, SecretString::from("")))?;
        Ok(Self { runtime, client, address })
    }

    fn read(&self) -> anyhow::Result<usize> {
        self.runtime.block_on(async {
            let mut events = self.client.global_events(None).await?;
            let mut seen = 0;
            while let Some(item) = events.next().await {
                seen += usize::from(!std::hint::black_box(item?).event.kind.is_empty());
            }
            Ok(seen)
        })
    }

    fn translate(&self) -> anyhow::Result<usize> {
        self.runtime.block_on(async { translate(self.client.global_events(None).await?).await })
    }
}

async fn translate(mut events: EventStream) -> anyhow::Result<usize> {
    let mut translator = SessionTranslator::new(turn::SESSION);
    translator.begin_turn(turn::PROMPT);
    let (mut seen, mut chunks, mut state) = (0, 0, None);
    while let Some(item) = events.next().await {
        seen += 1;
        for told in translator.apply(&item?.event) {
            match std::hint::black_box(told) {
                Translation::Update(payload) => chunks += usize::from(payload.as_chunk().is_some()),
                Translation::Ended(outcome) => state = Some(outcome.state),
                Translation::Started | Translation::Swallowed | Translation::Abort(_) => {}
            }
        }
    }
    ensure!(state == Some(TurnState::Succeeded), "the turn ended as {state:?}");
    ensure!(chunks == turn::DELTAS, "the log has {chunks} chunks");
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_passes_see_every_event() {
        let ours = Ours::new().unwrap();
        assert_eq!(ours.read().unwrap(), turn::FRAMES);
        assert_eq!(ours.translate().unwrap(), turn::FRAMES);
    }
}

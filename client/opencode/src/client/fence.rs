//! The fence of an owner: what its calls carry, so that a door refuses them once somebody else took the sandbox over. IO.

use std::{fmt, sync::Arc};

use berth_wire::admission::{FenceState, RaiseFence};
use futures_util::future::BoxFuture;
use reqwest::Method;
use serde_json::json;
use tokio::sync::Mutex;

use super::{Answer, Call, OpencodeClient, parse_json};
use crate::error::ClientError;

/// Whoever owns the sandbox under a fence, asked before the client uses it: an owner that was held up, by a paused
/// process or a slow database, may not be the owner any more, and a door that was started anew would not know.
pub trait FenceHolder: fmt::Debug + Send + Sync {
    /// Whether the sandbox is still owned. Asked right before each call that changes something: quick where there is no
    /// doubt.
    fn holds(&self) -> BoxFuture<'_, bool>;

    /// Makes sure of that where ownership is written down. Asked before the fence is raised.
    fn renew(&self) -> BoxFuture<'_, bool>;
}

/// What a fenced client and its clones share.
#[derive(Debug)]
pub(super) struct Fence {
    number: u64,
    holder: Arc<dyn FenceHolder>,
    /// The instance of the door that the fence was raised at, once it was.
    epoch: Mutex<Option<String>>,
}

/// What one call carries.
#[derive(Debug, Clone)]
pub(super) struct Stamp {
    pub(super) epoch: String,
    pub(super) fence: u64,
}

impl OpencodeClient {
    /// A client for the owner of a sandbox: every call that changes something carries this fence, a number from 1. Before
    /// the first one, and when the door was started anew, the fence is raised there. Only a door takes such calls. One
    /// whose holder does not hold the sandbox any more is not sent, and fails with [`ClientError::StaleFence`].
    #[must_use]
    pub fn fenced(mut self, fence: u64, holder: Arc<dyn FenceHolder>) -> Self {
        self.fence = Some(Arc::new(Fence { number: fence, holder, epoch: Mutex::default() }));
        self
    }

    /// Raises the fence at the door, which returns when no call under a lower one is under way any more; nothing for a
    /// client without a fence. [`ClientError::StaleFence`] means that somebody else took the sandbox over. May be
    /// repeated.
    pub async fn raise_fence(&self) -> Result<(), ClientError> {
        let Some(fence) = &self.fence else { return Ok(()) };
        let mut epoch = fence.epoch.lock().await;
        *epoch = Some(self.raise(fence).await?);
        Ok(())
    }

    /// A door that was started anew knows of no fence, and would take any: so the holder makes sure first.
    async fn raise(&self, fence: &Fence) -> Result<String, ClientError> {
        if !fence.holder.renew().await {
            return Err(ClientError::StaleFence);
        }
        let body = json!(RaiseFence { fence: fence.number });
        let call = Call { body: Some(body), ..Call::new(Method::PUT, &["berth", "fence"]) };
        let state: FenceState = parse_json(&self.exchange(&call, None).await?)?;
        Ok(state.epoch)
    }

    /// The stamp for a call; `refused` names the epoch that the door did not know.
    async fn stamp(&self, fence: &Fence, refused: Option<&str>) -> Result<Stamp, ClientError> {
        let mut known = fence.epoch.lock().await;
        let epoch = match known.clone().filter(|epoch| Some(epoch.as_str()) != refused) {
            Some(epoch) => epoch,
            None => known.insert(self.raise(fence).await?).clone(),
        };
        Ok(Stamp { epoch, fence: fence.number })
    }

    /// Sends a call that changes something under the fence. A door that was started anew has not sent it on, so it may be
    /// sent again.
    pub(super) async fn send_fenced(&self, fence: &Fence, call: &Call<'_>) -> Result<Answer, ClientError> {
        let stamp = self.stamp(fence, None).await?;
        match self.send_held(fence, call, &stamp).await {
            Err(ClientError::StaleEpoch) => {
                let stamp = self.stamp(fence, Some(&stamp.epoch)).await?;
                self.send_held(fence, call, &stamp).await
            }
            other => other,
        }
    }

    /// The holder is asked after the fence was raised: whoever takes the sandbox over later raises a higher one first.
    async fn send_held(&self, fence: &Fence, call: &Call<'_>, stamp: &Stamp) -> Result<Answer, ClientError> {
        if !fence.holder.holds().await {
            return Err(ClientError::StaleFence);
        }
        self.exchange(call, Some(stamp)).await
    }
}

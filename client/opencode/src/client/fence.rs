//! The fence of an owner: what its calls carry, so that a door refuses them once somebody else took the sandbox over. IO.

use std::sync::Arc;

use berth_wire::admission::{FenceState, RaiseFence};
use reqwest::Method;
use serde_json::json;
use tokio::sync::Mutex;

use super::{Answer, Call, OpencodeClient, parse_json};
use crate::error::ClientError;

/// What a fenced client and its clones share.
#[derive(Debug, Default)]
pub(super) struct Fence {
    number: u64,
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
    /// the first one, and when the door was started anew, the fence is raised there. Only a door takes such calls.
    #[must_use]
    pub fn fenced(mut self, fence: u64) -> Self {
        self.fence = Some(Arc::new(Fence { number: fence, epoch: Mutex::default() }));
        self
    }

    /// Raises the fence at the door, which returns when no call under a lower one is under way any more; nothing for a
    /// client without a fence. [`ClientError::StaleFence`] means that somebody else took the sandbox over. May be
    /// repeated.
    pub async fn raise_fence(&self) -> Result<(), ClientError> {
        let Some(fence) = &self.fence else { return Ok(()) };
        let mut epoch = fence.epoch.lock().await;
        *epoch = Some(self.raise(fence.number).await?);
        Ok(())
    }

    async fn raise(&self, fence: u64) -> Result<String, ClientError> {
        let body = json!(RaiseFence { fence });
        let call = Call { body: Some(body), ..Call::new(Method::PUT, &["berth", "fence"]) };
        let state: FenceState = parse_json(&self.exchange(&call, None).await?)?;
        Ok(state.epoch)
    }

    /// The stamp for a call; `refused` names the epoch that the door did not know.
    async fn stamp(&self, fence: &Fence, refused: Option<&str>) -> Result<Stamp, ClientError> {
        let mut known = fence.epoch.lock().await;
        let epoch = match known.clone().filter(|epoch| Some(epoch.as_str()) != refused) {
            Some(epoch) => epoch,
            None => known.insert(self.raise(fence.number).await?).clone(),
        };
        Ok(Stamp { epoch, fence: fence.number })
    }

    /// Sends a call that changes something under the fence. A door that was started anew has not sent it on, so it may be
    /// sent again.
    pub(super) async fn send_fenced(&self, fence: &Fence, call: &Call<'_>) -> Result<Answer, ClientError> {
        let stamp = self.stamp(fence, None).await?;
        match self.exchange(call, Some(&stamp)).await {
            Err(ClientError::StaleEpoch) => {
                let stamp = self.stamp(fence, Some(&stamp.epoch)).await?;
                self.exchange(call, Some(&stamp)).await
            }
            other => other,
        }
    }
}

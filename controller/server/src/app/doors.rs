//! A client for each sandbox's door, for reads that need no owner. Does IO.
//!
//! Any replica may read: a `GET` changes nothing, and carries no fence. A client keeps its connections, so it is made
//! once, and anew when the sandbox moved or its password changed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_opencode::{ClientConfig, ClientError, OpencodeClient};
use berth_wire::door::DoorState;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{App, AppError};
use crate::{
    directory::{SandboxAddress, SandboxDirectory},
    http::trace::Trace,
    store::SandboxKey,
};

/// How long a door may take to tell its state.
const STATE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection may take to be made: a list of sandboxes waits for none longer than for a state.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a read waits for another password, where the door does not take the one that is known.
const RENEWAL: Duration = Duration::from_secs(3);
/// How long one call may take. A little shorter than a request, so that what stood in the way can be told.
const CALL_TIMEOUT: Duration = Duration::from_secs(25);

/// The clients, by sandbox.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    clients: Mutex<HashMap<SandboxKey, Held>>,
}

/// A client, and where it leads.
#[derive(Debug)]
struct Held {
    address: SandboxAddress,
    client: OpencodeClient,
}

impl Doors {
    /// The client of a sandbox.
    pub(super) fn client(&self, address: &SandboxAddress) -> Result<OpencodeClient, AppError> {
        let key = SandboxKey { namespace: address.namespace.clone(), name: address.name.clone() };
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = clients.get(&key).filter(|held| held.address.leads_where(address)) {
            return Ok(in_trace(held.client.clone()));
        }
        let client = connect(address).map_err(AppError::Sandbox)?;
        clients.insert(key, Held { address: address.clone(), client: client.clone() });
        Ok(in_trace(client))
    }

    /// Drops the clients of sandboxes that are gone, and their connections.
    fn drop_gone(&self, directory: &dyn SandboxDirectory) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|SandboxKey { namespace, name }, _| !directory.is_gone(namespace, name));
    }

    /// What the door says of its opencode.
    async fn state(&self, address: &SandboxAddress) -> Result<DoorState, AppError> {
        let state = timeout(STATE_TIMEOUT, self.client(address)?.door_state()).await;
        state.unwrap_or(Err(ClientError::Timeout { limit: STATE_TIMEOUT })).map_err(AppError::Sandbox)
    }
}

impl App {
    /// Holds clients of sandboxes only as long as these are there, until `shutdown`.
    pub(crate) async fn follow_directory(self: Arc<Self>, shutdown: CancellationToken) {
        let Some(mut changes) = self.directory.changes() else { return };
        while let Some(Ok(())) = shutdown.run_until_cancelled(changes.changed()).await {
            self.doors.drop_gone(&*self.directory);
        }
    }

    /// Reads at a sandbox's door. Where that does not take the password, or does not know it, the directory is told, and what it finds soon is
    /// used once.
    pub(crate) async fn read_at_door<T, F>(
        &self,
        namespace: &str,
        name: &str,
        read: impl Fn(OpencodeClient) -> F,
    ) -> Result<Result<T, ClientError>, AppError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let address = self.find_sandbox(namespace, name)?;
        let first = read(self.doors.client(&address)?).await;
        if !first.as_ref().is_err_and(ClientError::is_of_the_password) {
            return Ok(first);
        }
        match self.renewed(&address).await {
            Some(address) => Ok(read(self.doors.client(&address)?).await),
            None => Ok(first),
        }
    }

    /// The sandbox with another password or at another place, if the directory finds it there soon.
    async fn renewed(&self, address: &SandboxAddress) -> Option<SandboxAddress> {
        let SandboxAddress { namespace, name, .. } = address;
        let mut changes = self.directory.changes()?;
        self.directory.refused(namespace, name);
        let other = async {
            loop {
                let now = self.directory.find(namespace, name);
                if let Some(now) = now.filter(|now| !now.leads_where(address)) {
                    return Some(now);
                }
                changes.changed().await.ok()?;
            }
        };
        timeout(RENEWAL, other).await.ok().flatten()
    }

    /// What the sandbox's door says of its opencode; nothing when it does not answer.
    pub(super) async fn door_state(&self, address: &SandboxAddress) -> Option<DoorState> {
        match self.doors.state(address).await {
            Err(AppError::Sandbox(error)) if error.is_of_the_password() => {
                self.directory.refused(&address.namespace, &address.name);
                None
            }
            state => state.ok(),
        }
    }
}

/// Calls of a request carry its trace on.
fn in_trace(client: OpencodeClient) -> OpencodeClient {
    match Trace::current() {
        Some(trace) => client.traced(&trace.to_header()),
        None => client,
    }
}

fn connect(address: &SandboxAddress) -> Result<OpencodeClient, ClientError> {
    let mut config = ClientConfig::new(&*address.door_url, address.door_password.clone());
    config.connect_timeout = CONNECT_TIMEOUT;
    config.request_timeout = CALL_TIMEOUT;
    (config.prove, config.pod_uid) = (address.pod_uid.is_some(), address.pod_uid.clone());
    OpencodeClient::new(config)
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;
    use crate::directory::StaticDirectory;

    fn address(url: &str, password: &str) -> SandboxAddress {
        SandboxAddress {
            namespace: "local".to_owned(),
            name: "default".to_owned(),
            directory: "/work".to_owned(),
            aliases: Vec::new(),
            door_url: url.to_owned(),
            door_password: SecretString::from(password),
            pod_uid: None,
        }
    }

    #[test]
    fn a_sandbox_that_is_gone_has_no_client() {
        let doors = Doors::default();
        let stays = address("http://127.0.0.1:1", "a");
        doors.client(&stays).unwrap();
        doors.client(&SandboxAddress { name: "gone".to_owned(), ..stays.clone() }).unwrap();
        doors.drop_gone(&StaticDirectory(vec![stays]));
        let left: Vec<String> = doors.clients.lock().unwrap().keys().map(|key| key.name.clone()).collect();
        assert_eq!(left, ["default"]);
    }

    #[test]
    fn a_sandbox_has_one_client_until_it_moves() {
        let doors = Doors::default();
        let (first, moved) = (address("http://127.0.0.1:1", "a"), address("http://127.0.0.1:2", "a"));
        let rotated = address("http://127.0.0.1:2", "b");
        let held = |doors: &Doors| doors.clients.lock().unwrap().values().next().unwrap().address.clone();
        for (next, expected) in [(&first, &first), (&first, &first), (&moved, &moved), (&rotated, &rotated)] {
            doors.client(next).unwrap();
            assert!(held(&doors).leads_where(expected));
            assert_eq!(doors.clients.lock().unwrap().len(), 1);
        }
    }
}

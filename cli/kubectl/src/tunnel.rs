//! A port of a pod on this machine, through the apiserver. IO.
//!
//! Each connection is one of its own to the pod. Before anything passes, the door at its end proves that it knows the
//! sandbox's password: while the door is down, whatever the agent runs could listen in its place, and would be sent the
//! password with the first request.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use berth_api::layout;
use berth_opencode::DoorProof;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

use crate::error::{PluginError, error_chain};

/// Bound on reaching the pod, and on its door's proof.
const REACH: Duration = Duration::from_secs(20);

/// Most connections at a time; others wait.
const CONNECTIONS: usize = 32;

/// The door of one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    /// Pods of the sandbox's namespace.
    pub(crate) pods: Api<Pod>,
    /// Name of its pod.
    pub(crate) pod: String,
    /// What it must know.
    pub(crate) proof: DoorProof,
}

/// A forwarded port; it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Tunnel {
    /// Where it listens on this machine.
    pub(crate) address: SocketAddr,
    _accepting: JoinSet<()>,
}

impl Tunnel {
    /// Listens on a free port of the loopback interface.
    pub(crate) async fn open(door: Door) -> Result<Self, PluginError> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(PluginError::Listen)?;
        let address = listener.local_addr().map_err(PluginError::Listen)?;
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::new(door)));
        Ok(Self { address, _accepting: accepting })
    }
}

async fn accept(listener: TcpListener, door: Arc<Door>) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    while let Ok(permit) = Arc::clone(&free).acquire_owned().await {
        while connections.try_join_next().is_some() {}
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            Err(error) => {
                tracing::warn!(%error, "a connection was not taken");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let door = Arc::clone(&door);
        connections.spawn(async move {
            if let Err(error) = forward(connection, &door).await {
                tracing::warn!(error = error_chain(&error), "a connection to the sandbox broke");
            }
            drop(permit);
        });
    }
}

async fn forward(mut connection: TcpStream, door: &Door) -> Result<(), PluginError> {
    let port = u16::try_from(layout::DOOR_PORT).expect("it is a port");
    let reached = timeout(REACH, async {
        let reached = door.pods.portforward(&door.pod, &[port]).await;
        let mut forwarder = reached.map_err(PluginError::cluster("forward a port of the pod"))?;
        let stream = forwarder.take_stream(port).expect("it is forwarded, and was not taken before");
        let proved = door.proof.of(TokioIo::new(stream)).await.map_err(PluginError::Door)?;
        Ok((forwarder, proved.into_inner()))
    });
    let late = || PluginError::Late { action: "reach the pod".to_owned(), seconds: REACH.as_secs() };
    let (forwarder, mut stream) = reached.await.map_err(|_| late())??;
    // Either side may break off whenever it likes.
    let _ = copy_bidirectional(&mut connection, &mut stream).await;
    forwarder.abort();
    Ok(())
}

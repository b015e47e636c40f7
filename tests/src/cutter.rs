//! A TCP relay that can cut every connection through it, at once or after a number of bytes.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// The relay. Ends with its value.
#[derive(Debug)]
pub struct Cutter {
    address: SocketAddr,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct Shared {
    /// Changes at each cut; connections of an earlier value end.
    generation: watch::Sender<u64>,
    /// Bytes towards the client until the next cut; `u64::MAX` for none.
    budget: AtomicU64,
    cuts: AtomicU64,
}

impl Cutter {
    /// Relays connections to `upstream`.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
        let address = listener.local_addr().expect("a listener has an address");
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            generation: watch::channel(0).0,
            budget: AtomicU64::new(u64::MAX),
            cuts: AtomicU64::new(0),
        });
        let tasks = TaskTracker::new();
        tasks.spawn(accept(listener, upstream, Arc::clone(&shared), stop.clone(), tasks.clone()));
        Self { address, shared, _stop: stop.drop_guard() }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every connection once `bytes` more have gone to clients: in the middle of whatever is sent then.
    pub fn cut_after(&self, bytes: u64) {
        self.shared.budget.store(bytes, Ordering::SeqCst);
    }

    /// How often connections were cut.
    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn cut(&self) {
        self.budget.store(u64::MAX, Ordering::SeqCst);
        self.cuts.fetch_add(1, Ordering::SeqCst);
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// How many of `length` bytes may pass, and whether the cut is due then.
    fn spend(&self, length: usize) -> (usize, bool) {
        let budget = self.budget.load(Ordering::SeqCst);
        let length_u64 = length as u64;
        if budget == u64::MAX {
            return (length, false);
        }
        if budget > length_u64 {
            self.budget.fetch_sub(length_u64, Ordering::SeqCst);
            return (length, false);
        }
        (usize::try_from(budget).unwrap_or(length), true)
    }
}

async fn accept(
    listener: TcpListener,
    upstream: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let Ok((client, _)) = accepted else { return };
        tasks.spawn(relay(client, upstream, Arc::clone(&shared), stop.clone()));
    }
}

async fn relay(client: TcpStream, upstream: SocketAddr, shared: Arc<Shared>, stop: CancellationToken) {
    let mut generation = shared.generation.subscribe();
    let Ok(server) = TcpStream::connect(upstream).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let down = async {
        let mut buffer = vec![0; 4096];
        while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
            let (pass, cut) = shared.spend(length);
            if to_client.write_all(&buffer[..pass]).await.is_err() {
                return;
            }
            if cut {
                shared.cut();
                return;
            }
        }
    };
    tokio::select! {
        () = down => {}
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
        _ = generation.changed() => {}
        () = stop.cancelled() => {}
    }
}

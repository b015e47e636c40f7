//! A TCP relay that can cut every connection through it, at once or after a number of bytes, and keep an answer back.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
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
    /// What a request begins with whose answer is kept back; none when empty.
    kept_back: &'static str,
    /// Answers that are kept back.
    held: watch::Sender<u64>,
}

impl Cutter {
    /// Relays connections to `upstream`.
    pub async fn start(upstream: SocketAddr) -> Self {
        Self::keeping_back(upstream, "").await
    }

    /// Relays connections to `upstream`, and keeps back, for ever, each answer to a request that begins with this.
    pub async fn keeping_back(upstream: SocketAddr, request: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
        let address = listener.local_addr().expect("a listener has an address");
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            generation: watch::channel(0).0,
            budget: AtomicU64::new(u64::MAX),
            cuts: AtomicU64::new(0),
            kept_back: request,
            held: watch::channel(0).0,
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

    /// Waits until an answer has come and is kept back.
    pub async fn held(&self) {
        let held = self.shared.held.subscribe().wait_for(|held| *held > 0).await.map(drop);
        held.expect("the sender is there");
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
    let keeps = AtomicBool::new(false);
    let up = async {
        let mut buffer = vec![0; 4096];
        while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
            let kept_back = !shared.kept_back.is_empty() && buffer.starts_with(shared.kept_back.as_bytes());
            keeps.fetch_or(kept_back, Ordering::SeqCst);
            if to_server.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; 4096];
        while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
            if keeps.load(Ordering::SeqCst) {
                shared.held.send_modify(|held| *held += 1);
                std::future::pending::<()>().await;
            }
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
        () = up => {}
        _ = generation.changed() => {}
        () = stop.cancelled() => {}
    }
}

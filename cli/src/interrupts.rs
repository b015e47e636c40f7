//! Ctrl-C as a stream. From its start on, the signal no longer ends the process by itself. IO.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{
    FutureExt, Stream, StreamExt,
    future::pending,
    stream::{BoxStream, once, select, unfold},
};
use tokio::signal::unix::{SignalKind, signal};

/// The interrupts of this process, one after the other.
pub struct Interrupts {
    stream: BoxStream<'static, ()>,
}

impl std::fmt::Debug for Interrupts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interrupts").finish_non_exhaustive()
    }
}

impl Interrupts {
    /// SIGINT, which is what Ctrl-C sends.
    pub fn of_process() -> io::Result<Self> {
        let signal = signal(SignalKind::interrupt())?;
        Ok(Self::of(unfold(signal, |mut signal| async move { signal.recv().await.map(|()| ((), signal)) })))
    }

    /// The same, and one more after `limit` that nobody pressed: then the flag is set.
    pub fn of_process_or_after(limit: Duration) -> io::Result<(Self, Arc<AtomicBool>)> {
        let late = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&late);
        let timer = once(async move {
            tokio::time::sleep(limit).await;
            set.store(true, Ordering::Relaxed);
        });
        Ok((Self::of(select(Self::of_process()?.stream, timer)), late))
    }

    /// Interrupts that come from elsewhere, for tests.
    pub fn of(stream: impl Stream<Item = ()> + Send + 'static) -> Self {
        Self { stream: stream.boxed() }
    }

    /// The next one. Dropping the future loses none.
    pub async fn next(&mut self) {
        if self.stream.next().await.is_none() {
            pending::<()>().await;
        }
    }

    /// Forgets those that nobody waited for.
    pub fn forget(&mut self) {
        while self.stream.next().now_or_never().is_some_and(|item| item.is_some()) {}
    }
}

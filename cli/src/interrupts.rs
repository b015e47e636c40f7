//! Ctrl-C as a stream. From its start on, the signal no longer ends the process by itself. IO.

use std::io;

use futures_util::{FutureExt, Stream, StreamExt, future::pending, stream::BoxStream, stream::unfold};
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

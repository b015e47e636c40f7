//! 1 GiB down and up, through the door and directly, between an upstream and a client that do nothing else. IO.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Instant,
};

use anyhow::{Context, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio::task::spawn_blocking;

use super::{
    Figure, Programs,
    figure::Relation,
    process::memory,
    rig::{PASSWORD, free_addresses, start_sidecar, write_secret},
    runtime,
    stand_in::{DOWNLOAD, PIECE, StandIn},
    statistics::Pairs,
};

/// Bytes of a transfer.
const BYTES: u64 = 1 << 30;

/// Counted pairs.
const PAIRS: usize = 7;

#[derive(Debug, Clone, Copy)]
enum Direction {
    Down,
    Up,
}

/// Runs it.
pub(super) fn run(programs: &Programs) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(async {
        let folder = tempfile::tempdir()?;
        write_secret(&folder.path().join("secret"))?;
        let upstream = StandIn::start().await?;
        let [door, admin] = free_addresses();
        let sidecar = start_sidecar(programs, folder.path(), [door, admin, upstream.control]).await?;
        let fresh = memory(sidecar.pid())?.resident;
        let mut figures = Vec::new();
        for (name, direction) in [("download-1-gib", Direction::Down), ("upload-1-gib", Direction::Up)] {
            let mut pairs = Pairs::default();
            for pair in 0..=PAIRS {
                let direct = speed(upstream.address, direction).await?;
                let through = speed(door, direction).await?;
                if pair > 0 {
                    pairs.push(direct, through);
                }
            }
            let ratio = (Relation::Ratio, pairs.ratio());
            figures.push(Figure::compared(name, "MiB/s", pairs.medians(), ratio));
        }
        // The peak since its start.
        let peak = memory(sidecar.pid())?.peak;
        sidecar.stop().await?;
        let grown = (Relation::Added, peak - fresh);
        figures.push(Figure::compared("transfer-memory-peak", "MiB", (fresh, peak), grown));
        Ok(figures)
    })
}

/// MiB in a second.
async fn speed(address: SocketAddr, direction: Direction) -> anyhow::Result<f64> {
    let begun = Instant::now();
    spawn_blocking(move || match direction {
        Direction::Down => download(address),
        Direction::Up => upload(address),
    })
    .await??;
    #[expect(clippy::cast_precision_loss, reason = "a power of two")]
    let mebibytes = (BYTES >> 20) as f64;
    Ok(mebibytes / begun.elapsed().as_secs_f64())
}

fn begin(address: SocketAddr, line: &str, length: u64) -> anyhow::Result<TcpStream> {
    let mut connection = TcpStream::connect(address)?;
    let token = STANDARD.encode(format!("opencode:{PASSWORD}"));
    write!(
        connection,
        "{line} HTTP/1.1\r\nhost: bench\r\nauthorization: Basic {token}\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n"
    )?;
    Ok(connection)
}

fn download(address: SocketAddr) -> anyhow::Result<()> {
    let mut connection = begin(address, &format!("GET {DOWNLOAD}{BYTES}"), 0)?;
    let mut piece = vec![0; PIECE];
    let (mut head, mut seen) = (Vec::new(), None);
    loop {
        let size = connection.read(&mut piece)?;
        if size == 0 {
            break;
        }
        if let Some(seen) = &mut seen {
            *seen += size as u64;
            continue;
        }
        head.extend_from_slice(&piece[..size]);
        if let Some(end) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            seen = Some((head.len() - end - 4) as u64);
        }
    }
    expect_ok(&head)?;
    ensure!(seen == Some(BYTES), "a download had {seen:?} bytes");
    Ok(())
}

fn upload(address: SocketAddr) -> anyhow::Result<()> {
    let mut connection = begin(address, "POST /bench", BYTES)?;
    let piece = vec![b'x'; PIECE];
    for _ in 0..BYTES / PIECE as u64 {
        connection.write_all(&piece)?;
    }
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer)?;
    expect_ok(&answer)
}

fn expect_ok(answer: &[u8]) -> anyhow::Result<()> {
    let line = answer.split(|byte| *byte == b'\r').next().context("no answer")?;
    let line = String::from_utf8_lossy(line);
    ensure!(line.starts_with("HTTP/1.1 200 "), "the answer was {line}");
    Ok(())
}

//! `berth debug capture`: records a live event stream and writes it as a fixture. Does IO.
//!
//! Nothing is written before the end, and then only what is left when secrets and volatile values are replaced.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use berth_opencode::{ClientConfig, ClientError, EventStream, OpencodeClient};
use berth_testkit::fixture::{Surroundings, normalise, to_bytes};
use berth_wire::sse::{SseEvent, SseReader};
use futures_util::FutureExt;
use secrecy::SecretString;
use tokio::time::{Instant, sleep_until};

use super::{note, replay::read};
use crate::{
    error::{CliError, Exit, error_chain},
    interrupts::Interrupts,
    state::read_token,
};

/// Most that is recorded, in bytes of data.
const RECORDING_LIMIT: usize = 256 * 1024 * 1024;
/// opencode loses what it sends within 100 ms of the subscription; and what it sent last takes a moment to arrive.
const SETTLE: Duration = Duration::from_millis(200);

/// `berth debug capture`, checked.
#[derive(Debug, Clone)]
pub struct CaptureConfig {
    /// Where the events are.
    pub source: Source,
    /// The fixture.
    pub output: PathBuf,
    /// What is known of where it is recorded.
    pub surroundings: Surroundings,
}

/// Where the events are.
#[derive(Debug, Clone)]
pub enum Source {
    /// An opencode or a door.
    Live(LiveSource),
    /// A recording that was made otherwise, with `curl -N` for example; `-` is standard input.
    Recorded(PathBuf),
}

/// An opencode or a door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSource {
    /// Its address.
    pub url: String,
    /// File with its password.
    pub password_file: PathBuf,
    /// Only the events of this directory, from `/event`; else all, from `/global/event`.
    pub directory: Option<String>,
    /// How long to record.
    pub limit: Duration,
}

/// Records, and writes the fixture. Fails when the stream broke; what came before is written all the same.
pub async fn capture(config: CaptureConfig) -> Result<Exit, CliError> {
    let CaptureConfig { source, output, mut surroundings } = config;
    let recorded = match source {
        Source::Live(live) => {
            let password = read_token(&live.password_file)?;
            surroundings.secrets.push(password.clone());
            record(&live, password).await?
        }
        Source::Recorded(path) => frames_of(&path)?,
    };
    let bytes = to_bytes(&normalise(&recorded.frames, &surroundings));
    write(&output, &bytes).map_err(|source| CliError::Write { path: output.clone(), source })?;
    note(&format!("{} events in {}", recorded.frames.len(), output.display()));
    Ok(match recorded.broken {
        Some(why) => {
            note(&format!("the stream broke: {why}"));
            Exit::Failed
        }
        None => Exit::Succeeded,
    })
}

/// What was recorded.
#[derive(Default)]
struct Recorded {
    frames: Vec<SseEvent>,
    /// Why it ended early.
    broken: Option<String>,
}

impl Recorded {
    /// The stream ended before the recording was to.
    fn too_early(mut self) -> Self {
        self.broken.get_or_insert_with(|| "it ended before its time".to_owned());
        self
    }
}

async fn record(live: &LiveSource, password: SecretString) -> Result<Recorded, CliError> {
    let mut interrupts = Interrupts::of_process().map_err(CliError::Signals)?;
    let client = OpencodeClient::new(ClientConfig::new(live.url.as_str(), password))?;
    let version = match client.health().await {
        Ok(health) => health.version,
        // Recordings of versions that are not known yet are the point of this tool.
        Err(ClientError::UnsupportedVersion { seen }) => seen,
        Err(error) => return Err(error.into()),
    };
    let mut stream = match &live.directory {
        Some(directory) => client.directory_events(directory).await?,
        None => client.global_events(None).await?,
    };
    let end = Instant::now() + live.limit;
    let mut recorded = Recorded::default();
    tokio::select! {
        () = take(&mut stream, &mut recorded) => return Ok(recorded.too_early()),
        () = tokio::time::sleep(SETTLE) => {}
    }
    note(&format!(
        "recording {version} at {} for {} s; Ctrl-C ends it earlier",
        live.url,
        live.limit.as_secs()
    ));
    tokio::select! {
        () = take(&mut stream, &mut recorded) => return Ok(recorded.too_early()),
        () = sleep_until(end) => {}
        () = interrupts.next() => {}
    }
    // What had been sent by then, and is still on its way. Whether more follows does not matter.
    let _ = tokio::time::timeout(SETTLE, take(&mut stream, &mut recorded)).await;
    Ok(recorded)
}

/// Takes frames until the stream ends. May be dropped at any time.
async fn take(stream: &mut EventStream, recorded: &mut Recorded) {
    let mut size: usize = recorded.frames.iter().map(|frame| frame.data.len()).sum();
    while let Some(frame) = stream.next_frame().await {
        match frame {
            Ok(frame) => {
                size += frame.data.len();
                recorded.frames.push(frame);
            }
            Err(error) => recorded.broken = Some(error_chain(&error)),
        }
        if size > RECORDING_LIMIT {
            recorded.broken = Some(format!("more than {RECORDING_LIMIT} bytes, which is the bound"));
            return;
        }
    }
}

fn frames_of(path: &Path) -> Result<Recorded, CliError> {
    let chunk = Ok::<_, std::convert::Infallible>(read(path)?.into());
    let mut reader = SseReader::new(futures_util::stream::iter([chunk]));
    let mut recorded = Recorded::default();
    // A chunk that is there never makes the reader wait.
    while let Some(frame) = reader.next().now_or_never().flatten() {
        match frame {
            Ok(frame) => recorded.frames.push(frame),
            Err(error) => {
                recorded.broken = Some(error_chain(&error));
                break;
            }
        }
    }
    Ok(recorded)
}

/// Writes beside the file first, so that a fixture is never half there.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(beside, path)
}

//! The streams that real opencodes sent, as `client/opencode` keeps them. Read once.

use std::{fs, path::Path, sync::OnceLock};

use berth_opencode::{GlobalEvent, replay::Recording};
use serde_json::Value;

/// A session of a captured stream.
pub(crate) struct Capture {
    /// Every frame.
    pub(crate) frames: Vec<Value>,
    /// The same, read.
    pub(crate) events: Vec<GlobalEvent>,
    /// The session's id.
    pub(crate) root: String,
    /// Message ids of its prompts.
    pub(crate) prompts: Vec<String>,
}

/// Those of each stream, in order of the files' names: an input names a stream by its place among them.
pub(crate) fn streams() -> &'static [Vec<Capture>] {
    static STREAMS: OnceLock<Vec<Vec<Capture>>> = OnceLock::new();
    STREAMS.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/opencode/tests/captures");
        let entries = fs::read_dir(folder).expect("the captures are there");
        let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "sse"));
        paths.sort();
        paths.iter().map(|path| sessions(path)).collect()
    })
}

fn sessions(path: &Path) -> Vec<Capture> {
    let text = fs::read_to_string(path).expect("a capture is text");
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let frames: Vec<Value> = data.map(|data| serde_json::from_str(data).expect("frames are JSON")).collect();
    let recording = Recording::read(text);
    assert_eq!(recording.events.len(), frames.len(), "every frame is an event");
    let capture = |root: berth_opencode::replay::Root| Capture {
        frames: frames.clone(),
        events: recording.events.clone(),
        root: root.id,
        prompts: root.prompts.into_iter().map(|prompt| prompt.id).collect(),
    };
    recording.roots().into_iter().map(capture).collect()
}

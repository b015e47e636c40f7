//! Which events a subscriber gets: the directory that a request names, as opencode would understand it.
//!
//! Measured on opencode 1.18.33: the directory comes from the query, else from the header, else it is opencode's own,
//! where empty is as good as absent; it is percent-decoded once more when that works; relative ones are taken from
//! opencode's own; links are resolved where the directory is there, and `..` and a last `/` in any case. IO: looks at
//! links.

use std::{
    borrow::Cow,
    path::{Component, Path, PathBuf},
};

use berth_wire::problem::ProblemType;
use http::{Response, request::Parts};
use percent_encoding::percent_decode_str;
use tokio::time::timeout;

use super::query;
use crate::{
    Door,
    refusal::{DoorBody, refuse},
};

/// Header that names a directory.
const DIRECTORY_HEADER: &str = "x-opencode-directory";

/// Which events a subscriber gets.
#[derive(Debug)]
pub(crate) enum Scope {
    /// All, in envelopes.
    Global,
    /// Those of a directory and of the whole server, bare.
    Directory(String),
}

/// The scope of a request for `/event`. One that leans on opencode's own directory waits until that is known: a door
/// that has just started may not have heard of its supervisor yet. Links are resolved where the door sees the directory, which is everywhere in
/// the workspace, since opencode names real paths in its events.
pub(crate) async fn directory_scope(door: &Door, request: &Parts) -> Result<Scope, Response<DoorBody>> {
    if named(request).is_none_or(|named| !Path::new(&named).is_absolute()) {
        let mut serve = door.serve.clone();
        let known = serve.wait_for(|state| !state.directory.as_os_str().is_empty());
        if timeout(door.config.start_wait, known).await.is_err() {
            return Err(refuse(ProblemType::Starting, "opencode's own directory is not known yet."));
        }
    }
    Ok(Scope::Directory(directory(door, request).await))
}

/// The directory that a request names, or opencode's own, by the name that it has in events.
pub(crate) async fn directory(door: &Door, request: &Parts) -> String {
    real(written(door, request)).await
}

/// A directory by its real name, where the door sees it.
pub(crate) async fn real(directory: String) -> String {
    let real = tokio::fs::canonicalize(&directory).await;
    real.map_or(directory, |real| real.to_string_lossy().into_owned())
}

/// The directory as a request writes it; links in it are not looked at.
fn written(door: &Door, request: &Parts) -> String {
    let default = &door.serve.borrow().directory;
    let directory = named(request).map_or_else(|| default.clone(), |named| plain(&default.join(named)));
    directory.to_string_lossy().into_owned()
}

/// The directory as it was given.
fn named(request: &Parts) -> Option<String> {
    let header = || {
        let value = request.headers.get(DIRECTORY_HEADER)?;
        Some(String::from_utf8_lossy(value.as_bytes()))
    };
    let given = |value: &Cow<'_, str>| !value.is_empty();
    let named = query(&request.uri, "directory").filter(given).or_else(|| header().filter(given))?;
    Some(decoded(&named))
}

/// Percent-decoded, unless it has a `%` that begins no escape, or the bytes are no text.
fn decoded(text: &str) -> String {
    let escapes =
        |after: &str| after.len() >= 2 && after.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    if text.split('%').skip(1).all(escapes)
        && let Ok(decoded) = percent_decode_str(text).decode_utf8()
    {
        return decoded.into_owned();
    }
    text.to_owned()
}

/// The path without `.`, `..` and a last `/`, by its words alone.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    fn named_by(query: &str, header: Option<&str>) -> Option<String> {
        let mut request = Request::get(format!("/event{query}"));
        if let Some(header) = header {
            request = request.header(DIRECTORY_HEADER, header);
        }
        named(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn a_directory_is_named_as_opencode_takes_it() {
        let cases = [
            ("", None, None),
            ("?directory=", None, None),
            ("?directory=", Some("/h"), Some("/h")),
            ("?directory=/q", Some("/h"), Some("/q")),
            ("?directory=%2Fa%20b", None, Some("/a b")),
            ("?directory=%252Fa%2520b", None, Some("/a b")),
            ("?directory=/a%25zz", None, Some("/a%zz")),
            ("?directory=/a%2525", None, Some("/a%")),
            ("", Some("%2Fa%2Bb"), Some("/a+b")),
            ("", Some("/a%zz"), Some("/a%zz")),
            ("", Some("/x%2520y"), Some("/x%20y")),
            ("", Some("/%ff"), Some("/%ff")),
            ("", Some("/a%é"), Some("/a%é")),
        ];
        for (query, header, expected) in cases {
            assert_eq!(named_by(query, header).as_deref(), expected, "{query} {header:?}");
        }
    }

    #[test]
    fn a_path_is_made_plain_by_its_words() {
        for (path, expected) in
            [("/a/", "/a"), ("/a/../b/./c", "/b/c"), ("/..", "/"), ("/a/b/..", "/a"), ("/", "/")]
        {
            assert_eq!(plain(Path::new(path)), Path::new(expected), "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_directory_panics(text in "\\PC{0,20}|[%0-9a-fA-F/.]{0,20}") {
            let _ = plain(Path::new(&decoded(&text)));
        }
    }
}

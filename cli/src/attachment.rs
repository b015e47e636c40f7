//! Files that are given along with a prompt. Reads them; what they are is decided by their bytes.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use berth_wire::api::{DATA_URL_MAX, PromptPart};

use crate::error::CliError;

/// The file as a part of a prompt.
pub fn part(path: &Path) -> Result<PromptPart, CliError> {
    let bytes = read(path).map_err(|source| CliError::Read { path: path.to_owned(), source })?;
    if bytes.len() > DATA_URL_MAX {
        let reason =
            format!("larger than {DATA_URL_MAX} bytes; put it where the agent works, and name it there");
        return Err(CliError::BadFile { path: path.to_owned(), reason });
    }
    let Some(mime) = media_type(&bytes) else {
        let reason = "neither text nor an image nor a PDF: models take no other files".to_owned();
        return Err(CliError::BadFile { path: path.to_owned(), reason });
    };
    let filename = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let url = format!("data:{mime};base64,{}", STANDARD.encode(bytes));
    Ok(PromptPart::File { mime: mime.to_owned(), filename, url })
}

/// One byte more than may be sent tells that there are too many.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(DATA_URL_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What the bytes are, of what models take. All text is plain text: opencode shows that to the model as it is.
fn media_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        [b'%', b'P', b'D', b'F', b'-', ..] => Some("application/pdf"),
        _ if !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok() => Some("text/plain"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_tell_what_they_are() {
        let cases: [(&[u8], Option<&str>); 8] = [
            (b"\x89PNG\r\n\x1a\n....", Some("image/png")),
            (b"\xff\xd8\xff\xe0", Some("image/jpeg")),
            (b"GIF89a", Some("image/gif")),
            (b"RIFF\x01\x02\x03\x04WEBPVP8 ", Some("image/webp")),
            (b"%PDF-1.7", Some("application/pdf")),
            ("fn main() {} // für".as_bytes(), Some("text/plain")),
            (b"", Some("text/plain")),
            (b"\x7fELF\0\0", None),
        ];
        for (bytes, mime) in cases {
            assert_eq!(media_type(bytes), mime, "{bytes:?}");
        }
    }

    #[test]
    fn a_file_is_sent_whole_or_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("note.md");
        std::fs::write(&path, "hi").unwrap();
        let PromptPart::File { mime, filename, url } = part(&path).unwrap() else { panic!("a file") };
        assert_eq!((mime.as_str(), filename.as_deref()), ("text/plain", Some("note.md")));
        assert_eq!(url, "data:text/plain;base64,aGk=");
        std::fs::write(&path, vec![b'a'; DATA_URL_MAX + 1]).unwrap();
        assert!(part(&path).unwrap_err().to_string().contains("larger than"));
        std::fs::write(&path, b"\0").unwrap();
        assert!(part(&path).unwrap_err().to_string().contains("neither text"));
        assert!(part(directory.path()).is_err());
    }
}

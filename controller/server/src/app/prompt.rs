//! Checks prompts, and takes apart what is stored beside them. Pure.

use berth_wire::api::{DATA_URL_MAX, ModelChoice, PARTS_MAX, PostMessage, PromptPart, shown_prompt};
use data_url::{DataUrl, mime::Mime};
use percent_encoding::percent_decode_str;
use uuid::Uuid;

use super::{AppError, invalid};
use crate::store::PromptFile;

/// Longest name of a file, an agent, a provider or a model, in characters.
const NAME_MAX: usize = 255;

/// A prompt that may be queued.
#[derive(Debug)]
pub(super) struct Prepared {
    /// As it is shown.
    pub(super) parts: Vec<PromptPart>,
    /// What its `data:` URLs held.
    pub(super) files: Vec<PromptFile>,
    pub(super) model: Option<ModelChoice>,
    pub(super) agent: Option<String>,
}

/// Checks the body of a message for the turn that it is to become, in a session that works in `directory`.
pub(super) fn prepare(turn: Uuid, body: PostMessage, directory: &str) -> Result<Prepared, AppError> {
    let PostMessage { parts, model, agent } = body;
    if parts.is_empty() {
        return Err(invalid("parts", "must have at least one part"));
    }
    if parts.len() > PARTS_MAX {
        return Err(invalid("parts", format!("must have at most {PARTS_MAX} parts")));
    }
    if let Some(model) = &model {
        check_name("model.provider_id", &model.provider_id)?;
        check_name("model.model_id", &model.model_id)?;
    }
    if let Some(agent) = &agent {
        check_name("agent", agent)?;
    }
    let mut files = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        files.extend(check_part(index, part, directory)?);
    }
    Ok(Prepared { parts: shown_prompt(turn, parts), files, model, agent })
}

fn check_name(field: impl Into<String>, name: &str) -> Result<(), AppError> {
    let fits = (1..=NAME_MAX).contains(&name.chars().count()) && !name.contains(char::is_control);
    if fits && !name.trim().is_empty() {
        return Ok(());
    }
    let reason = format!("must be 1 to {NAME_MAX} characters, not blank, without control characters");
    Err(invalid(field, reason))
}

/// A part of a prompt; what its `data:` URL holds.
fn check_part(index: usize, part: &PromptPart, directory: &str) -> Result<Option<PromptFile>, AppError> {
    let field = |name: &str| format!("parts[{index}].{name}");
    match part {
        PromptPart::Text { text } if text.trim().is_empty() => {
            Err(invalid(field("text"), "must not be blank"))
        }
        PromptPart::Text { .. } => Ok(None),
        PromptPart::Agent { name } => check_name(field("name"), name).map(|()| None),
        PromptPart::File { mime, filename, url } => {
            if let Some(name) = filename {
                check_name(field("filename"), name)?;
            }
            let essence = essence_of(mime).ok_or_else(|| {
                invalid(field("mime"), "must be a media type such as image/png, without parameters")
            })?;
            let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
            match scheme.as_str() {
                "data" => {
                    let content = decode(url, &essence).map_err(|reason| invalid(field("url"), reason))?;
                    Ok(Some(PromptFile { part: index, mime: mime.clone(), content }))
                }
                "file" => {
                    check_path(url, directory).map_err(|reason| invalid(field("url"), reason))?;
                    Ok(None)
                }
                _ => Err(invalid(
                    field("url"),
                    "must be a data: URL, or a file:// URL of a path beneath the session's directory",
                )),
            }
        }
    }
}

/// `type/subtype`, if the text is that and nothing more.
fn essence_of(mime: &str) -> Option<String> {
    let parsed: Mime = mime.parse().ok()?;
    let plain = parsed.parameters.is_empty() && mime.len() <= NAME_MAX && mime.trim() == mime;
    plain.then(|| format!("{}/{}", parsed.type_, parsed.subtype))
}

fn decode(url: &str, essence: &str) -> Result<Vec<u8>, String> {
    let parsed = DataUrl::process(url).map_err(|_| "is not a data: URL: data:<media type>;base64,<data>")?;
    let held = parsed.mime_type();
    let held = format!("{}/{}", held.type_, held.subtype);
    if held != essence {
        return Err(format!("holds {held}, but mime says {essence}"));
    }
    let (content, _) = parsed.decode_to_vec().map_err(|_| "its data is not base64")?;
    if content.len() > DATA_URL_MAX {
        let size = content.len();
        return Err(format!(
            "holds {size} bytes: at most {DATA_URL_MAX} fit; put the file into the session's directory"
        ));
    }
    Ok(content)
}

/// The path must be beneath the directory as it is written. Where links in it lead is opencode's to judge.
fn check_path(url: &str, directory: &str) -> Result<(), String> {
    let outside = || format!("must be the file:// URL of a path beneath the session's directory {directory}");
    let rest = url.get(5..).and_then(|rest| rest.strip_prefix("//")).ok_or_else(outside)?;
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    let path = path.strip_prefix("localhost").unwrap_or(path);
    let path = percent_decode_str(path).decode_utf8().map_err(|_| "its path is not UTF-8")?;
    let below = path.strip_prefix(directory.trim_end_matches('/')).and_then(|path| path.strip_prefix('/'));
    let below = below.ok_or_else(outside)?;
    let plain = below.split('/').all(|segment| !matches!(segment, "" | "." | ".."));
    if plain && !path.contains('\0') { Ok(()) } else { Err(outside()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIRECTORY: &str = "/workspace/shop";

    fn file(mime: &str, url: &str) -> PromptPart {
        PromptPart::File { mime: mime.to_owned(), filename: None, url: url.to_owned() }
    }

    fn field_of(part: PromptPart) -> Option<String> {
        match prepare(Uuid::nil(), PostMessage::new(vec![part]), DIRECTORY) {
            Ok(_) => None,
            Err(AppError::Invalid { field, reason }) => Some(format!("{field}: {reason}")),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn files_are_data_or_beneath_the_directory() {
        for good in [
            file("image/png", "data:image/png;base64,AAEC"),
            file("text/plain", "data:text/plain,hello%20there"),
            file("text/plain", "data:text/plain;charset=utf-8;base64,aGVsbG8="),
            file("text/plain", "file:///workspace/shop/a.txt"),
            file("text/plain", "file://localhost/workspace/shop/sub/a%20b.txt?start=1&end=3"),
            file("application/x-directory", "FILE:///workspace/shop/src"),
        ] {
            assert_eq!(field_of(good.clone()), None, "{good:?}");
        }
        for (bad, field, word) in [
            (file("png", "data:image/png;base64,AAEC"), "mime", "media type"),
            (file("text/plain; charset=x", "data:text/plain,x"), "mime", "parameters"),
            (file("image/png", "data:image/gif;base64,AAEC"), "url", "image/gif"),
            (file("image/png", "data:image/png;base64,%%%"), "url", "base64"),
            (file("image/png", "data:image/png"), "url", "data:"),
            (file("image/png", "https://example.test/a.png"), "url", "data:"),
            (file("image/png", ""), "url", "data:"),
            (file("text/plain", "file:///etc/passwd"), "url", "/workspace/shop"),
            (file("text/plain", "file:///workspace/shopping/a"), "url", "/workspace/shop"),
            (file("text/plain", "file:///workspace/shop/../a"), "url", "/workspace/shop"),
            (file("text/plain", "file:///workspace/shop/%2e%2e/a"), "url", "/workspace/shop"),
            (file("text/plain", "file:///workspace/shop/a%00"), "url", "/workspace/shop"),
            (file("text/plain", "file:///workspace/shop/%ff"), "url", "UTF-8"),
            (file("text/plain", "file://host/workspace/shop/a"), "url", "/workspace/shop"),
            (file("text/plain", "file:/workspace/shop/a"), "url", "/workspace/shop"),
        ] {
            let said = field_of(bad.clone()).unwrap_or_else(|| panic!("{bad:?} is refused"));
            assert!(said.starts_with(&format!("parts[0].{field}: ")) && said.contains(word), "{said}");
        }
    }

    #[test]
    fn what_a_data_url_holds_is_bounded() {
        let url = |bytes: usize| format!("data:text/plain,{}", "x".repeat(bytes));
        assert_eq!(field_of(file("text/plain", &url(DATA_URL_MAX))), None);
        assert!(field_of(file("text/plain", &url(DATA_URL_MAX + 1))).unwrap().contains("8388608"));
    }

    #[test]
    fn data_is_taken_out_of_the_prompt() {
        let parts = vec![PromptPart::text("see"), file("image/png", "data:image/png;base64,AAEC")];
        let prepared = prepare(Uuid::nil(), PostMessage::new(parts), DIRECTORY).unwrap();
        let [file] = prepared.files.as_slice() else { panic!("{prepared:?}") };
        assert_eq!((file.part, file.mime.as_str(), &*file.content), (1, "image/png", &[0, 1, 2][..]));
        assert_eq!(file.to_url(), "data:image/png;base64,AAEC");
        assert!(!format!("{:?}", prepared.parts).contains("AAEC"));
    }

    #[test]
    fn names_are_checked() {
        let named = |agent: Option<&str>, model: Option<(&str, &str)>| {
            let mut body = PostMessage::text("x");
            body.agent = agent.map(str::to_owned);
            body.model = model.map(|(provider, model)| ModelChoice {
                provider_id: provider.to_owned(),
                model_id: model.to_owned(),
            });
            prepare(Uuid::nil(), body, DIRECTORY).map(drop).map_err(|error| error.to_string())
        };
        assert!(named(Some("plan"), Some(("acme", "small/1"))).is_ok());
        assert!(named(Some(" "), None).unwrap_err().starts_with("agent: "));
        assert!(named(Some("a\nb"), None).unwrap_err().starts_with("agent: "));
        assert!(named(None, Some(("", "m"))).unwrap_err().starts_with("model.provider_id: "));
        assert!(named(None, Some(("p", &"m".repeat(256)))).unwrap_err().starts_with("model.model_id: "));
        assert!(field_of(PromptPart::Agent { name: String::new() }).unwrap().starts_with("parts[0].name: "));
        assert!(field_of(PromptPart::text(" \n")).unwrap().starts_with("parts[0].text: "));
    }

    proptest! {
        #[test]
        fn no_path_leads_out(tail in "[a./%2e]{0,24}") {
            let url = format!("file:///workspace/shop/{tail}");
            if check_path(&url, DIRECTORY).is_ok() {
                let path = percent_decode_str(&url[7..]).decode_utf8().unwrap();
                prop_assert!(!path.split('/').any(|segment| segment == ".."), "{}", path);
            }
        }

        #[test]
        fn any_url_is_judged_without_a_panic(mime in "\\PC{0,20}", url in "\\PC{0,60}") {
            let _ = field_of(file(&mime, &url));
        }
    }
}

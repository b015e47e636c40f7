//! From the command line to a client of the right server. Reads files, makes no connection.

use std::path::PathBuf;

use berth_client::BerthClient;

use crate::{
    error::CliError,
    state::{StateDir, read_token},
};

/// Which server is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerChoice {
    /// Its address; the local one when absent.
    pub url: Option<String>,
    /// File with its token; the local one when absent.
    pub token_file: Option<PathBuf>,
    /// Where local mode keeps its files.
    pub state: StateDir,
}

/// A client of the chosen server. The local token is only ever sent to the local server. Where that is meant, and not
/// an address, the client follows it: `berth up` may come back at another port.
pub fn client(choice: &ServerChoice) -> Result<BerthClient, CliError> {
    let (url, token_file, follows) = match (&choice.url, &choice.token_file) {
        (Some(url), Some(file)) => (url.clone(), file.clone(), false),
        (Some(url), None) => {
            let note = choice.state.read_note()?;
            if note.is_none_or(|note| note.url.trim_end_matches('/') != url.trim_end_matches('/')) {
                return Err(CliError::usage("--token-file", no_token(url)));
            }
            (url.clone(), choice.state.token(), false)
        }
        (None, file) => {
            let note = choice.state.read_note()?.ok_or(CliError::NoServer)?;
            (note.url, file.clone().unwrap_or_else(|| choice.state.token()), true)
        }
    };
    let client = BerthClient::new(&url, read_token(&token_file)?)?;
    if !follows {
        return Ok(client);
    }
    let state = choice.state.clone();
    Ok(client.following(move || state.read_note().ok().flatten().map(|note| note.url)))
}

fn no_token(url: &str) -> String {
    format!(
        "a token is needed for {url}: name its file here or in BERTH_TOKEN_FILE. Whoever runs that server has it: for a \
         `berth up`, it is the file `token` in its data directory, ~/.local/state/berth"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn choice(directory: &tempfile::TempDir, url: Option<&str>) -> ServerChoice {
        let state = StateDir::new(directory.path());
        ServerChoice { url: url.map(ToOwned::to_owned), token_file: None, state }
    }

    #[test]
    fn without_a_server_the_error_says_how_to_get_one() {
        let directory = tempfile::tempdir().unwrap();
        let error = client(&choice(&directory, None)).unwrap_err();
        assert!(matches!(error, CliError::NoServer), "{error}");
    }

    #[test]
    fn the_local_token_goes_to_the_local_server_only() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("server.json"), r#"{"url":"http://127.0.0.1:7447","pid":1}"#)
            .unwrap();
        fs::write(directory.path().join("token"), "abc").unwrap();
        let base = |url| client(&choice(&directory, url)).map(|client| client.base_url().to_owned());
        assert_eq!(base(None).unwrap(), "http://127.0.0.1:7447/");
        assert_eq!(base(Some("http://127.0.0.1:7447/")).unwrap(), "http://127.0.0.1:7447/");
        let error = base(Some("http://elsewhere.example:7447")).unwrap_err();
        assert!(matches!(error, CliError::Usage { field: "--token-file", .. }), "{error}");
        assert!(error.to_string().contains("BERTH_TOKEN_FILE"), "{error}");
    }
}

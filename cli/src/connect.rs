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

/// A client of the chosen server. The local token is only ever sent to the local server.
pub fn client(choice: &ServerChoice) -> Result<BerthClient, CliError> {
    let (url, token_file) = match (&choice.url, &choice.token_file) {
        (Some(url), Some(file)) => (url.clone(), file.clone()),
        (Some(url), None) => {
            let note = choice.state.read_note()?;
            if note.is_none_or(|note| note.url.trim_end_matches('/') != url.trim_end_matches('/')) {
                let reason = format!("a token is needed for {url}: name its file");
                return Err(CliError::usage("--token-file", reason));
            }
            (url.clone(), choice.state.token())
        }
        (None, file) => {
            let note = choice.state.read_note()?.ok_or(CliError::NoServer)?;
            (note.url, file.clone().unwrap_or_else(|| choice.state.token()))
        }
    };
    let token = read_token(&token_file)?;
    Ok(BerthClient::new(&url, token)?)
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
    }
}

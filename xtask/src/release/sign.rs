//! Signs what was published by its digests, and the checksums of the archives. IO.
//!
//! In the hosted workflow the signer is the workflow itself, by a short-lived certificate, and the signature is entered in
//! a public log. With a key, nothing leaves this machine but what goes to the registry.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use super::{Place, Registry, Sign, archive::CHECKSUMS, tools};
use crate::{process::run_shown, workspace::Workspace};

/// Signs everything. The key's password is the environment's, unless it is given.
pub(super) fn sign(
    workspace: &Workspace,
    place: &Place,
    sign: &Sign,
    password: Option<&str>,
) -> anyhow::Result<()> {
    let cosign = tools::cosign(workspace)?;
    let cosign = || {
        let mut command = Command::new(&cosign);
        command.envs(password.map(|password| ("COSIGN_PASSWORD", password)));
        command
    };
    for reference in published(place)? {
        let mut command = cosign();
        // An image for several processors is signed with each of its parts.
        command.args(["sign", "--recursive"]).args(signer(sign)).args(to(&sign.registry));
        run_shown(command.arg(&reference)).with_context(|| format!("sign {reference}"))?;
    }
    let sums = place.archives().join(CHECKSUMS);
    let mut command = cosign();
    command.arg("sign-blob").args(signer(sign)).arg("--bundle").arg(bundle(place)).arg(sums);
    command.stdout(std::process::Stdio::null());
    run_shown(&mut command).context("sign the checksums")
}

/// What was published, each with its digest.
pub(super) fn published(place: &Place) -> anyhow::Result<Vec<String>> {
    let list = fs::read_to_string(place.published())
        .with_context(|| format!("nothing was published: {}", place.published().display()))?;
    Ok(list.lines().map(str::to_owned).collect())
}

/// The signature of the checksums.
pub(super) fn bundle(place: &Place) -> PathBuf {
    place.archives().join(format!("{CHECKSUMS}.cosign.bundle"))
}

/// How a registry without TLS is talked to.
pub(super) fn to(registry: &Registry) -> Vec<OsString> {
    if registry.plain_http { vec!["--allow-http-registry".into()] } else { Vec::new() }
}

fn signer(sign: &Sign) -> Vec<OsString> {
    let mut words = vec!["--yes".into()];
    if let Some(key) = &sign.key {
        words.extend(with_key(key));
        words.push("--tlog-upload=false".into());
    }
    words
}

/// By a key, secret or public.
pub(super) fn with_key(key: &Path) -> [OsString; 2] {
    ["--key".into(), key.into()]
}

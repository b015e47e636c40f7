//! All steps of a release on this machine: against a registry that is made for it, with a key that is thrown away; and then
//! what somebody who installs it does. IO.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    Build, Place, Registry, Sign,
    archive::CHECKSUMS,
    build, publish, sbom,
    sign::{self, published},
    start, tools,
};
use crate::{
    arch::Arch,
    images::Image,
    process::{capture, run_shown},
    workspace::Workspace,
};

/// Of the key.
const PASSWORD: &str = "rehearsal";

/// Does all steps, and fails where one does or where what came of it is not as it should be.
pub(super) fn rehearse(workspace: &Workspace, version: &str, what: &Build) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let place = Place { version: version.to_owned(), directory: folder.path().join("dist") };
    build::build(workspace, &place, what)?;
    for (image, _, archive) in place.images().filter(|(_, arch, _)| *arch == Arch::LOCAL) {
        start::start(workspace, image, &archive)?;
        println!("{} starts", image.name());
    }
    let server = Server::start(workspace)?;
    let registry = Registry { registry: format!("{}/berth", server.address), plain_http: true };
    publish::publish(workspace, &place, &registry)?;
    sbom::write(workspace, &place)?;
    let keys = Keys::new(workspace, folder)?;
    let sign = Sign { registry, key: Some(keys.secret()) };
    sign::sign(workspace, &place, &sign, Some(PASSWORD))?;
    check_images(workspace, &place, &sign.registry)?;
    check_signatures(workspace, &place, &sign.registry, &keys)?;
    check_archives(&place)?;
    check_sboms(&place)?;
    println!("the release {version} was rehearsed");
    Ok(())
}

/// A registry in memory, which ends with this.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(workspace: &Workspace) -> anyhow::Result<Self> {
        let mut serve = Command::new(tools::crane(workspace)?);
        serve.args(["registry", "serve", "--address", "127.0.0.1:0"]);
        let mut process =
            serve.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().context("the registry")?;
        let errors = process.stderr.take().context("no output")?;
        let mut server = Self { process, address: String::new() };
        let mut lines = BufReader::new(errors).lines();
        for line in lines.by_ref() {
            if let Some((_, port)) = line?.split_once("serving on port ") {
                server.address = format!("127.0.0.1:{port}");
                // It goes on to tell of each request.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(server);
            }
        }
        bail!("the registry ended without saying where it listens")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A pair of keys, gone with the folder.
struct Keys(TempDir);

impl Keys {
    fn new(workspace: &Workspace, folder: TempDir) -> anyhow::Result<Self> {
        let mut generate = Command::new(tools::cosign(workspace)?);
        generate.arg("generate-key-pair").current_dir(folder.path()).env("COSIGN_PASSWORD", PASSWORD);
        capture(&mut generate).context("make a key")?;
        Ok(Self(folder))
    }

    fn secret(&self) -> PathBuf {
        self.0.path().join("cosign.key")
    }

    fn public(&self) -> PathBuf {
        self.0.path().join("cosign.pub")
    }
}

/// Every name stands for all processors that it was built for, and what is there is whole.
fn check_images(workspace: &Workspace, place: &Place, registry: &Registry) -> anyhow::Result<()> {
    let crane = tools::crane(workspace)?;
    for image in Image::ALL {
        let built: Vec<Arch> = place.images().filter(|built| built.0 == image).map(|built| built.1).collect();
        if built.is_empty() {
            continue;
        }
        let reference = format!("{}/{}:{}", registry.registry, image.name(), place.version);
        let index = capture(Command::new(&crane).args(["manifest", "--insecure", &reference]))?;
        let index: Value = serde_json::from_str(&index).with_context(|| reference.clone())?;
        let names: Vec<&str> =
            index["manifests"].as_array().into_iter().flatten().filter_map(processor).collect();
        ensure!(names == built.iter().map(|arch| arch.name()).collect::<Vec<_>>(), "{reference}: {names:?}");
        run_shown(Command::new(&crane).args(["validate", "--insecure", "--remote", &reference]))?;
    }
    Ok(())
}

fn processor(manifest: &Value) -> Option<&str> {
    manifest["platform"]["architecture"].as_str()
}

/// The key's signature is at everything, and another key's is not.
fn check_signatures(
    workspace: &Workspace,
    place: &Place,
    registry: &Registry,
    keys: &Keys,
) -> anyhow::Result<()> {
    let cosign = tools::cosign(workspace)?;
    let verify = |reference: &str, key: &Path| {
        let mut verify = Command::new(&cosign);
        verify.args(["verify", "--insecure-ignore-tlog=true"]).args(sign::to(registry));
        verify.args(sign::with_key(key)).arg(reference);
        capture(&mut verify)
    };
    let others = Keys::new(workspace, tempfile::tempdir()?)?;
    for reference in published(place)? {
        verify(&reference, &keys.public())?;
        ensure!(verify(&reference, &others.public()).is_err(), "{reference}: any key will do");
    }
    let mut verify = Command::new(&cosign);
    verify.args(["verify-blob", "--insecure-ignore-tlog=true"]).args(sign::with_key(&keys.public()));
    verify.arg("--bundle").arg(sign::bundle(place)).arg(place.archives().join(CHECKSUMS));
    capture(&mut verify).context("the signature of the checksums")?;
    Ok(())
}

/// What is downloaded is what was summed up, and the command in it runs.
fn check_archives(place: &Place) -> anyhow::Result<()> {
    capture(Command::new("sha256sum").args(["--check", CHECKSUMS]).current_dir(place.archives()))?;
    let archive = place.archive(Arch::LOCAL);
    if !archive.is_file() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    capture(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(folder.path()))?;
    for name in ["berth", "kubectl-berth"] {
        let said = capture(Command::new(folder.path().join("berth").join(name)).arg("--version"))?;
        ensure!(said.contains(&place.version), "{name} is {said}");
    }
    Ok(())
}

/// There is one for each image, and each has packages.
fn check_sboms(place: &Place) -> anyhow::Result<()> {
    for (image, _, archive) in place.images() {
        let file = place.sbom(&archive);
        let list: Value = serde_json::from_slice(&fs::read(&file)?).with_context(|| image.name())?;
        ensure!(list["spdxVersion"].is_string(), "{} is no SPDX", file.display());
        // Beside the image itself.
        let packages = list["packages"].as_array().map_or(0, Vec::len);
        ensure!(packages > 1, "{} has no packages", file.display());
        println!("{}: {packages} packages", image.name());
    }
    Ok(())
}

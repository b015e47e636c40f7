//! Lists what is in images and archives: Debian's packages by their own records, and crates by what
//! cargo-auditable leaves in programs. IO.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, ensure};

use super::{Place, tools};
use crate::{process::run_shown, workspace::Workspace};

/// One list for each image and archive.
pub(super) fn write(workspace: &Workspace, place: &Place) -> anyhow::Result<()> {
    let syft = tools::syft(workspace)?;
    fs::create_dir_all(place.sboms())?;
    let images: Vec<_> = place.images().map(|(_, _, file)| file).collect();
    ensure!(!images.is_empty(), "no image was built into {}", place.directory.display());
    for image in images {
        list(&syft, place, &format!("oci-archive:{}", image.display()), &image)?;
    }
    // What all programs are built from.
    let lock = workspace.root.join("Cargo.lock");
    list(&syft, place, &format!("file:{}", lock.display()), Path::new("berth-crates"))
}

fn list(syft: &Path, place: &Place, source: &str, of: &Path) -> anyhow::Result<()> {
    let name = of.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let into = place.sbom(of);
    let mut scan = Command::new(syft);
    // It asks nobody whether there is a newer one.
    scan.env("SYFT_CHECK_FOR_APP_UPDATE", "false");
    scan.args(["scan", "--quiet", "--source-name", &name, "--source-version", &place.version]);
    scan.arg("--output").arg(format!("spdx-json={}", into.display())).arg(source);
    run_shown(&mut scan).with_context(|| source.to_owned())?;
    println!("{}", into.display());
    Ok(())
}

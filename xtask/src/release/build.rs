//! Builds images and archives into the place of a release. IO.

use std::{fs, path::Path};

use anyhow::Context;

use super::{Build, Place, archive};
use crate::{
    arch::Arch,
    images::{self, Builder, Recipe},
    pod,
    workspace::Workspace,
};

/// Builds all that is asked for.
pub(super) fn build(workspace: &Workspace, place: &Place, build: &Build) -> anyhow::Result<()> {
    for arch in build.archs() {
        images(workspace, place, build, *arch)?;
        command(workspace, place, build, *arch)?;
    }
    Ok(())
}

fn images(workspace: &Workspace, place: &Place, build: &Build, arch: Arch) -> anyhow::Result<()> {
    let images = build.images(arch);
    let recipe = Recipe { builder: Builder::Buildah, programs: build.programs(arch) };
    let (archives, _held) = images::several(workspace, &images, recipe)?;
    for (image, archive) in images.iter().zip(archives) {
        copy(&archive, &place.image(*image, arch))?;
        // The cache keeps what tests want.
        fs::remove_file(archive)?;
    }
    Ok(())
}

fn command(workspace: &Workspace, place: &Place, build: &Build, arch: Arch) -> anyhow::Result<()> {
    let programs = pod::static_programs(workspace, build.programs(arch), &["berth-cli"])?;
    let program = programs.first().context("no program was built")?;
    let archive = place.archive(arch);
    fs::create_dir_all(place.archives())?;
    archive::write(workspace, program, &archive)?;
    println!("{}", archive.display());
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to.parent().context("no parent")?)?;
    fs::copy(from, to).with_context(|| to.display().to_string())?;
    println!("{}", to.display());
    Ok(())
}

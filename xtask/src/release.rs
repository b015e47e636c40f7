//! Makes and publishes what a release is: images, the chart, archives of the command, lists of what is in them, and
//! signatures. The hosted workflow `release` runs these steps, and `rehearse` all of them here, against a registry of its
//! own. Told in docs/releasing.md.
//!
//! Everything goes through one directory ([`Place`]): what is built in several places is brought together there.

mod archive;
mod build;
mod publish;
mod rehearse;
mod sbom;
mod sign;
mod start;
mod tools;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};

use crate::{
    arch::Arch,
    images::{self, Image},
    pod::{POD_PROFILE, Way},
    workspace::Workspace,
};

/// Which step, and of which release.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    step: Step,
    /// Version to release, without a `v`; the workspace's own, which a release's must be, when absent.
    #[arg(long, global = true)]
    version: Option<String>,
    /// Where everything is put together; emptied by nobody.
    #[arg(long, global = true, default_value = "dist")]
    directory: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Step {
    /// Builds images and the archive of the command.
    Build(Build),
    /// Pushes the images that were built, each for all its processors under one name, and the chart.
    Publish(Registry),
    /// Lists what is in the images and the archives, as SPDX.
    Sbom,
    /// Signs what was published, and the checksums of the archives.
    Sign(Sign),
    /// Does all of this here: against a registry of its own, with a key that is thrown away, and checks what came of it.
    Rehearse(Build),
}

/// What is built.
#[derive(Debug, Clone, Args)]
struct Build {
    /// Processors; this machine's when none is named.
    #[arg(long = "arch", value_enum)]
    archs: Vec<Arch>,
    /// Images; all when none is named. That of sandboxes is built on a machine with its processor only.
    #[arg(long = "image", value_enum)]
    images: Vec<Image>,
    /// Programs as for tests.
    #[arg(long)]
    quick: bool,
}

/// Where it is published.
#[derive(Debug, Clone, Args)]
struct Registry {
    /// The registry, and what names begin with there: `ghcr.io/owner`.
    #[arg(long)]
    registry: String,
    /// It has no TLS: one on this machine.
    #[arg(long)]
    plain_http: bool,
}

/// By whom it is signed.
#[derive(Debug, Clone, Args)]
struct Sign {
    #[command(flatten)]
    registry: Registry,
    /// File with a private key, whose password is in `COSIGN_PASSWORD`; without one it is signed by the identity that the
    /// workflow runs as, in public.
    #[arg(long)]
    key: Option<PathBuf>,
}

impl Build {
    fn archs(&self) -> &[Arch] {
        if self.archs.is_empty() { &[Arch::LOCAL] } else { &self.archs }
    }

    fn images(&self, arch: Arch) -> Vec<Image> {
        let all: Vec<Image> =
            Image::ALL.into_iter().filter(|image| arch == Arch::LOCAL || *image != Image::Sandbox).collect();
        if self.images.is_empty() { all } else { self.images.clone() }
    }

    const fn programs(&self, arch: Arch) -> Way {
        let profile = if self.quick { images::QUICK } else { POD_PROFILE };
        Way { arch, profile, is_auditable: true }
    }
}

/// The files of a release.
#[derive(Debug, Clone)]
struct Place {
    version: String,
    directory: PathBuf,
}

impl Place {
    /// An image for one processor, as an OCI archive.
    fn image(&self, image: Image, arch: Arch) -> PathBuf {
        self.directory.join("images").join(format!("{}-{}.tar", image.name(), arch.name()))
    }

    /// The command for one processor.
    fn archive(&self, arch: Arch) -> PathBuf {
        self.archives().join(format!("berth-{}-linux-{}.tar.gz", self.version, arch.name()))
    }

    /// What people download.
    fn archives(&self) -> PathBuf {
        self.directory.join("archives")
    }

    /// Lists of what is in something.
    fn sboms(&self) -> PathBuf {
        self.directory.join("sbom")
    }

    /// What is in an image or an archive, by the file's name.
    fn sbom(&self, of: &Path) -> PathBuf {
        let name = of.file_name().unwrap_or_default().to_string_lossy();
        let name = name.trim_end_matches(".gz").trim_end_matches(".tar");
        self.sboms().join(format!("{name}.spdx.json"))
    }

    /// What was published.
    fn published(&self) -> PathBuf {
        self.directory.join("published.txt")
    }

    /// Images that were built, in order.
    fn images(&self) -> impl Iterator<Item = (Image, Arch, PathBuf)> {
        let all = Image::ALL.into_iter().flat_map(|image| Arch::ALL.map(|arch| (image, arch)));
        let files = all.map(|(image, arch)| (image, arch, self.image(image, arch)));
        files.filter(|(_, _, file)| file.is_file())
    }
}

/// Does the step.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let place = Place {
        version: version(workspace, arguments.version.as_deref())?,
        directory: std::path::absolute(&arguments.directory)?,
    };
    match &arguments.step {
        Step::Build(build) => build::build(workspace, &place, build)?,
        Step::Publish(registry) => publish::publish(workspace, &place, registry)?,
        Step::Sbom => sbom::write(workspace, &place)?,
        Step::Sign(sign) => sign::sign(workspace, &place, sign, None)?,
        Step::Rehearse(build) => rehearse::rehearse(workspace, &place.version, build)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The version that the workspace has; another one is refused, since the programs say which they are.
fn version(workspace: &Workspace, given: Option<&str>) -> anyhow::Result<String> {
    let manifest = fs::read_to_string(workspace.root.join("Cargo.toml"))?;
    let own = own_version(&manifest).context("Cargo.toml has no version")?;
    if let Some(given) = given {
        ensure!(given == own, "Cargo.toml says that this is {own}, and not {given}");
    }
    Ok(own.to_owned())
}

/// Of `[workspace.package]`.
fn own_version(manifest: &str) -> Option<&str> {
    let package = manifest.split_once("[workspace.package]")?.1;
    package.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_workspaces() {
        let manifest =
            "[a]\nversion = \"9.9.9\"\n[workspace.package]\nedition = \"2024\"\nversion = \"1.2.3\"\n";
        assert_eq!(own_version(manifest), Some("1.2.3"));
        assert_eq!(own_version("[package]\nversion = \"1.2.3\"\n"), None);
    }

    #[test]
    fn what_was_built_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place { version: "1.2.3".to_owned(), directory: directory.path().to_owned() };
        fs::create_dir(directory.path().join("images")).unwrap();
        for (image, arch) in [(Image::Sandbox, Arch::Amd64), (Image::Sidecar, Arch::Arm64)] {
            fs::write(place.image(image, arch), "").unwrap();
        }
        let found: Vec<_> = place.images().map(|(image, arch, _)| (image, arch)).collect();
        assert_eq!(found, [(Image::Sidecar, Arch::Arm64), (Image::Sandbox, Arch::Amd64)]);
        let names = [place.archive(Arch::Arm64), place.image(Image::Sidecar, Arch::Amd64)];
        let names = names.map(|file| place.sbom(&file).file_name().unwrap().to_str().unwrap().to_owned());
        assert_eq!(names, ["berth-1.2.3-linux-arm64.spdx.json", "berth-sidecar-amd64.spdx.json"]);
    }
}

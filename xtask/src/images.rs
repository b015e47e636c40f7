//! Builds images from Containerfiles: with buildah, without a daemon, or with Docker where that is.
//!
//! Each context is put together in the cache: the Containerfile of `deploy/images/<name>` and the files that it copies,
//! so that one image never waits for, or holds, what only another needs.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};

use crate::{
    arch::Arch,
    packages::{self, CERTIFICATES},
    pod::{self, Way},
    process::{capture, run_shown},
    workspace::Workspace,
};

/// What `berth-sandbox` is built on, and the suite of Debian that stands in for it where no registry is asked.
const BASE: (&str, &str) = ("docker.io/library/debian:bookworm-slim", "bookworm");

/// Cargo's profile for images of tests.
pub(crate) const QUICK: &str = "dev";

/// An image of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Image {
    /// The door, as the native sidecar of a pod.
    Sidecar,
    /// Operator and session server.
    Controller,
    /// The scripted model and the fake opencode.
    Testkit,
    /// opencode under its supervisor, with tools.
    Sandbox,
}

/// Which images, and with what in them.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Images to build; all when none is named.
    #[arg(value_enum)]
    images: Vec<Image>,
    /// Programs as for tests: built in a fraction of the time, and ten times as large.
    #[arg(long)]
    quick: bool,
    /// Build with Docker instead of buildah, which also fetches the base instead of making it.
    #[arg(long)]
    docker: bool,
}

/// What builds images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Builder {
    Buildah,
    Docker,
}

/// How images are built.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recipe {
    /// By what.
    pub(crate) builder: Builder,
    /// The programs in them.
    pub(crate) programs: Way,
}

impl Recipe {
    /// For this machine, with buildah.
    fn local(profile: &'static str) -> Self {
        Self { builder: Builder::Buildah, programs: Way::local(profile) }
    }

    /// Tells archives apart that are not for this machine, or not for its tests.
    fn suffix(self) -> String {
        let Way { arch, is_auditable, .. } = self.programs;
        let arch = if arch == Arch::LOCAL { String::new() } else { format!("-{}", arch.name()) };
        if is_auditable { format!("{arch}-release") } else { arch }
    }
}

/// Builds the images, and prints for each its name, archive and size.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let images = if arguments.images.is_empty() { Image::value_variants() } else { &arguments.images };
    let profile = if arguments.quick { QUICK } else { pod::POD_PROFILE };
    let builder = if arguments.docker { Builder::Docker } else { Builder::Buildah };
    let (archives, _held) = several(workspace, images, Recipe { builder, ..Recipe::local(profile) })?;
    for (image, archive) in images.iter().zip(archives) {
        let size = fs::metadata(&archive)?.len() / 1024;
        println!("{} {} {size} KiB", image.reference(), archive.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds all images and gives their archives, which stay as they are while the file is held.
pub(crate) fn all(workspace: &Workspace, profile: &'static str) -> anyhow::Result<(Vec<PathBuf>, fs::File)> {
    several(workspace, Image::value_variants(), Recipe::local(profile))
}

/// The same with some images, in their order.
pub(crate) fn several(
    workspace: &Workspace,
    images: &[Image],
    recipe: Recipe,
) -> anyhow::Result<(Vec<PathBuf>, fs::File)> {
    packages::ensure(workspace, &packages::OF_PROGRAMS)?;
    if recipe.builder == Builder::Buildah {
        packages::ensure(workspace, &packages::OF_IMAGES)?;
    }
    let lock = lock(workspace)?;
    let build = |image: &Image| image.build(workspace, recipe).with_context(|| image.name());
    Ok((images.iter().map(build).collect::<anyhow::Result<_>>()?, lock))
}

/// Contexts and archives.
fn home(workspace: &Workspace) -> PathBuf {
    workspace.cache.join("images")
}

/// Contexts and archives have one place for all who build.
fn lock(workspace: &Workspace) -> anyhow::Result<fs::File> {
    fs::create_dir_all(home(workspace))?;
    let lock = fs::File::create(home(workspace).join("lock"))?;
    lock.lock()?;
    Ok(lock)
}

impl Image {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Sidecar, Self::Controller, Self::Testkit, Self::Sandbox];

    /// As its Containerfile's directory is called.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| format!("berth-{}", value.get_name()))
    }

    /// By this name a node has it once its archive is loaded.
    fn reference(self) -> String {
        format!("localhost/{}:dev", self.name())
    }

    fn build(self, workspace: &Workspace, recipe: Recipe) -> anyhow::Result<PathBuf> {
        let name = self.name();
        let home = home(workspace);
        let context = home.join(&name);
        // What an earlier build was made of must not get into this one.
        if context.exists() {
            fs::remove_dir_all(&context)?;
        }
        fs::create_dir_all(&context)?;
        let containerfile = workspace.root.join("deploy/images").join(&name).join("Containerfile");
        copy(&containerfile, &context.join("Containerfile"))?;
        self.gather(workspace, recipe, &context)?;
        let of = recipe.suffix();
        let archive = home.join(format!("{name}{of}.tar"));
        let stamp = home.join(format!("{name}{of}.sources"));
        let sources = format!("{:?} {}", recipe.builder, hash(&context)?);
        let is_built = archive.is_file() && fs::read_to_string(&stamp).is_ok_and(|built| built == sources);
        if !is_built {
            self.write(workspace, recipe, &context, &archive)?;
            fs::write(stamp, sources)?;
        }
        fs::remove_dir_all(&context)?;
        Ok(archive)
    }

    /// Builds what is in `context`.
    fn write(
        self,
        workspace: &Workspace,
        recipe: Recipe,
        context: &Path,
        archive: &Path,
    ) -> anyhow::Result<()> {
        match recipe.builder {
            Builder::Buildah => {
                if self == Self::Sandbox {
                    // Its Containerfile runs programs of the image.
                    ensure!(
                        recipe.programs.arch == Arch::LOCAL,
                        "it is built on a machine with such a processor"
                    );
                    make_base(workspace)?;
                }
                build(workspace, context, &self.reference(), recipe.programs.arch, archive)
            }
            Builder::Docker => build_with_docker(workspace, context, &self.reference(), archive),
        }
    }

    /// Puts what the Containerfile copies into its context.
    fn gather(self, workspace: &Workspace, recipe: Recipe, context: &Path) -> anyhow::Result<()> {
        let programs = |package: &str| pod::static_programs(workspace, recipe.programs, &[package]);
        match self {
            Self::Sidecar => {
                copy(Path::new(CERTIFICATES), &context.join("ca-certificates.crt"))?;
                copy_into(context, &programs("berth-sidecar")?)
            }
            Self::Controller => {
                copy(Path::new(CERTIFICATES), &context.join("ca-certificates.crt"))?;
                copy_into(context, &programs("berth-controller")?)
            }
            Self::Testkit => {
                copy_into(context, &programs("berth-testkit")?)?;
                copy_into(context, &programs("berth-serve")?)
            }
            Self::Sandbox => {
                // The pinned one, whatever this machine's tests use: its configuration directory is beside it.
                let mut install = workspace.command("deploy/opencode/install.sh");
                let opencode = capture(install.env_remove("BERTH_OPENCODE"))?;
                let opencode = PathBuf::from(opencode.trim());
                copy_into(context, &programs("berth-serve")?)?;
                copy_into(context, std::slice::from_ref(&opencode))?;
                // <cache>/opencode/<version>/node_modules/<package>/bin/opencode
                let installed =
                    opencode.ancestors().nth(4).context("opencode is not where it is installed")?;
                copy_configuration(workspace, &installed.join("config"), context)
            }
        }
    }
}

/// Of all files below a directory, with their names: what an image was built of need not be built again.
fn hash(directory: &Path) -> anyhow::Result<String> {
    let mut hasher = DefaultHasher::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        let mut entries: Vec<_> = fs::read_dir(&directory)?.collect::<Result<_, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            entry.path().hash(&mut hasher);
            if entry.file_type()?.is_dir() {
                waiting.push(entry.path());
            } else if entry.file_type()?.is_symlink() {
                fs::read_link(entry.path())?.hash(&mut hasher);
            } else {
                fs::read(entry.path())?.hash(&mut hasher);
            }
        }
    }
    Ok(format!("{:016x}", hasher.finish()))
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(())
}

fn copy_into(directory: &Path, files: &[PathBuf]) -> anyhow::Result<()> {
    for file in files {
        copy(file, &directory.join(file.file_name().context("no file")?))?;
    }
    Ok(())
}

/// What the installer put into opencode's configuration directory.
const CONFIGURATION: [&str; 4] = ["node_modules", "package.json", "package-lock.json", ".gitignore"];

/// Copies the configuration directory as it was installed: an opencode that ran with it leaves files of its own there.
fn copy_configuration(workspace: &Workspace, from: &Path, context: &Path) -> anyhow::Result<()> {
    let into = context.join("config/opencode");
    fs::create_dir_all(&into)?;
    let mut copy = workspace.command("cp");
    let files = CONFIGURATION.map(|name| from.join("opencode").join(name));
    run_shown(copy.arg("--recursive").args(files).arg(into))
}

/// Makes the base image from Debian's packages, once.
fn make_base(workspace: &Workspace) -> anyhow::Result<()> {
    let (name, suite) = BASE;
    let _lock = lock_store(workspace)?;
    if capture(buildah(workspace).args(["inspect", "--type=image", name])).is_ok() {
        return Ok(());
    }
    eprintln!("making {name} from Debian's packages, once");
    let context = workspace.cache.join("images/debian");
    if context.exists() {
        fs::remove_dir_all(&context)?;
    }
    fs::create_dir_all(&context)?;
    let mut debootstrap = workspace.command("unshare");
    // It mounts, and this must not be seen outside; and what it prints is for nobody.
    debootstrap.args(["--mount", "--", "debootstrap", "--variant=minbase", suite]).arg(context.join("root"));
    capture(&mut debootstrap).context("debootstrap makes the base image")?;
    fs::write(context.join("Containerfile"), "FROM scratch\nCOPY root /\nCMD [\"bash\"]\n")?;
    capture(buildah(workspace).args(["build", "--pull-never", "--tag", name]).arg(&context))?;
    Ok(fs::remove_dir_all(context)?)
}

/// Builds the image that `directory`/Containerfile describes, and writes it to `archive`.
pub(crate) fn build(
    workspace: &Workspace,
    directory: &Path,
    name: &str,
    arch: Arch,
    archive: &Path,
) -> anyhow::Result<()> {
    let _lock = lock_store(workspace)?;
    let mut build = buildah(workspace);
    // A fixed time, so that the same content is the same image.
    build.args(["build", "--pull-never", "--timestamp=0", "--arch", arch.name(), "--tag", name]);
    build.arg(directory);
    capture(&mut build).context("images are built with buildah")?;
    let new = archive.with_extension("new");
    // buildah adds to an archive that is there.
    if new.exists() {
        fs::remove_file(&new)?;
    }
    capture(buildah(workspace).args(["push", name]).arg(format!("oci-archive:{}:{name}", new.display())))?;
    ensure!(new.is_file(), "{} was not written", new.display());
    fs::rename(&new, archive).with_context(|| archive.display().to_string())?;
    // The archive is what is wanted, and nothing of the image is used when it is built again.
    capture(buildah(workspace).args(["rmi", name]))?;
    tidy(workspace)
}

/// One who builds at a time: what is left over is told by nobody using it.
pub(crate) fn lock_store(workspace: &Workspace) -> anyhow::Result<fs::File> {
    let directory = workspace.cache.join("buildah");
    fs::create_dir_all(&directory)?;
    let lock = fs::File::create(directory.join("lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Removes what builds left that were killed: containers that they worked in, and images without a name.
pub(crate) fn tidy(workspace: &Workspace) -> anyhow::Result<()> {
    capture(buildah(workspace).args(["rm", "--all"]))?;
    capture(buildah(workspace).args(["rmi", "--prune"]))?;
    Ok(())
}

/// The same with Docker.
fn build_with_docker(
    workspace: &Workspace,
    directory: &Path,
    name: &str,
    archive: &Path,
) -> anyhow::Result<()> {
    let mut build = workspace.command("docker");
    build.args(["build", "--tag", name, "--file"]).arg(directory.join("Containerfile")).arg(directory);
    // An attestation is another manifest in the archive, whose layers are not there for a node that loads it.
    run_shown(build.env("BUILDX_NO_DEFAULT_ATTESTATIONS", "1").stdout(std::io::stderr()))?;
    run_shown(workspace.command("docker").args(["save", "--output"]).arg(archive).arg(name))
}

/// buildah with its storage in the cache, in a form that needs nothing of the machine.
pub(crate) fn buildah(workspace: &Workspace) -> Command {
    let mut buildah = workspace.command("buildah");
    for (option, directory) in [("--root", "storage"), ("--runroot", "run")] {
        buildah.arg(option).arg(workspace.cache.join("buildah").join(directory));
    }
    buildah.args(["--storage-driver", "vfs"]).env("BUILDAH_ISOLATION", "chroot");
    buildah
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_has_a_containerfile_and_none_runs_as_root() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/images");
        for image in Image::value_variants() {
            let text = fs::read_to_string(root.join(image.name()).join("Containerfile")).unwrap();
            let users: Vec<&str> = text.lines().filter(|line| line.starts_with("USER ")).collect();
            // A sandbox's is the one that its pod runs as, so that tools find a name for it.
            let expected = if *image == Image::Sandbox { "USER 1000:1000" } else { "USER 65532:65532" };
            assert_eq!(users, [expected], "{}", image.name());
        }
        assert_eq!(fs::read_dir(root).unwrap().count(), Image::value_variants().len());
    }

    #[test]
    fn all_that_is_deployed_is_in_one_list() {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
        let list = fs::read_to_string(deploy.join("kustomization.yaml")).unwrap();
        let mut manifests = 0;
        for directory in ["crds", "operator", "server"] {
            for entry in fs::read_dir(deploy.join(directory)).unwrap() {
                let file = entry.unwrap().file_name();
                let line = format!("  - {directory}/{}\n", file.display());
                assert!(list.contains(&line), "{line}");
                manifests += 1;
            }
        }
        assert_eq!(list.matches("  - ").count(), manifests);
    }

    #[test]
    fn the_hash_tells_of_every_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("b")).unwrap();
        let mut seen = vec![hash(directory.path()).unwrap()];
        fs::write(path("b/one"), "1").unwrap();
        seen.push(hash(directory.path()).unwrap());
        fs::write(path("b/one"), "2").unwrap();
        seen.push(hash(directory.path()).unwrap());
        fs::rename(path("b/one"), path("b/two")).unwrap();
        seen.push(hash(directory.path()).unwrap());
        std::os::unix::fs::symlink("two", path("b/one")).unwrap();
        seen.push(hash(directory.path()).unwrap());
        assert_eq!(hash(directory.path()).unwrap(), seen[4]);
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 5);
    }

    #[test]
    fn the_base_is_what_the_containerfile_names() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/images/berth-sandbox/Containerfile");
        assert!(fs::read_to_string(path).unwrap().contains(&format!("FROM {}\n", BASE.0)));
    }
}

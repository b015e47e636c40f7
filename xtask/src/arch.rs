//! Processors that programs and images are built for, and what each is called elsewhere. Pure.

use clap::ValueEnum;

/// A processor, by the name that images have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arch {
    /// 64 bits of Intel and AMD.
    Amd64,
    /// 64 bits of ARM.
    Arm64,
}

impl Arch {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// This machine's.
    pub(crate) const LOCAL: Self = if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::Amd64 };

    /// As images and Debian call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Rust's name for it, with the C library linked in.
    pub(crate) const fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-musl",
            Self::Arm64 => "aarch64-unknown-linux-musl",
        }
    }
}

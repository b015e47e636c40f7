//! `berth completions` and `berth man`, checked. Pure.

use crate::{
    args::{CompletionsArgs, ManArgs},
    shell::{CompletionsConfig, ManConfig},
};

pub(super) fn completions(args: &CompletionsArgs) -> CompletionsConfig {
    CompletionsConfig { shell: args.shell }
}

pub(super) fn man(args: ManArgs) -> ManConfig {
    match args.output {
        Some(directory) => ManConfig::Directory(directory),
        None => ManConfig::Page(args.command),
    }
}

//! `berth up`, checked. Looks whether directories exist; else pure.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Component, Path, PathBuf},
};

use berth_server::Limits;

use super::{DEFAULT_SANDBOX, Environment, Streams, sandbox_name, shape, state_dir};
use crate::{
    args::{PROVIDER_VARIABLES, UpArgs},
    error::CliError,
    up::{
        DetachConfig, Hint, LocalConfig, Model, OpencodeChoice, SandboxSpec, UpConfig,
        binary::pinned_directory,
    },
};

/// Most sandboxes of one local mode: each opencode takes about 0.5 GB.
const SANDBOX_LIMIT: usize = 64;

pub(super) fn up(args: &UpArgs, environment: &Environment, streams: Streams) -> Result<UpConfig, CliError> {
    let cache = cache(environment)?;
    let state = state_dir(args.data.clone(), environment)?;
    let local = LocalConfig {
        log: args.detached.then(|| state.log()),
        state,
        sandboxes: sandboxes(args, environment)?,
        model: model(args, environment, &cache)?,
        program: PathBuf::new(),
        port: args.port,
        inherited: environment.variables().clone(),
        limits: Limits::default(),
    };
    let opencode = opencode(args.opencode.as_deref(), environment, &cache);
    Ok(UpConfig { local, opencode, hint: hint(args, environment), shape: shape(environment, streams) })
}

/// `berth up --detach`: what can be checked is checked here, where somebody reads the answer.
pub(super) fn detach(
    args: UpArgs,
    environment: &Environment,
    streams: Streams,
) -> Result<DetachConfig, CliError> {
    let checked = up(&args, environment, streams)?;
    checked.opencode.find()?;
    Ok(DetachConfig {
        state: checked.local.state,
        program: environment.program.clone(),
        hint: checked.hint,
        shape: checked.shape,
        arguments: in_background(args),
    })
}

/// The command line of the process in the background.
pub(super) fn in_background(args: UpArgs) -> Vec<OsString> {
    let UpArgs { directory, sandbox, detach: _, detached: _, scripted, port, opencode, pass_env, data } =
        args;
    let mut line: Vec<OsString> = vec!["up".into(), "--detached".into(), format!("--port={port}").into()];
    let mut option = |name: &str, value: OsString| {
        let mut word = OsString::from(name);
        word.push("=");
        word.push(value);
        line.push(word);
    };
    for sandbox in sandbox {
        option("--sandbox", sandbox.into());
    }
    for name in pass_env {
        option("--pass-env", name.into());
    }
    for (name, path) in [("--opencode", opencode), ("--data", data)] {
        if let Some(path) = path {
            option(name, path.into());
        }
    }
    if scripted {
        line.push("--scripted".into());
    }
    if let Some(directory) = directory {
        line.extend(["--".into(), directory.into()]);
    }
    line
}

fn hint(args: &UpArgs, environment: &Environment) -> Hint {
    // Whoever set the variable has it in the other terminal too, or not: the option works in both.
    let data = args.data.as_ref().map(|data| environment.absolute(data));
    Hint { scripted: args.scripted, data }
}

/// Where what was fetched is kept.
pub(super) fn cache(environment: &Environment) -> Result<PathBuf, CliError> {
    match environment.get("BERTH_CACHE").map(PathBuf::from) {
        Some(cache) => Ok(environment.absolute(&cache)),
        None => Ok(environment.base_directory("HOME", "")?.join(".cache/berth")),
    }
}

pub(super) fn opencode(given: Option<&Path>, environment: &Environment, cache: &Path) -> OpencodeChoice {
    match given {
        Some(path) => OpencodeChoice::Given(environment.absolute(path)),
        None => OpencodeChoice::usual(cache, environment.get("PATH")),
    }
}

fn sandboxes(args: &UpArgs, environment: &Environment) -> Result<Vec<SandboxSpec>, CliError> {
    if args.sandbox.is_empty() {
        let directory = match &args.directory {
            Some(directory) => existing("DIR", &environment.absolute(directory))?,
            None => shown_directory(environment),
        };
        return Ok(vec![spec(DEFAULT_SANDBOX.to_owned(), directory)]);
    }
    if args.sandbox.len() > SANDBOX_LIMIT {
        return Err(CliError::usage("--sandbox", format!("given more than {SANDBOX_LIMIT} times")));
    }
    let mut specs: Vec<SandboxSpec> = Vec::new();
    for text in &args.sandbox {
        let spec = sandbox(text, environment)?;
        if specs.iter().any(|known| known.name == spec.name) {
            return Err(CliError::usage("--sandbox", format!("{} is named twice", spec.name)));
        }
        specs.push(spec);
    }
    Ok(specs)
}

fn sandbox(text: &str, environment: &Environment) -> Result<SandboxSpec, CliError> {
    let (name, directory) =
        text.split_once('=').filter(|(_, directory)| !directory.is_empty()).ok_or_else(|| {
            CliError::usage("--sandbox", format!("{text:?} is not NAME=DIR, such as api=./api"))
        })?;
    let name = sandbox_name("--sandbox", name)?;
    let directory = existing("--sandbox", &environment.absolute(Path::new(directory)))?;
    Ok(spec(name, directory))
}

/// The current directory by the name that the person sees at their prompt, which may lead through links.
fn shown_directory(environment: &Environment) -> PathBuf {
    let real = &environment.current_directory;
    let shown = environment.get("PWD").map(PathBuf::from).filter(|shown| shown.is_absolute());
    let is_same = |shown: &PathBuf| shown.canonicalize().is_ok_and(|shown| shown == *real);
    shown.filter(is_same).unwrap_or_else(|| real.clone())
}

/// A sandbox in this directory, which is known by its real name, and by the one that was given where that is another.
fn spec(name: String, directory: PathBuf) -> SandboxSpec {
    let Ok(real) = directory.canonicalize() else {
        return SandboxSpec { name, directory, aliases: Vec::new() };
    };
    let plain = without_dots(&directory);
    // Behind a link, `..` is not what it looks like.
    let given = if plain.canonicalize().is_ok_and(|plain| plain == real) { plain } else { directory };
    let aliases = if given == real { Vec::new() } else { vec![given] };
    SandboxSpec { name, directory: real, aliases }
}

/// The path without `.` and `..`, by its letters.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

fn existing(field: &'static str, directory: &Path) -> Result<PathBuf, CliError> {
    if directory.is_dir() {
        return Ok(directory.to_owned());
    }
    let why = if directory.exists() { "is not a directory" } else { "does not exist; make it first" };
    Err(CliError::usage(field, format!("{} {why}", directory.display())))
}

fn model(args: &UpArgs, environment: &Environment, cache: &Path) -> Result<Model, CliError> {
    if args.scripted {
        return Ok(Model::Scripted { config_home: Some(pinned_directory(cache).join("config")) });
    }
    let data = environment.base_directory("XDG_DATA_HOME", ".local/share")?;
    Ok(Model::Own {
        config_home: environment.base_directory("XDG_CONFIG_HOME", ".config")?,
        auth: data.join("opencode/auth.json"),
        environment: passed_on(&args.pass_env, environment)?,
    })
}

/// The providers' variables that are set, and those that were asked for.
fn passed_on(names: &[String], environment: &Environment) -> Result<BTreeMap<String, String>, CliError> {
    let mut variables = BTreeMap::new();
    for name in PROVIDER_VARIABLES {
        if environment.get(name).is_some() {
            variables.insert(name.to_owned(), value(name, environment)?);
        }
    }
    for name in names {
        if name.starts_with("BERTH_") || name.starts_with("OPENCODE_SERVER_") {
            return Err(CliError::usage(
                "--pass-env",
                format!("{name} is Berth's own and cannot be passed on"),
            ));
        }
        variables.insert(name.clone(), value(name, environment)?);
    }
    Ok(variables)
}

fn value(name: &str, environment: &Environment) -> Result<String, CliError> {
    let value = environment
        .get(name)
        .ok_or_else(|| CliError::usage("--pass-env", format!("{name} is not set in this environment")))?;
    let text = value.to_str().map(ToOwned::to_owned);
    text.ok_or_else(|| CliError::usage("--pass-env", format!("the value of {name} is not UTF-8 text")))
}

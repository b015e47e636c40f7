#![expect(clippy::unwrap_in_result, reason = "the command lines of these tests parse")]

use clap::Parser;
use proptest::prelude::*;

use super::*;

const TERMINAL: Streams = Streams { input_terminal: true, out_terminal: true, err_terminal: true };
const PIPES: Streams = Streams { input_terminal: false, out_terminal: false, err_terminal: false };

fn environment(variables: &[(&str, &str)]) -> Environment {
    Environment::of(variables, Path::new("/here"))
}

fn config(line: &[&str], variables: &[(&str, &str)], streams: Streams) -> Result<Config, CliError> {
    let args = Args::try_parse_from(["berth"].iter().chain(line)).unwrap();
    Config::new(args, &environment(variables), streams)
}

fn run_config(line: &[&str], streams: Streams) -> RunConfig {
    match config(line, &[("HOME", "/home/u")], streams).unwrap() {
        Config::Run(config) => config,
        other => panic!("{other:?}"),
    }
}

fn usage(line: &[&str]) -> (&'static str, String) {
    match config(line, &[("HOME", "/home/u")], TERMINAL).unwrap_err() {
        CliError::Usage { field, reason } => (field, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_prompt_comes_from_the_line_or_from_standard_input() {
    let text = |text: &str| PromptSource::Text(text.to_owned());
    assert_eq!(run_config(&["run", "fix", "it"], PIPES).prompt, text("fix it"));
    assert_eq!(run_config(&["run", "-"], TERMINAL).prompt, PromptSource::StandardInput);
    assert_eq!(run_config(&["run"], PIPES).prompt, PromptSource::StandardInput);
    assert_eq!(usage(&["run"]).0, "PROMPT");
    assert_eq!(usage(&["run", " ", "\t"]).0, "PROMPT");
}

#[test]
fn somebody_is_asked_only_where_somebody_is() {
    assert_eq!(run_config(&["run", "x"], TERMINAL).answers, AnswerPolicy::Ask);
    assert_eq!(run_config(&["run", "x"], PIPES).answers, AnswerPolicy::Nobody);
    assert_eq!(run_config(&["run", "-"], TERMINAL).answers, AnswerPolicy::Nobody);
    let piped = Streams { out_terminal: false, ..TERMINAL };
    assert_eq!(run_config(&["run", "x"], piped).answers, AnswerPolicy::Ask);
    let unseen = Streams { err_terminal: false, ..piped };
    assert_eq!(run_config(&["run", "x"], unseen).answers, AnswerPolicy::Nobody);
    assert_eq!(run_config(&["run", "--allow", "x"], PIPES).answers, AnswerPolicy::Allow { person: false });
    assert_eq!(run_config(&["run", "--deny", "x"], TERMINAL).answers, AnswerPolicy::Deny);
}

#[test]
fn the_target_is_a_sandbox_or_a_session() {
    let new =
        |namespace: &str, name: &str| Target::New { namespace: namespace.to_owned(), name: name.to_owned() };
    assert_eq!(run_config(&["run", "x"], PIPES).target, new("local", "default"));
    assert_eq!(run_config(&["run", "--sandbox", "api", "x"], PIPES).target, new("local", "api"));
    assert_eq!(run_config(&["run", "--sandbox", "team/api", "x"], PIPES).target, new("team", "api"));
    let id = "0198f2c4-0000-7000-8000-000000000000";
    assert_eq!(run_config(&["run", "--session", id, "x"], PIPES).target, Target::Resume(id.parse().unwrap()));
    for bad in ["", "A", "a_b", "-a", "a-", "a/b/c", "/a", "a/", "ü", &"a".repeat(53)] {
        let (field, reason) = usage(&["run", &format!("--sandbox={bad}"), "x"]);
        assert_eq!(field, "--sandbox", "{bad}");
        assert!(reason.contains("lower-case letters"), "{reason}");
    }
}

#[test]
fn data_is_where_the_user_keeps_state() {
    let root = |line: &[&str], variables: &[(&str, &str)]| match config(line, variables, PIPES) {
        Ok(Config::Run(config)) => Ok(config.server.state.root().to_owned()),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    };
    let home = ("HOME", "/home/u");
    assert_eq!(root(&["run", "x"], &[home]).unwrap(), Path::new("/home/u/.local/state/berth"));
    assert_eq!(root(&["run", "x"], &[home, ("XDG_STATE_HOME", "/s")]).unwrap(), Path::new("/s/berth"));
    let relative = [home, ("XDG_STATE_HOME", "s")];
    assert_eq!(root(&["run", "x"], &relative).unwrap(), Path::new("/home/u/.local/state/berth"));
    assert_eq!(root(&["run", "--data", "d", "x"], &[]).unwrap(), Path::new("/here/d"));
    assert!(root(&["run", "x"], &[]).unwrap_err().contains("HOME"));
}

#[test]
fn colour_can_be_declined() {
    let color = |variables: &[(&str, &str)]| shape(&environment(variables), TERMINAL).color;
    assert!(color(&[]));
    assert!(color(&[("NO_COLOR", "")]));
    assert!(!color(&[("NO_COLOR", "1")]));
    assert!(!color(&[("TERM", "dumb")]));
}

fn up_config(line: &[&str], variables: &[(&str, &str)], here: &Path) -> Result<UpConfig, CliError> {
    let args = Args::try_parse_from(["berth", "up"].iter().chain(line)).unwrap();
    match Config::new(args, &Environment::of(variables, here), PIPES)? {
        Config::Up(config) => Ok(*config),
        other => panic!("{other:?}"),
    }
}

#[test]
fn up_takes_the_current_directory_or_those_that_are_named() {
    let here = tempfile::tempdir().unwrap();
    std::fs::create_dir(here.path().join("api")).unwrap();
    std::fs::write(here.path().join("file"), "").unwrap();
    let home = [("HOME", "/home/u")];
    let named = |line: &[&str]| {
        let config = up_config(line, &home, here.path())?;
        let pair = |spec: crate::up::SandboxSpec| (spec.name, spec.directory);
        Ok(config.local.sandboxes.into_iter().map(pair).collect::<Vec<_>>())
    };
    let sandbox = |name: &str, directory: &Path| (name.to_owned(), directory.to_owned());
    let api = here.path().join("api");
    assert_eq!(named(&[]).unwrap(), [sandbox("default", here.path())]);
    assert_eq!(named(&["api"]).unwrap(), [sandbox("default", &api)]);
    let two = named(&["--sandbox", "a=api", "--sandbox", "b=."]).unwrap();
    assert_eq!(two, [sandbox("a", &api), sandbox("b", &here.path().join("."))]);
    let refused: [&[&str]; 6] = [
        &["nowhere"],
        &["file"],
        &["--sandbox", "a"],
        &["--sandbox", "a="],
        &["--sandbox", "A=api"],
        &["--sandbox", "a=api", "--sandbox", "a=."],
    ];
    for line in refused {
        let error: CliError = named(line).unwrap_err();
        assert!(matches!(error, CliError::Usage { .. }), "{line:?}: {error}");
    }
}

#[test]
fn a_directory_behind_a_link_is_known_by_both_names() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path().canonicalize().unwrap();
    std::fs::create_dir_all(place.join("real/repo")).unwrap();
    std::os::unix::fs::symlink(place.join("real"), place.join("link")).unwrap();
    let names = |line: &[&str], variables: &[(&str, &str)], here: &str| {
        let config =
            up_config(line, &[&[("HOME", "/home/u")], variables].concat(), &place.join(here)).unwrap();
        let spec = &config.local.sandboxes[0];
        assert_eq!(spec.directory, place.join("real/repo"));
        spec.aliases.clone()
    };
    let link = [place.join("link/repo")];
    let absolute = place.join("link/repo/").display().to_string();
    assert_eq!(names(&["link/repo"], &[], ""), link);
    assert_eq!(names(&[&absolute], &[], ""), link);
    assert_eq!(names(&["./link/../link/repo/."], &[], ""), link);
    assert_eq!(names(&["--sandbox", "a=link/repo"], &[], ""), link);
    assert_eq!(names(&[], &[("PWD", &absolute)], "real/repo"), link);
    let none: [PathBuf; 0] = [];
    assert_eq!(names(&[], &[], "real/repo"), none);
    assert_eq!(names(&[], &[("PWD", "/")], "real/repo"), none);
    assert_eq!(names(&["real/repo/"], &[], ""), none);
}

#[test]
fn a_process_in_the_background_is_told_the_same() {
    let line = ["berth", "up", "--detach", "--scripted", "--port", "0", "--data", "d", "--", "--odd"];
    let Command::Up(args) = Args::try_parse_from(line).unwrap().command else { panic!("up") };
    let again = up::in_background(args);
    let again = [OsString::from("berth")].into_iter().chain(again);
    let Command::Up(args) = Args::try_parse_from(again).unwrap().command else { panic!("up") };
    assert!(args.detached && !args.detach && args.scripted);
    assert_eq!((args.port, args.directory, args.data), (0, Some("--odd".into()), Some("d".into())));
    let line = ["berth", "up", "--detach", "--sandbox", "a=/", "--sandbox", "b=/", "--pass-env", "X"];
    let Command::Up(args) = Args::try_parse_from(line).unwrap().command else { panic!("up") };
    let again = [OsString::from("berth")].into_iter().chain(up::in_background(args));
    let Command::Up(args) = Args::try_parse_from(again).unwrap().command else { panic!("up") };
    assert_eq!((args.sandbox.len(), args.pass_env.len()), (2, 1));
}

#[test]
fn up_passes_keys_on_and_nothing_else() {
    let here = tempfile::tempdir().unwrap();
    let variables = [
        ("HOME", "/home/u"),
        ("OPENAI_API_KEY", "sk-1"),
        ("MY_KEY", "k"),
        ("OTHER", "o"),
        ("GROQ_API_KEY", ""),
        ("BERTH_CACHE", "/cache"),
    ];
    let config = up_config(&["--pass-env", "MY_KEY"], &variables, here.path()).unwrap();
    let crate::up::Model::Own { config_home, auth, environment } = &config.local.model else {
        panic!("{:?}", config.local.model)
    };
    assert_eq!(config_home, Path::new("/home/u/.config"));
    assert_eq!(auth, Path::new("/home/u/.local/share/opencode/auth.json"));
    let names: Vec<&String> = environment.keys().collect();
    assert_eq!(names, ["MY_KEY", "OPENAI_API_KEY"]);
    for (name, reason) in [("UNSET", "is not set"), ("BERTH_CACHE", "Berth's own")] {
        let error = up_config(&["--pass-env", name], &variables, here.path()).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    let scripted = up_config(&["--scripted"], &variables, here.path()).unwrap();
    let crate::up::Model::Scripted { config_home } = &scripted.local.model else {
        panic!("{:?}", scripted.local.model)
    };
    assert_eq!(config_home.as_deref(), Some(Path::new("/cache/opencode/1.18.33/config")));
}

proptest! {
    #[test]
    fn names_are_labels_or_refused(name in any::<String>()) {
        let accepted = sandbox_name("--sandbox", &name).is_ok();
        let label = name.len() <= 52 && !name.is_empty()
            && name.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '-'))
            && !name.starts_with('-') && !name.ends_with('-');
        prop_assert_eq!(accepted, label);
    }

    #[test]
    fn proper_names_are_accepted(name in "[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?") {
        prop_assert!(sandbox_name("--sandbox", &name).is_ok());
    }
}

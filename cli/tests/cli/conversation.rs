//! `berth chat` in tmux against `berth up --scripted`: the whole path, on a real opencode.

use nix::sys::signal::Signal;

use crate::{
    fake::{FakeServer, says, succeeds},
    home::{Home, Up},
    process::Berth,
    tmux::Tmux,
};

#[tokio::test]
async fn a_person_talks_with_an_agent() {
    let home = Home::new();
    let _up = Up::start(&home, &[]).await;
    let tmux = Tmux::start(&home.command(&["chat"]), 80, 30);
    tmux.sees("/help").await;

    tmux.enters("scenario: demo");
    tmux.sees("[y] once").await;
    tmux.wait_for("? the agent asks for permission: bash").await;
    tmux.wait_for("  │ pwd && uname -s").await;
    tmux.press(&["y"]);
    tmux.wait_for("✓ done").await;
    for sign in
        ["∴ thought for", "✓ allowed once", "✓ bash: pwd && uname -s", "✓ write hello-from-berth.md  +1 -0"]
    {
        assert!(tmux.text().contains(sign), "no {sign}: {}", tmux.text());
    }
    assert!(home.path("work/hello-from-berth.md").exists());

    tmux.enters("/model");
    tmux.sees("› scripted/").await;
    tmux.press(&["C-c"]).enters("/agent");
    tmux.sees("› build").await;
    tmux.press(&["C-c"]).types("@hel");
    tmux.sees("› @hello-from-berth.md").await;
    tmux.press(&["Tab", "C-u"]);

    tmux.enters("scenario: question");
    tmux.sees("[m] own words").await;
    tmux.press(&["Down", "Enter"]);
    tmux.wait_for("Thank you for the answer.").await;
    tmux.wait_for_count("✓ done", 2).await;

    tmux.enters("scenario: slow");
    tmux.sees("tick0").await;
    tmux.enters("@stub say:dropped").enters("@stub say:kept");
    tmux.sees("queued 2: @stub say:kept").await;
    tmux.enters("/drop 1");
    tmux.wait_for("■ dropped: @stub say:dropped").await;
    tmux.press(&["C-c"]);
    tmux.wait_for("■ cancelled").await;
    tmux.wait_for_count("✓ done", 3).await;
    assert!(tmux.all().contains(&"kept".to_owned()), "{}", tmux.text());

    tmux.enters("/rename my own title");
    tmux.wait_for("this session is called “my own title”").await;
    tmux.enters("/new");
    tmux.wait_for_count("local/default, session ", 2).await;
    tmux.enters("/sessions own");
    tmux.sees("› my own title").await;
    tmux.press(&["Enter"]);
    tmux.wait_for("local/default “my own title”, session ").await;
    tmux.wait_for_count("› scenario: slow", 2).await;
    for said in ["I look at where I am and then I write a file.", "The shell answered. Now the file."] {
        assert_eq!(tmux.all().iter().filter(|line| *line == said).count(), 2, "{said}: {}", tmux.text());
    }
    tmux.press(&["C-d"]);
    assert_eq!(tmux.code().await, 0);
}

#[tokio::test]
async fn the_server_is_killed_in_mid_turn_and_comes_back() {
    let home = Home::new();
    let mut up = Up::start(&home, &[]).await;
    let tmux = Tmux::start(&home.command(&["chat"]), 80, 30);
    tmux.sees("/help").await;
    tmux.enters("scenario: slow");
    tmux.sees("tick3").await;
    up.signal(Signal::SIGKILL);
    up.child.wait().await.unwrap();
    tmux.wait_for("the server cannot be reached; trying again").await;
    tmux.enters("@stub say:sent-while-away");
    tmux.sees("↑ @stub say:sent-while-away").await;
    tmux.sees("no server; trying again").await;
    // Its last words are of no use to the next one.
    std::fs::remove_file(home.state().join("server.json")).unwrap();
    let _up = Up::start(&home, &[]).await;
    tmux.wait_for("the server is back").await;
    tmux.wait_for("✗ failed: OpencodeExited").await;
    tmux.wait_for_count("tick3", 1).await;
    tmux.wait_for_count("✓ done", 1).await;
    tmux.wait_for_count("sent-while-away", 2).await;
    tmux.enters("@stub say:and-on-it-goes");
    tmux.wait_for_count("✓ done", 2).await;
    tmux.wait_for_count("and-on-it-goes", 2).await;
    tmux.press(&["C-d"]);
    assert_eq!(tmux.code().await, 0);
}

#[tokio::test]
async fn tools_thoughts_questions_the_queue_and_the_past() {
    let home = Home::new();
    let _up = Up::start(&home, &[]).await;
    let tmux = Tmux::start(&home.command(&["chat"]), 80, 40);
    tmux.sees("/help").await;

    // A thought is one line, and whole when that is wanted.
    tmux.enters("scenario: thought");
    tmux.wait_for("Then I answer.").await;
    tmux.wait_for("✓ done").await;
    tmux.enters("/thoughts");
    tmux.wait_for("thoughts are shown whole").await;
    tmux.wait_for("  First I think, in three pieces.").await;
    tmux.enters("/thoughts");
    tmux.wait_for("thoughts are shown as one line").await;

    // What an edit changed.
    tmux.enters("scenario: edit");
    tmux.sees("[y] once").await;
    tmux.press(&["a"]);
    tmux.wait_for_count("✓ done", 2).await;
    for sign in ["✓ edit edited-by-berth.txt  +1 -1", "- two", "+ TWO"] {
        assert!(tmux.text().contains(sign), "no {sign}: {}", tmux.text());
    }

    // Two questions: several answers to one, own words to the other.
    tmux.enters(
        r#"@stub tool:question:{"questions":[{"question":"Which?","header":"Which","multiple":true,"options":[{"label":"Red","description":"r"},{"label":"Blue","description":"b"},{"label":"Green","description":"g"}]},{"question":"Why?","header":"Why","options":[{"label":"So","description":"s"}]}]} >> say:Answered."#,
    );
    tmux.sees("[Space, Enter] choose").await;
    tmux.press(&["1"]);
    tmux.sees("☑ 1. Red").await;
    tmux.press(&["Down", "Down", "Space"]);
    tmux.sees("☑ 3. Green").await;
    tmux.press(&["Enter"]);
    tmux.sees("[Enter] choose").await;
    tmux.press(&["m"]);
    tmux.sees("your answer:").await;
    tmux.enters("because");
    tmux.wait_for("Answered.").await;
    tmux.wait_for_count("✓ done", 3).await;

    // A tool that runs, with its time and what it printed; prompts that wait; the last one taken back; all dropped.
    let command = r#"@stub tool:bash:{"command":"echo begun; sleep 300","description":"Wait"}"#;
    tmux.enters(command);
    tmux.sees("[y] once").await;
    tmux.press(&["y"]);
    tmux.sees("  │ begun").await;
    tmux.sees("● bash: echo begun; sleep 300  2.").await;
    tmux.enters("@stub say:first").enters("@stub say:second");
    tmux.sees("queued 2: @stub say:second").await;
    tmux.press(&["M-Up"]);
    tmux.wait_for("■ dropped: @stub say:second").await;
    tmux.sees("› @stub say:second").await;
    tmux.press(&["C-u"]).enters("/cancel");
    tmux.wait_for("■ dropped: @stub say:first").await;
    tmux.wait_for_count("■ cancelled", 1).await;

    // Once more, and ended by a key.
    tmux.enters("/retry");
    tmux.wait_for_count("echo begun; sleep 300  ", 2).await;
    tmux.press(&["C-c"]);
    tmux.wait_for_count("■ cancelled", 2).await;

    // A failure says what it is, and the next conversation knows what was said, and what was typed.
    tmux.enters("scenario: error-400");
    tmux.wait_for("✗ failed: ").await;
    tmux.press(&["C-d"]);
    assert_eq!(tmux.code().await, 0);
    let tmux = Tmux::start(&home.command(&["chat", "--session", "last"]), 80, 40);
    tmux.wait_for("› scenario: error-400").await;
    tmux.wait_for("› scenario: thought").await;
    tmux.press(&["Up", "Up"]);
    tmux.sees("› /retry").await;
    tmux.press(&["C-c", "C-d"]);
    assert_eq!(tmux.code().await, 0);
}

#[tokio::test]
async fn it_can_be_suspended_and_leaves_the_terminal_as_it_was() {
    let (server, berth) =
        (FakeServer::start(vec![vec![says("a", 0, "hello back"), succeeds()]]).await, Berth::new());
    let chat = berth.against(&server, &["chat"]);
    let mut shell = tokio::process::Command::new("bash");
    shell.args(["--norc", "--noprofile", "-i"]).current_dir(chat.as_std().get_current_dir().unwrap());
    for (name, value) in chat.as_std().get_envs() {
        shell.env(name, value.unwrap());
    }
    shell.env("PS1", "shell> ").env("CHAT", chat.as_std().get_program());
    let tmux = Tmux::start(&shell, 80, 24);
    tmux.sees("shell>").await;
    tmux.enters("\"$CHAT\" chat");
    tmux.sees("/help").await;
    tmux.types("half a prom").press(&["C-z"]);
    tmux.sees("Stopped").await;
    tmux.sees_no("/help").await;
    tmux.enters("stty -a | grep -o ' icanon'");
    // Its output, and not the command as it was typed.
    tmux.wait_for_count("\n icanon", 1).await;
    tmux.enters("fg");
    tmux.sees("› half a prom").await;
    tmux.types("pt").press(&["Enter"]);
    tmux.sees("hello back").await;
    tmux.sees("✓ done").await;
    assert_eq!(server.prompts(), ["half a prompt"]);
    tmux.press(&["C-d"]);
    tmux.wait_for("come back with: ").await;
    tmux.enters("stty -a | grep -o ' icanon'");
    tmux.wait_for_count("\n icanon", 2).await;
}

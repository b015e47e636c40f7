//! `berth chat` in tmux against `berth up --scripted`: the whole path, on a real opencode.

use nix::sys::signal::Signal;

use crate::{
    home::{Home, Up},
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
    // Its last words are of no use to the next one.
    std::fs::remove_file(home.state().join("server.json")).unwrap();
    let _up = Up::start(&home, &[]).await;
    tmux.wait_for("the server is back").await;
    tmux.wait_for("✗ failed: OpencodeExited").await;
    tmux.wait_for_count("tick3", 1).await;
    tmux.enters("@stub say:and-on-it-goes");
    tmux.wait_for("✓ done").await;
    tmux.wait_for_count("and-on-it-goes", 2).await;
    tmux.press(&["C-d"]);
    assert_eq!(tmux.code().await, 0);
}

//! Passwords: rotated under requests, and found nowhere where they have no business.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use serde_json::Value;

use crate::{
    pod::{self, Options, Pod},
    processes,
    wait::{some, until, within},
};

/// Status of a request with this password.
async fn status(pod: &Pod, password: &str) -> u16 {
    let request = pod.client().get(pod.url("/session")).basic_auth("opencode", Some(password));
    within("an answer", request.send()).await.unwrap().status().as_u16()
}

/// Asks with `password` until `other` is answered with `wanted`; every request with `password` must succeed.
async fn ask_until(pod: &Pod, password: &str, other: &str, wanted: u16) {
    some("the change of passwords", async || {
        assert_eq!(status(pod, password).await, 200, "a request failed during the rotation");
        (status(pod, other).await == wanted).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_doors_password_is_rotated_under_requests() {
    let mut pod = Pod::start(&Options::default()).await;
    let events = pod.follow();
    let (old, new) = (pod.password.clone(), pod::password());
    assert_eq!(status(&pod, &new).await, 401);
    pod.secret.change(|files| {
        files.insert("password".to_owned(), new.clone());
        files.insert("password-previous".to_owned(), old.clone());
    });
    ask_until(&pod, &old, &new, 200).await;
    assert_eq!(status(&pod, &old).await, 200);
    pod.secret.change(|files| {
        files.remove("password-previous");
    });
    ask_until(&pod, &new, &old, 401).await;
    pod.password = new;
    let session = pod.session().await;
    pod.expect_alive(&session, "alive").await;
    until("an event on the stream of before", || events.count() > 0).await;
    events.check_dense();
    pod.stop().await;
}

#[tokio::test]
async fn opencodes_password_is_rotated_under_requests() {
    let mut pod = Pod::start(&Options::default()).await;
    let session = pod.session().await;
    let new = pod::password();
    pod.secret.change(|files| {
        files.insert("opencode-password".to_owned(), new.clone());
    });
    // The running opencode has the old one, the next has the new one.
    pod.expect_alive(&session, "before").await;
    let boot_id = pod.state().await["boot_id"].clone();
    pod::send(pod.servers()[0], nix::sys::signal::Signal::SIGKILL);
    let next = |state: &Value| state["phase"] == "ready" && state["boot_id"] != boot_id;
    pod.state_when("the next run", next).await;
    let opencode = pod.servers()[0];
    let given = format!("OPENCODE_SERVER_PASSWORD={new}");
    assert!(processes::entries(opencode, "environ").contains(&given.into_bytes()));
    pod.expect_alive(&session, "after").await;
    assert_eq!(status(&pod, &pod.password).await, 200);
    pod.stop().await;
}

/// A password as it may be written somewhere.
fn forms(password: &str) -> Vec<String> {
    let pair = format!("opencode:{password}");
    let encoded = [STANDARD.encode(&pair), STANDARD_NO_PAD.encode(&pair), URL_SAFE_NO_PAD.encode(&pair)];
    let mut forms = vec![password.to_owned(), STANDARD_NO_PAD.encode(password)];
    forms.extend(encoded.iter().map(|form| form.replace('=', "%3D")));
    forms.extend(encoded);
    forms
}

fn expect_none(what: &str, text: &str, passwords: &[&str]) {
    for form in passwords.iter().flat_map(|password| forms(password)) {
        let line = text.lines().find(|line| line.contains(&form));
        assert!(line.is_none(), "{what} has a password: {line:?}");
    }
}

#[tokio::test]
async fn no_password_is_in_a_log_an_argument_or_the_environment_of_a_tool() {
    let mut pod = Pod::start(&Options { log_level: "trace", ..Options::default() }).await;
    let session = pod.session().await;
    let script = r#"@stub tool:bash:{"command":"env > seen-environment; sleep 0.3","description":"Look"} >> say:looked"#;
    let _events = pod.follow();
    let token = STANDARD.encode(format!("opencode:{}", pod.password));
    let wrong = STANDARD.encode("opencode:wrong");
    for target in [
        format!("/session?auth_token={token}"),
        format!("/event?auth_token={wrong}"),
        format!("/berth/x?auth_token={token}"),
    ] {
        let request = pod.client().get(pod.url(&target)).header("referer", pod.url(&target));
        let answer = within("an answer", request.send()).await.unwrap();
        assert!([200, 401, 404].contains(&answer.status().as_u16()), "{target}: {}", answer.status());
    }
    pod.prompt(&session, script).await;
    some("the answer", async || (pod.newest_text(&session).await? == "looked").then_some(())).await;
    let (old, new) = (pod.password.clone(), pod::password());
    pod.secret.change(|files| {
        files.insert("password".to_owned(), new.clone());
    });
    some("the change of passwords", async || (status(&pod, &new).await == 200).then_some(())).await;
    pod.password.clone_from(&new);

    let door = [old.as_str(), new.as_str()];
    let internal = pod.internal.clone();
    let all = [door[0], door[1], internal.as_str()];
    let tool = std::fs::read_to_string(pod.work.join("seen-environment")).unwrap();
    expect_none("the environment of a tool", &tool, &door);
    assert!(tool.contains(&format!("OPENCODE_SERVER_PASSWORD={internal}")), "as documented");
    let opencode = pod.servers()[0];
    for pid in [pod.supervisor.pid(), pod.sidecar.pid(), opencode] {
        let text = |file| String::from_utf8_lossy(&processes::entries(pid, file).join(&b'\n')).into_owned();
        expect_none("an argument list", &text("cmdline"), &all);
        let secrets = if pid == opencode { &door[..] } else { &all[..] };
        expect_none("an environment", &text("environ"), secrets);
    }
    assert!(pod.supervisor.log().contains("opencode says"), "its log is looked at");
    assert!(pod.sidecar.log().contains("\"DEBUG\""), "it says everything");
    pod.stop_and(|pod| {
        for program in [&pod.supervisor, &pod.sidecar] {
            expect_none("a log", &program.log(), &all);
        }
    })
    .await;
}

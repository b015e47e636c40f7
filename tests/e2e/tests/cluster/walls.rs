//! What a sandbox cannot read and cannot reach, and who cannot reach a sandbox: tried from inside of real pods.

use berth_api::{layout, names};
use berth_e2e::{Case, SHARED, SURGEON, Shape, VISITOR, Victim, until};
use berth_wire::turn::TurnState;
use k8s_openapi::api::core::v1::Secret;
use std::collections::BTreeMap;

/// Where clouds hand out credentials. A listener of ours stands there, unless there is one.
const METADATA: &str = "169.254.169.254";

/// Tries each address, all at once; prints each with curl's exit code.
const TRY: &str = r#"
for address in "$@"; do
  (curl -ksS -o /dev/null --connect-timeout 4 --max-time 10 "$address" 2>/dev/null; echo "$address $?") &
done
wait"#;

/// curl's exit codes for an address to which there is no way.
const NO_WAY: [&str; 2] = ["7", "28"];

/// Looks for what is on standard input in all that a process may read that is not the image's.
const SEARCH: &str =
    "grep -rslF -f - /berth /run /tmp /home /workspace /proc/[0-9]*/environ /proc/[0-9]*/cmdline; true";

/// A listener on the node at the metadata address, until its input ends.
const LISTENER: &str = r#"
nsenter --target 1 --mount -- ip address add "$1/32" dev lo
trap 'nsenter --target 1 --mount -- ip address del "$1/32" dev lo' EXIT
python3 -m http.server --bind "$1" 80 >/dev/null 2>&1 &
cat
kill $!"#;

pub(crate) async fn reads_and_reaches_nothing_private(case: Case) {
    for sandbox in ["one", "other"] {
        case.create(case.manifest(sandbox, Shape { ephemeral: true, ..Shape::default() })).await;
    }
    for sandbox in ["one", "other"] {
        case.ready(sandbox).await;
    }
    reads_nothing(&case).await;

    let pod = names::pod("one");
    let one = (case.namespace.as_str(), pod.as_str(), layout::SANDBOX);
    let status = case.pod("other").await.status.expect("a pod has a status");
    let other = status.pod_ip.expect("it has an address");
    let node = status.host_ip.expect("its node has an address");
    let doors = [
        format!("http://{other}:{}/doc", layout::DOOR_PORT),
        format!("http://{other}:{}/live", layout::ADMIN_PORT),
        format!("http://other.{}.{}.svc:{}/doc", names::SERVICE, case.namespace, layout::DOOR_PORT),
    ];
    let platform = [
        format!("http://{METADATA}/"),
        format!("https://{node}:10250/healthz"),
        "https://kubernetes.default.svc/healthz".to_owned(),
    ];
    let listener = stand_in(&case).await;
    let visitor = (SHARED, VISITOR, VISITOR);
    // The listeners are there: somebody whom nothing closes in reaches them.
    reach(&case, visitor, &platform, true).await;
    reach(&case, one, &platform, false).await;
    reach(&case, one, &doors, false).await;
    reach(&case, visitor, &doors, false).await;
    // And the way to the model is open.
    reach(&case, one, &["http://scripted-model.models.svc:9100/log".to_owned()], true).await;
    drop(listener);
}

/// Neither the door's password nor a token of a service account.
async fn reads_nothing(case: &Case) {
    let secret = case.api::<Secret>().get(&names::secret("one")).await.expect("the secret is there");
    let mut data = secret.data.expect("it has data");
    let mut password = |key| String::from_utf8(data.remove(key).expect("a key").0).expect("it is text");
    // The search finds what can be read.
    let found = search(case, &password(names::OPENCODE_PASSWORD)).await;
    assert!(found.contains(layout::INTERNAL_SECRET), "{found}");
    let found = search(case, &password(names::DOOR_PASSWORD)).await;
    assert_eq!(found, "", "the door's password can be read");
    let look = "test ! -e /var/run/secrets/kubernetes.io && ls /berth && readlink /proc/[0-9]*/exe";
    let seen = case.shell("one", look, &[]).await.expect("there is no token of a service account");
    assert!(seen.starts_with("internal\n"), "{seen}");
    assert!(seen.contains(layout::SUPERVISOR) && !seen.contains(layout::SIDECAR_PROGRAM), "{seen}");
}

async fn search(case: &Case, secret: &str) -> String {
    let pod = names::pod("one");
    let place = ["exec", "--stdin", "--namespace", &case.namespace, &pod, "--container", layout::SANDBOX];
    let command = place.iter().copied().chain(["--", "sh", "-c", SEARCH]);
    case.cluster.kubectl.run_with(secret, command).await.expect("it can be searched for")
}

/// A listener at the metadata address, where there is none.
async fn stand_in(case: &Case) -> Option<tokio::process::Child> {
    let address = format!("http://{METADATA}/");
    if tried(case, (SHARED, VISITOR, VISITOR), std::slice::from_ref(&address)).await[&address] == "0" {
        return None;
    }
    let place = ["exec", "--stdin", "--namespace", SHARED, SURGEON, "--"];
    let mut listener =
        case.cluster.kubectl.command(place.iter().chain(&["sh", "-c", LISTENER, "sh", METADATA]));
    Some(listener.stdin(std::process::Stdio::piped()).spawn().expect("kubectl runs"))
}

/// Waits until all of these addresses, or none of them, are reached from a place: what is closed to a pod may be open in
/// its first moments.
async fn reach(case: &Case, place: (&str, &str, &str), addresses: &[String], open: bool) {
    let what = format!("{} to reach {}of {addresses:?}", place.1, if open { "all " } else { "none " });
    until(&what, async || {
        let tried = tried(case, place, addresses).await;
        let is_right = |code: &String| if open { code == "0" } else { NO_WAY.contains(&code.as_str()) };
        if tried.len() == addresses.len() && tried.values().all(is_right) { Ok(()) } else { Err(tried) }
    })
    .await;
}

async fn tried(case: &Case, place: (&str, &str, &str), addresses: &[String]) -> BTreeMap<String, String> {
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let said = case.cluster.kubectl.shell(place, TRY, &addresses).await.expect("curl runs");
    let pair = |line: &str| line.split_once(' ').map(|(address, code)| (address.to_owned(), code.to_owned()));
    said.lines().filter_map(pair).collect()
}

/// Takes the door's port as soon as it is free, and writes down all that it is sent.
const IMPOSTOR: &str = r#"
import socket, threading, time
door = socket.socket()
door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
while True:
    try:
        door.bind(("0.0.0.0", 4096))
        break
    except OSError:
        time.sleep(0.0005)
door.listen(64)
open("/workspace/taken", "w").close()
heard = open("/workspace/heard", "ab", buffering=0)
def serve(caller):
    while True:
        request = caller.recv(65536)
        if not request:
            return
        heard.write(request)
        caller.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
while True:
    threading.Thread(target=serve, args=(door.accept()[0],), daemon=True).start()
"#;

pub(crate) async fn fake_door_gets_no_password(case: Case) {
    case.sandbox("one", Shape::default()).await;
    let session = case.session("one").await;
    let (turn, log) = case.prompt(session, "@stub say:first").await;
    assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded);

    let begin =
        "setsid python3 -c \"$1\" </dev/null >/workspace/impostor.log 2>&1 & echo $! >/workspace/impostor";
    case.shell("one", begin, &[IMPOSTOR]).await.expect("it starts");
    let uid = case.pod("one").await.metadata.uid.expect("a pod has a UID");
    case.cluster.send(&uid, Victim::Sidecar, "KILL").await;
    until("the impostor to take the port", async || case.shell("one", "test -e /workspace/taken", &[]).await)
        .await;

    // Berth wants to talk to the door now, and asks it for a proof first.
    let turn = case.post(session, "@stub say:second").await;
    let heard = until("the impostor to be asked by the server", async || {
        let heard = case.shell("one", "cat /workspace/heard", &[]).await?;
        if heard.contains("/berth/") { Ok(heard) } else { Err(anyhow::anyhow!("{heard:?}")) }
    })
    .await;
    let told = heard.to_lowercase();
    assert!(!told.contains("authorization"), "{heard}");
    assert!(!heard.contains(&case.password("one").await), "{heard}");
    assert!(!told.contains("second"), "it got a prompt: {heard}");

    // The password is exchanged for that, and the old one holds on.
    let old = case.password("one").await;
    until("another password beside the old one", async || {
        let secret =
            case.api::<Secret>().get(&names::secret("one")).await.map_err(|error| error.to_string())?;
        let data = secret.data.unwrap_or_default();
        let held = [names::DOOR_PASSWORD, names::DOOR_PASSWORD_PREVIOUS].map(|key| data.get(key).cloned());
        match held {
            [Some(current), Some(next)] if current.0 == old.as_bytes() && next != current => Ok(()),
            held => Err(format!("{} passwords", held.iter().flatten().count())),
        }
    })
    .await;

    case.shell("one", "kill $(cat /workspace/impostor)", &[]).await.expect("it can be ended");
    let log = berth_tests::SessionLog::until_end(&case.berth, session, turn.id).await;
    log.check();
    let (turn, log) = case.prompt(session, "@stub say:third").await;
    assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded, "{:?}", log.outcome(turn.id));
    case.ready("one").await;
}

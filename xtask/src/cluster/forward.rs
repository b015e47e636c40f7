//! Lets programs outside the node's network reach its apiserver.
//!
//! The listening socket was made outside and keeps that network, whoever holds it; connections are made by the node,
//! in its own. So nothing of the machine's network is changed.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

/// Bound on a connection to the apiserver.
const CONNECT: Duration = Duration::from_secs(5);

/// Forwards connections to `target`, for as long as this process lives.
pub(super) fn start(listener: TcpListener, target: SocketAddr) -> io::Result<()> {
    let accept = move || {
        for stream in listener.incoming() {
            let served = stream.and_then(|stream| serve(stream, target));
            if let Err(error) = served {
                eprintln!("forwarding to {target}: {error}");
            }
        }
    };
    thread::Builder::new().name("forward".to_owned()).spawn(accept)?;
    Ok(())
}

fn serve(outside: TcpStream, target: SocketAddr) -> io::Result<()> {
    let serve = move || {
        // The apiserver does not listen before its time; clients try again.
        let Ok(inside) = TcpStream::connect_timeout(&target, CONNECT) else { return };
        let Ok((from, into)) = outside.try_clone().and_then(|from| Ok((from, inside.try_clone()?))) else {
            return;
        };
        thread::scope(|scope| {
            scope.spawn(|| copy(from, into));
            copy(inside, outside);
        });
    };
    thread::Builder::new().name("connection".to_owned()).spawn(serve)?;
    Ok(())
}

/// Copies until `from` ends or either breaks, and passes the end on.
fn copy(mut from: TcpStream, mut into: TcpStream) {
    // Either side may end a connection whenever it likes; there is nobody to tell.
    let _ = io::copy(&mut from, &mut into);
    let _ = into.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn bytes_and_ends_pass_in_both_directions() {
        let target = TcpListener::bind("127.0.0.1:0").unwrap();
        let outside = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(outside.local_addr().unwrap()).unwrap();
        start(outside, target.local_addr().unwrap()).unwrap();
        let (mut served, _) = target.accept().unwrap();
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        served.read_to_string(&mut text).unwrap();
        assert_eq!(text, "question");
        served.write_all(b"answer").unwrap();
        drop(served);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "answer");
    }
}

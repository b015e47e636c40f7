//! An HTTP server on loopback that answers every request with the same event stream, in chunks, as opencode does. IO.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
};

use berth_wire::sse::write_event;

/// Bytes in one chunk of the answer.
const CHUNK: usize = 16 * 1024;

/// Serves these frames until the program ends, and returns its address.
pub(crate) fn serve(frames: &[String]) -> io::Result<String> {
    let mut events = Vec::new();
    for frame in frames {
        write_event(&mut events, None, None, frame);
    }
    serve_stream(&events)
}

/// Serves these bytes as an event stream until the program ends, and returns its address.
///
/// It allocates nothing while it answers, and runs on a thread of its own.
pub(crate) fn serve_stream(events: &[u8]) -> io::Result<String> {
    let answer = answer(events);
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = format!("http://{}", listener.local_addr()?);
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // Whoever asked will notice: a pass that sees too few events is an error.
            let _ = respond(connection, &answer);
        }
    });
    Ok(address)
}

fn answer(events: &[u8]) -> Vec<u8> {
    let mut answer =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
            .to_vec();
    for chunk in events.chunks(CHUNK) {
        answer.extend(format!("{:x}\r\n", chunk.len()).bytes());
        answer.extend(chunk);
        answer.extend(b"\r\n");
    }
    answer.extend(b"0\r\n\r\n");
    answer
}

fn respond(mut connection: TcpStream, answer: &[u8]) -> io::Result<()> {
    let mut request = [0; 4096];
    let mut length = 0;
    while !request[..length].ends_with(b"\r\n\r\n") {
        let read = connection.read(&mut request[length..])?;
        if read == 0 {
            return Ok(());
        }
        length += read;
    }
    connection.write_all(answer)
}

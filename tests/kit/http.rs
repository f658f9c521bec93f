//! Asking HTTP servers, in order and out of it.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::namespace::Namespace;
use crate::traffic::DEADLINE;

/// What a server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// The head, in lower case.
    pub headers: String,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The body as JSON; null if it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

/// Asks for a path from a namespace.
pub fn get(from: &Namespace, at: SocketAddr, path: &str) -> io::Result<Answer> {
    send(from, at, format!("GET {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n").as_bytes())
}

/// Sends these bytes and takes what comes until the server closes.
pub fn send(from: &Namespace, at: SocketAddr, bytes: &[u8]) -> io::Result<Answer> {
    let mut stream = connect(from, at)?;
    // A server may have heard enough before all is sent: its answer is there all the same.
    let sent = stream.write_all(bytes);
    let mut text = Vec::new();
    let received = stream.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        sent.and(received)?;
        return Err(io::Error::other(format!("no head in {text:?}")));
    };
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no status in {head:?}")))?;
    Ok(Answer { status, headers: head.to_lowercase(), body: body.to_owned() })
}

/// A connection that waits no longer than [`DEADLINE`].
pub fn connect(from: &Namespace, at: SocketAddr) -> io::Result<TcpStream> {
    from.enter(|| {
        let stream = TcpStream::connect_timeout(&at, DEADLINE)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        Ok(stream)
    })
}

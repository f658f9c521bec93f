//! Clients of a server: each gets its answers in time, or is let go.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Longest head of a request, in bytes.
const HEAD: usize = 16 << 10;
/// How long a client may take for the head of a request, and may rest between two.
const READ: Duration = Duration::from_secs(10);
/// How long a connection lives; then it takes no more requests.
const LIFE: Duration = Duration::from_secs(120);
/// How long the last answer may take.
const LAST: Duration = Duration::from_secs(30);
/// How long to rest when no connection can be taken, as for want of file descriptors.
const REST: Duration = Duration::from_secs(1);

/// Answers whoever connects, for ever; those that are more than `most` wait for one that ends. Who stops waiting for
/// this ends the connections too.
pub(crate) async fn answer(listener: TcpListener, router: Router, most: usize) {
    let mut clients = JoinSet::new();
    loop {
        while clients.try_join_next().is_some() {}
        if clients.len() >= most {
            clients.join_next().await;
            continue;
        }
        match listener.accept().await {
            Ok((stream, _)) => drop(clients.spawn(connection(stream, router.clone()))),
            // The client's fault, mostly: it is gone already.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(_) => sleep(REST).await,
        }
    }
}

async fn connection(stream: TcpStream, router: Router) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(READ).max_buf_size(HEAD);
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    // A client that breaks off, or sends what is no HTTP, is nobody's concern.
    tokio::select! {
        _ended = serving.as_mut() => return,
        () = sleep(LIFE) => serving.as_mut().graceful_shutdown(),
    }
    let _ended = timeout(LAST, serving).await;
}

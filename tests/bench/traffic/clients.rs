//! Clients: what is measured.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::figures::{Figure, percentile, rate};
use super::network::{Direction, Network, SERVERS};
use super::servers::{KEPT, MESSAGE, PIECE, SHORT, STREAM, read_answer};
use crate::machine;

/// Far above anything but a loss.
const DEADLINE: Duration = Duration::from_secs(5);
/// Datagrams under way at a time.
const WINDOW: usize = 32;
/// Connections that have to reach every server by chance: all but one in ten billion do.
const PROOF: usize = 100;
/// The part of a measurement that is not counted, in front of it.
const WARM_UP: f64 = 0.1;

/// One kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Connections one after the other: handshake, request, answer, closed by the server and then by the client.
    Short,
    /// Requests and answers on one connection.
    Kept,
    /// Bytes in one direction on one connection.
    Stream,
    /// Datagrams, answered, so many under way.
    Udp,
}

impl Measure {
    /// All.
    pub(crate) const ALL: [Self; 4] = [Self::Short, Self::Kept, Self::Stream, Self::Udp];
}

/// Traffic of a kind for so long.
pub(crate) fn measure(
    network: &Network,
    direction: Direction,
    measure: Measure,
    length: Duration,
) -> Result<Vec<(Figure, f64)>> {
    let targets = network.targets(direction);
    network.client(direction).enter(|| {
        machine::stay_on_one_cpu()?;
        machine::go_first()?;
        match measure {
            Measure::Short => short(&targets, length),
            Measure::Kept => kept(targets[0], length),
            Measure::Stream => stream(targets[0], length),
            Measure::Udp => udp(targets[0], length),
        }
    })
}

/// Every server is reached, by TCP and by UDP, and sees the address that it should.
pub(crate) fn prove(network: &Network, direction: Direction) -> Result<()> {
    let (targets, wanted) = (network.targets(direction), network.seen(direction));
    network.client(direction).enter(|| {
        for (protocol, ask) in [("TCP", ask_tcp as fn(SocketAddr) -> Result<Answer>), ("UDP", ask_udp)] {
            let mut servers = BTreeSet::new();
            for target in targets.iter().cycle().take(PROOF) {
                let (server, seen) = ask(*target).with_context(|| format!("{protocol} to {target}"))?;
                ensure!(seen == wanted, "{protocol}: server {server} sees a client at {seen}, not {wanted}");
                servers.insert(server);
            }
            ensure!(servers.len() == usize::from(SERVERS), "{protocol}: only the servers {servers:?} answered");
        }
        Ok(())
    })
}

/// An open connection of the direction's client.
pub(crate) fn hold(network: &Network, direction: Direction) -> Result<TcpStream> {
    let target = network.targets(direction)[0];
    network.client(direction).enter(|| {
        let mut stream = open(target)?;
        exchange(&mut stream, &[KEPT; MESSAGE])?;
        Ok(stream)
    })
}

type Answer = (u16, Ipv4Addr);

fn ask_tcp(to: SocketAddr) -> Result<Answer> {
    let mut stream = open(to)?;
    exchange(&mut stream, &[SHORT; MESSAGE])
}

fn ask_udp(to: SocketAddr) -> Result<Answer> {
    let socket = udp_socket(to)?;
    let mut answer = [0; MESSAGE];
    socket.send(&answer)?;
    socket.recv(&mut answer).context("no answer")?;
    Ok(read_answer(&answer))
}

fn open(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(to).context("connecting")?;
    stream.set_read_timeout(Some(DEADLINE))?;
    Ok(stream)
}

fn udp_socket(to: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(DEADLINE))?;
    socket.connect(to)?;
    Ok(socket)
}

fn exchange(stream: &mut TcpStream, request: &[u8; MESSAGE]) -> Result<Answer> {
    let mut answer = [0; MESSAGE];
    stream.write_all(request).context("sending the request")?;
    stream.read_exact(&mut answer).context("waiting for the answer")?;
    Ok(read_answer(&answer))
}

/// Does something again and again: first to warm up, then for `length`. Returns how long each took, in nanoseconds.
fn again(length: Duration, mut work: impl FnMut() -> Result<()>) -> Result<Vec<u64>> {
    let warm = Instant::now() + length.mul_f64(WARM_UP);
    while Instant::now() < warm {
        work()?;
    }
    let mut each = Vec::with_capacity(1 << 16);
    let begin = Instant::now();
    let mut before = begin;
    while before - begin < length {
        work()?;
        let now = Instant::now();
        each.push((now - before).as_nanos() as u64);
        before = now;
    }
    Ok(each)
}

fn short(targets: &[SocketAddr], length: Duration) -> Result<Vec<(Figure, f64)>> {
    let mut next = targets.iter().cycle();
    let mut each = again(length, || {
        let mut stream = open(*next.next().context("no target")?)?;
        exchange(&mut stream, &[SHORT; MESSAGE])?;
        // The server closes first, so that the client's port is free at once.
        let more = stream.read(&mut [0; 1]).context("waiting for the server to close")?;
        ensure!(more == 0, "the server said more than its answer");
        Ok(())
    })?;
    let rate = rate(&each)?;
    each.sort_unstable();
    let at = |percent| percentile(&each, percent).map(|ns| ns / 1e3);
    let [middle, late] = [at(50.0)?, at(99.0)?];
    Ok(vec![(Figure::Connections, rate), (Figure::Median, middle), (Figure::Late, late)])
}

fn kept(to: SocketAddr, length: Duration) -> Result<Vec<(Figure, f64)>> {
    let mut stream = open(to)?;
    stream.set_nodelay(true)?;
    let each = again(length, || exchange(&mut stream, &[KEPT; MESSAGE]).map(drop))?;
    Ok(vec![(Figure::Requests, rate(&each)?)])
}

fn stream(to: SocketAddr, length: Duration) -> Result<Vec<(Figure, f64)>> {
    let mut stream = open(to)?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let piece = vec![STREAM; PIECE];
    let mut sent = 0;
    let each = again(length, || {
        stream.write_all(&piece).with_context(|| format!("after {sent} bytes"))?;
        sent += PIECE as u64;
        Ok(())
    })?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).with_context(|| format!("waiting for the count of {sent} bytes"))?;
    let arrived = u64::from_be_bytes(answer);
    ensure!(arrived == sent, "{arrived} of {sent} bytes arrived");
    // Gigabits. What is still under way at the end of a part is what was under way at its beginning.
    Ok(vec![(Figure::Stream, rate(&each)? * PIECE as f64 * 8.0 / 1e9)])
}

fn udp(to: SocketAddr, length: Duration) -> Result<Vec<(Figure, f64)>> {
    let socket = udp_socket(to)?;
    let mut answer = [0; MESSAGE];
    let each = again(length, || {
        for _ in 0..WINDOW {
            socket.send(&[0; MESSAGE]).context("sending")?;
        }
        for number in 0..WINDOW {
            if let Err(error) = socket.recv(&mut answer) {
                bail!("{number} of {WINDOW} datagrams were answered: {error}");
            }
        }
        Ok(())
    })?;
    // Of both directions.
    Ok(vec![(Figure::Datagrams, rate(&each)? * WINDOW as f64 * 2.0)])
}

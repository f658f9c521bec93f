//! A connection that streams in both directions while other things happen, and checks every byte.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::poll::PollFlags;

use super::client::{DialError, Held, open_here};
use super::sequence::{Sequence, SequenceCheck};
use super::{DEADLINE, socket};
use crate::namespace::Namespace;

/// Bytes that may be under way: sent and not yet echoed.
const WINDOW: u64 = 64 * 1024;
/// Longest a stream may stand still before it counts as broken.
const STALL: Duration = Duration::from_secs(10);
/// Bytes per write.
const PIECE: usize = 4 * 1024;

/// A running stream. Dropping it ends the connection.
#[derive(Debug)]
pub struct Stream {
    /// The server that answered.
    pub server: u16,
    /// The client's own address and port.
    pub local: SocketAddr,
    progress: Arc<AtomicU64>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<StreamReport>>>,
}

/// What a stream saw.
#[derive(Debug, Clone, Copy)]
pub struct StreamReport {
    /// Bytes sent, echoed and found in order.
    pub bytes: u64,
    /// Longest time in which nothing came back while bytes were under way.
    pub longest_gap: Duration,
    /// From start to finish.
    pub took: Duration,
}

impl Stream {
    /// Opens a connection and streams about `bytes_per_second` for at most `limit`.
    pub fn start(
        from: &Namespace,
        source: Option<SocketAddr>,
        to: SocketAddr,
        bytes_per_second: u64,
        limit: Duration,
    ) -> Result<Self, DialError> {
        let held = from.enter(|| open_here(source, to, DEADLINE))?;
        let failed = |error| DialError::new(error, Duration::ZERO);
        held.stream().set_nonblocking(true).map_err(failed)?;
        let (server, local) = (held.server, held.local().map_err(failed)?);
        let progress = Arc::new(AtomicU64::new(0));
        let ending = Arc::new(AtomicBool::new(false));
        let pump = Pump {
            held,
            begin: Instant::now(),
            limit,
            bytes_per_second,
            progress: Arc::clone(&progress),
            ending: Arc::clone(&ending),
        };
        let thread = std::thread::Builder::new().name("stream".into()).spawn(move || pump.run());
        let thread = Some(thread.map_err(failed)?);
        Ok(Self { server, local, progress, ending, thread })
    }

    /// Bytes that came back in order so far.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Waits until `bytes` more have come back: proof that the stream is alive now.
    pub fn advance(&self, bytes: u64, deadline: Duration) -> Result<()> {
        let (end, from) = (Instant::now() + deadline, self.progress());
        while self.progress() < from + bytes {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                bail!("the stream ended after {} bytes", self.progress());
            }
            if Instant::now() >= end {
                bail!("the stream moved {} of {bytes} bytes in {deadline:.1?}", self.progress() - from);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Sends no more, waits for what is under way, half-closes, and expects the server's end of stream right after the
    /// last byte. An error says at which byte the stream broke.
    pub fn finish(mut self) -> Result<StreamReport> {
        self.ending.store(true, Ordering::Relaxed);
        let thread = self.thread.take().ok_or_else(|| anyhow!("the stream was already finished"))?;
        thread.join().map_err(|_| anyhow!("the stream's thread panicked"))?
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Whoever wants the result calls `finish`.
            let _unread = thread.join();
        }
    }
}

struct Pump {
    held: Held,
    begin: Instant,
    limit: Duration,
    bytes_per_second: u64,
    progress: Arc<AtomicU64>,
    ending: Arc<AtomicBool>,
}

impl Pump {
    fn run(self) -> Result<StreamReport> {
        let (mut sequence, mut check) = (Sequence::default(), SequenceCheck::default());
        let mut last_byte = Instant::now();
        let mut longest_gap = Duration::ZERO;
        let (mut half_closed, mut buffer) = (false, vec![0; 64 * 1024]);
        loop {
            let ending = self.ending.load(Ordering::Relaxed) || self.begin.elapsed() >= self.limit;
            if ending && !half_closed {
                self.held.stream().shutdown(std::net::Shutdown::Write).context("half-closing the stream")?;
                half_closed = true;
            }
            let under_way = sequence.offset() - check.offset();
            if under_way == 0 && !half_closed {
                // Idle by its own pace: time passes without anybody being late.
                last_byte = Instant::now();
            }
            let due = (self.begin.elapsed().as_secs_f64() * self.bytes_per_second as f64) as u64;
            if !half_closed && under_way < WINDOW && sequence.offset() < due {
                let length = (due - sequence.offset()).min(PIECE as u64);
                self.send(&mut sequence, length as usize)?;
            }
            let soon = Instant::now() + Duration::from_millis(2);
            match socket::wait(self.held.stream(), PollFlags::POLLIN, soon) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) => return Err(error).context("waiting for the stream"),
            }
            match self.held.stream().read(&mut buffer) {
                Ok(0) if half_closed && check.offset() == sequence.offset() => {
                    let took = self.begin.elapsed();
                    return Ok(StreamReport { bytes: check.offset(), longest_gap, took });
                }
                Ok(0) => bail!("the server closed after {} of {} bytes", check.offset(), sequence.offset()),
                Ok(count) => {
                    check.take(&buffer[..count])?;
                    longest_gap = longest_gap.max(last_byte.elapsed());
                    last_byte = Instant::now();
                    self.progress.store(check.offset(), Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if last_byte.elapsed() > STALL {
                        bail!("nothing came for {STALL:?} after byte {}", check.offset());
                    }
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("reading after byte {}", check.offset()));
                }
            }
        }
    }

    fn send(&self, sequence: &mut Sequence, length: usize) -> Result<()> {
        let mut piece = [0; PIECE];
        let piece = &mut piece[..length];
        sequence.fill(piece);
        match self.held.stream().write(piece) {
            Ok(count) => sequence.rewind(piece.len() - count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sequence.rewind(piece.len()),
            Err(error) => {
                return Err(error).with_context(|| format!("writing at byte {}", sequence.offset()));
            }
        }
        Ok(())
    }
}

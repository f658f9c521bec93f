//! Waiting for processes with a deadline.

use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

/// Waits for a process with a deadline; kills it then.
pub(super) fn wait(child: &mut Child, deadline: Duration) -> Result<ExitStatus> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            bail!("process {} did not end within {deadline:?} and was killed", child.id());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program to its end, killing it at the deadline.
pub(super) fn output(command: &mut Command, deadline: Duration) -> Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stdout = read_all(child.stdout.take());
    let stderr = read_all(child.stderr.take());
    let status = wait(&mut child, deadline)?;
    let joined = |reader: std::thread::JoinHandle<Vec<u8>>| reader.join().map_err(|_| anyhow!("a reader panicked"));
    Ok(Output { status, stdout: joined(stdout)?, stderr: joined(stderr)? })
}

fn read_all(from: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            // What was read before an error is still worth showing.
            let _partial = from.read_to_end(&mut bytes);
        }
        bytes
    })
}

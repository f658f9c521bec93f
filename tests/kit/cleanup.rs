//! What this process has made outside itself and must remove: one list, emptied by drop, by panic and by signals.
//!
//! A destructor alone is not enough: a signal ends the process without running any. So each maker registers its undo
//! here, the destructor runs it, and the signal thread runs what is left, newest first.

use std::sync::{Mutex, PoisonError, RwLock};
use std::thread::ThreadId;

use anyhow::Result;
use nix::libc;
use tokio::signal::unix::{SignalKind, signal};

type Undo = Box<dyn FnOnce() + Send>;

struct Entry {
    id: u64,
    what: String,
    undo: Undo,
}

struct Pending {
    next: u64,
    entries: Vec<Entry>,
}

static PENDING: Mutex<Pending> = Mutex::new(Pending { next: 0, entries: Vec::new() });

/// The thread that has begun the removal, once there is one. Makers hold it for reading from before they make until
/// after they have registered, so nothing can appear behind the back of [`run_all`].
static CLOSED_BY: RwLock<Option<ThreadId>> = RwLock::new(None);

/// Runs its undo when dropped, unless a signal already did.
#[must_use = "dropping the guard undoes at once"]
#[derive(Debug)]
pub struct Guard {
    id: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Else the main thread could unwind to its end, and with it the process, in the middle of the removal.
        wait_if_closing();
        let entry = {
            let mut pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
            let place = pending.entries.iter().position(|entry| entry.id == self.id);
            place.map(|place| pending.entries.remove(place))
        };
        // Outside the lock: an undo may run programs, and may itself drop guards.
        if let Some(entry) = entry {
            (entry.undo)();
        }
    }
}

/// Makes something that outlives the process and registers how to remove it. `undo` must tolerate that the thing is
/// already gone. A thread that comes here after a signal waits for the end of the process.
pub fn create<T>(
    what: impl Into<String>,
    make: impl FnOnce() -> Result<T>,
    undo: impl FnOnce() + Send + 'static,
) -> Result<(T, Guard)> {
    let closed_by = CLOSED_BY.read().unwrap_or_else(PoisonError::into_inner);
    if closed_by.is_some() {
        drop(closed_by);
        wait_for_the_end();
    }
    let made = make()?;
    let mut pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
    let id = pending.next;
    pending.next += 1;
    pending.entries.push(Entry { id, what: what.into(), undo: Box::new(undo) });
    Ok((made, Guard { id }))
}

/// Returns at once, unless another thread is removing everything: then waits for the end of the process. For whoever
/// would report the removal as a failure.
pub fn wait_if_closing() {
    let closed_by = *CLOSED_BY.read().unwrap_or_else(PoisonError::into_inner);
    if closed_by.is_some_and(|thread| thread != std::thread::current().id()) {
        wait_for_the_end();
    }
}

fn wait_for_the_end() -> ! {
    loop {
        std::thread::park();
    }
}

/// Names of what is registered now, oldest first.
pub fn pending() -> Vec<String> {
    let pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
    pending.entries.iter().map(|entry| entry.what.clone()).collect()
}

/// Removes everything registered, newest first, and lets no thread make anything more. For the end of the process.
pub fn run_all() {
    *CLOSED_BY.write().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current().id());
    loop {
        let entry = PENDING.lock().unwrap_or_else(PoisonError::into_inner).entries.pop();
        match entry {
            Some(entry) => (entry.undo)(),
            None => return,
        }
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP remove everything registered and end the process with 128 + the signal.
pub fn on_signals() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate, mut hangup) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?)
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let number = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => libc::SIGINT,
                _ = terminate.recv() => libc::SIGTERM,
                _ = hangup.recv() => libc::SIGHUP,
            }
        });
        eprintln!("\ninterrupted: removing what was made ({})", pending().len());
        run_all();
        std::process::exit(128 + number);
    })?;
    Ok(())
}

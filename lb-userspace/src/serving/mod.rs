//! The HTTP servers of the agent. None of them lets a client keep more than its share: of connections, memory or time.
//!
//! | module | idea |
//! |---|---|
//! | `listen` | sockets, of one family where there is one for each |
//! | `connections` | how many clients there may be, and for how long |

mod connections;
mod listen;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use axum::Router;
use tracing::{info, warn};

pub(crate) use connections::answer;
pub(crate) use listen::{Families, listen};

use crate::notices::{Notice, Notices};

/// How soon an address that is taken is tried again (HZ-7).
const RETRY: Duration = Duration::from_secs(5);

/// Where the agent answers something.
#[derive(Clone, Debug)]
pub struct Server {
    /// The flag that says where.
    pub flag: &'static str,
    /// The address.
    pub at: SocketAddr,
    /// What is there, for the log.
    pub paths: &'static str,
    /// How many clients it has at one time: what they are sent waits in memory until they take it.
    pub clients: usize,
    /// What the node is told when the address cannot be listened on.
    pub notice: fn(String) -> Notice,
    /// Then it is over with the agent; else it tries again.
    pub hard_fail: bool,
}

impl Server {
    /// Answers for ever. While the address cannot be listened on, that is told once and tried again.
    ///
    /// # Errors
    /// The address cannot be listened on, and that was to be the agent's end.
    pub async fn serve(self, router: Router, notices: Notices) -> Result<()> {
        let Self { flag, at, .. } = self;
        let mut told = false;
        let listener = loop {
            let error = match listen(at, Families::Both) {
                Ok(listener) => break listener,
                Err(error) => error,
            };
            if !std::mem::replace(&mut told, true) {
                notices.tell((self.notice)(format!("cannot listen on {at} ({flag}): {error}")));
                if self.hard_fail {
                    bail!("{flag} {at}: cannot listen: {error}: free it, or give another address, or empty for none");
                }
                warn!("{flag} {at}: cannot listen: {error}; trying again every {RETRY:?}");
            }
            tokio::time::sleep(RETRY).await;
        };
        info!("answering at http://{at}: {}", self.paths);
        answer(listener, router, self.clients).await;
        Ok(())
    }
}

//! IPVS as a director that scripts are played to: time passes for it only by waiting.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::ipvs::Ipvs;
use super::played::Playable;

impl Playable for Ipvs {
    const NAME: &'static str = "ipvs";
    /// The timer of such a connection is moved to now, and runs a moment later (`ip_vs_conn_expire_now`).
    const ENDS_LATER: bool = true;

    fn pass_time(&mut self, time: Duration, passed: bool) -> Result<bool> {
        if !passed {
            thread::sleep(time);
        }
        Ok(true)
    }

    fn forget(&mut self) -> Result<()> {
        // Connections stay until they time out. Later scripts have other addresses.
        Ok(())
    }
}

//! `bpvs set-timeouts`: what `ipvsadm --set` is.

use std::process::ExitCode;

use anyhow::{Result, bail};
use aya::maps::{Array, MapData};
use clap::Args;
use lb_common::layout::{Settings, VERSION};

use super::PinArgs;
use crate::kernel::pins::Pins;
use crate::kernel::raw::Raw;
use crate::kernel::settings;
use crate::view::pinned;

/// Arguments of `bpvs set-timeouts`, in the order of ipvsadm's.
#[derive(Debug, Args)]
pub(super) struct TimeoutArgs {
    /// Seconds that an established TCP connection lives after its last packet; 0 keeps what there is
    #[arg(value_parser = seconds)]
    tcp: u32,
    /// Seconds that a TCP connection lives that the server has closed; 0 keeps
    #[arg(value_parser = seconds)]
    tcpfin: u32,
    /// Seconds that a UDP flow lives after its last packet; 0 keeps
    #[arg(value_parser = seconds)]
    udp: u32,
    #[command(flatten)]
    pins: PinArgs,
}

/// The maps hold milliseconds in 32 bits.
const LONGEST: u32 = u32::MAX / 1000;

/// Seconds, in milliseconds.
fn seconds(text: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = digits.then(|| text.parse::<u32>().ok()).flatten().filter(|seconds| *seconds <= LONGEST);
    match seconds {
        Some(seconds) => Ok(seconds * 1000),
        None => Err(format!("must be a number of seconds from 1 to {LONGEST}, or 0 to keep what there is")),
    }
}

pub(super) fn set(args: &TimeoutArgs) -> Result<ExitCode> {
    let pins = Pins::new(&args.pins.pin_path);
    let mut map: Array<MapData, Raw<Settings>> = pinned::open(&pins, "settings")?;
    let mut found = 0;
    settings::edit(&pins, &mut map, |settings| {
        found = settings.version;
        let timeouts = settings.timeouts.set(args.tcp, args.tcpfin, args.udp);
        if found == VERSION { Settings { timeouts, ..settings } } else { settings }
    })?;
    match found {
        VERSION => Ok(ExitCode::SUCCESS),
        0 => bail!("the agent has not started yet: nothing was changed; wait for it, or start `bpvs run`"),
        other => bail!(
            "the maps under {} have layout version {other}, this bpvs knows {VERSION}: use the bpvs that made them",
            pins.root().display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_digits_up_to_what_the_map_holds() {
        for (text, expected) in [("0", 0), ("1", 1_000), ("4294967", 4_294_967_000)] {
            assert_eq!(seconds(text), Ok(expected));
        }
        for text in ["", "-1", "+1", "1s", "4294968", "99999999999", "1.5", "٣"] {
            assert!(seconds(text).unwrap_err().contains("from 1 to 4294967"), "{text}");
        }
    }
}

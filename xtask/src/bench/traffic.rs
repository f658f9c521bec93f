//! `cargo xtask bench traffic`: hands its options to `bpvs-bench traffic`, built as bpvs is shipped, since what clients and
//! servers do is part of every figure.

use anyhow::Result;

use crate::host;

/// What can be chosen.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How often each row is measured [default: 5]
    #[arg(long, value_name = "N")]
    rounds: Option<String>,
    /// How long each time, in seconds [default: 0.3]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<String>,
    /// Numbers of Services [default: 1,1000,10000]
    #[arg(long, value_name = "N,...")]
    services: Option<String>,
    /// Rows besides no proxy: tc, direct, socket, iptables-nft, iptables-legacy, nftables [default: all]
    #[arg(long, value_name = "NAME,...")]
    rows: Option<String>,
    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
}

impl Options {
    /// As `bpvs-bench` has them.
    fn arguments(&self) -> Result<Vec<String>> {
        let mut arguments = vec!["traffic".to_owned()];
        let given = [
            ("--rounds", &self.rounds),
            ("--seconds", &self.seconds),
            ("--services", &self.services),
            ("--rows", &self.rows),
        ];
        for (name, value) in given {
            arguments.extend(value.iter().flat_map(|value| [name.to_owned(), value.clone()]));
        }
        arguments.extend(super::json(self.json.as_deref())?);
        Ok(arguments)
    }
}

/// The task.
pub(super) fn run(options: &Options) -> Result<()> {
    host::become_program("bench", "bpvs-bench", host::Profile::Release, &options.arguments()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_given_is_handed_on() {
        let mut options = Options { rounds: None, seconds: None, services: None, rows: None, json: None };
        assert_eq!(options.arguments().unwrap(), ["traffic"]);
        options.services = Some("1,10".to_owned());
        options.json = Some("/x.json".to_owned());
        assert_eq!(options.arguments().unwrap(), ["traffic", "--services", "1,10", "--json", "/x.json"]);
    }
}

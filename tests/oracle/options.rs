//! What can be asked for.

use std::str::FromStr;

use anyhow::{Context, Result, bail};
use lb_common::scheduler::Scheduler;

pub(crate) const USAGE: &str = "\
usage: bpvs-oracle [--against ipvs|model] [--schedulers NAME,...] [--cases N] [--seed S] [--fixed] [--record] [--script TEXT]

Plays the same scripts to a reference and to bpvs, with real packets, and compares answer by answer. Needs root.

  --against REFERENCE  ipvs (default): this kernel's; model: what we believe of it
  --schedulers LIST    those to compare; default all
  --cases N            random scripts for each scheduler; default 200
  --seed S             where they begin; default 1
  --fixed              only the fixed scripts, which come first otherwise
  --record             print each script with the reference's answers
  --script TEXT        only this script, or these, a line each, as histories show them; their answers are not looked at
";

/// Who is right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Against {
    /// Linux IPVS.
    Ipvs,
    /// The model.
    Model,
}

impl FromStr for Against {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "ipvs" => Ok(Self::Ipvs),
            "model" => Ok(Self::Model),
            other => bail!("--against {other}: there are ipvs and model"),
        }
    }
}

/// The command line.
pub(crate) struct Options {
    pub(crate) against: Against,
    pub(crate) schedulers: Vec<Scheduler>,
    pub(crate) cases: u32,
    pub(crate) seed: u64,
    pub(crate) only_fixed: bool,
    pub(crate) record: bool,
    pub(crate) script: Option<String>,
}

impl Options {
    /// Reads it; none if help was asked for.
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut options = Self {
            against: Against::Ipvs,
            schedulers: Scheduler::ALL.to_vec(),
            cases: 200,
            seed: 1,
            only_fixed: false,
            record: false,
            script: None,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--against" => options.against = value()?.parse()?,
                "--schedulers" => options.schedulers = schedulers(&value()?)?,
                "--cases" => options.cases = number(&argument, &value()?)?,
                "--seed" => options.seed = number(&argument, &value()?)?,
                "--script" => options.script = Some(value()?),
                "--fixed" => options.only_fixed = true,
                "--record" => options.record = true,
                "--help" | "-h" => return Ok(None),
                other => bail!("`{other}` is no option"),
            }
        }
        Ok(Some(options))
    }
}

fn schedulers(list: &str) -> Result<Vec<Scheduler>> {
    if list == "all" {
        return Ok(Scheduler::ALL.to_vec());
    }
    let named = |name: &str| Scheduler::from_name(name).with_context(|| format!("`{name}` is no scheduler"));
    list.split(',').map(named).collect()
}

fn number<T: FromStr>(option: &str, text: &str) -> Result<T> {
    text.parse().ok().with_context(|| format!("{option} {text}: not a number that can stand there"))
}

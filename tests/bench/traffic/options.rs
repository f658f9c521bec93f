//! What can be chosen.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use super::rows::Row;

/// How to measure.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// How often each row is measured.
    pub(crate) rounds: u32,
    /// How long each time.
    pub(crate) seconds: f64,
    /// Numbers of Services.
    pub(crate) services: Vec<u32>,
    /// Rows; the first is no proxy, to which the others are compared.
    pub(crate) rows: Vec<Row>,
    /// Where to write the figures.
    pub(crate) json: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let (rounds, seconds, services) = (5, 0.3, vec![1, 1_000, 10_000]);
        Self { rounds, seconds, services, rows: Row::ALL.to_vec(), json: None }
    }
}

impl Options {
    /// Reads the arguments after `traffic`; none for a request for help.
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut options = Self::default();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--rounds" => options.rounds = number(&argument, &value()?, 1, 1_000)?,
                "--seconds" => options.seconds = seconds(&value()?)?,
                "--services" => {
                    let text = value()?;
                    options.services =
                        text.split(',').map(|one| number(&argument, one, 1, 20_000)).collect::<Result<_>>()?;
                }
                "--rows" => options.rows = rows(&value()?)?,
                "--json" => options.json = Some(value()?.into()),
                "--help" | "-h" => return Ok(None),
                other => bail!("unknown argument {other:?} of `traffic`"),
            }
        }
        Ok(Some(options))
    }
}

fn number(name: &str, text: &str, least: u32, most: u32) -> Result<u32> {
    let parsed = text.parse().ok().filter(|found| (least..=most).contains(found));
    parsed.with_context(|| format!("{name}: {text:?} is no number from {least} to {most}"))
}

fn seconds(text: &str) -> Result<f64> {
    let parsed = text.parse().ok().filter(|found| (0.01..=60.0).contains(found));
    parsed.with_context(|| format!("--seconds: {text:?} is no time from 0.01 to 60 seconds"))
}

fn rows(text: &str) -> Result<Vec<Row>> {
    let mut rows = vec![Row::NoProxy];
    for name in text.split(',') {
        let known = || Row::ALL.map(Row::key).join(", ");
        let row = Row::ALL.into_iter().find(|row| row.key() == name);
        let row = row.with_context(|| format!("--rows: {name:?} is none of {}", known()))?;
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    ensure!(rows.len() > 1, "--rows names nothing to compare with no proxy");
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Option<Options>> {
        Options::read(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn what_is_given_replaces_what_stands() {
        let options = read("--rounds 2 --services 1,50 --seconds 0.05 --rows nftables,tc,nftables").unwrap().unwrap();
        assert_eq!((options.rounds, options.seconds, options.services), (2, 0.05, vec![1, 50]));
        assert_eq!(options.rows, [Row::NoProxy, Row::Nftables, Row::Tc]);
        assert!(read("--help").unwrap().is_none());
        assert_eq!(read("").unwrap().unwrap().rows, Row::ALL);
    }

    #[test]
    fn a_wrong_argument_is_named_with_what_is_allowed() {
        for (line, said) in [
            ("--rounds 0", "--rounds: \"0\" is no number from 1 to 1000"),
            ("--rounds", "--rounds needs a value"),
            ("--seconds nan", "--seconds: \"nan\" is no time"),
            ("--services 1,,2", "--services: \"\" is no number from 1 to 20000"),
            ("--services 30000", "--services: \"30000\""),
            ("--rows tc,xdp2", "--rows: \"xdp2\" is none of none, tc"),
            ("--rows none", "nothing to compare"),
            ("--quick", "unknown argument \"--quick\""),
        ] {
            let error = format!("{:#}", read(line).unwrap_err());
            assert!(error.contains(said), "{line}: {error}");
        }
    }
}

//! Figures as tables that documents can take over, and as JSON.

use std::fmt::Write;
use std::process::Command;

use anyhow::Result;
use bpvs_tests::namespace;
use serde_json::{Value, json};

use super::figures::{Figure, Samples};
use super::network::Direction;
use super::options::Options;
use super::rows::Row;

/// Date and command.
pub(crate) fn heading(options: &Options) -> Result<String> {
    let date = namespace::run(Command::new("date").args(["--utc", "+%F"]))?;
    let list: Vec<String> = options.services.iter().map(u32::to_string).collect();
    let mut line = format!(
        "{}: cargo xtask bench traffic --rounds {} --seconds {} --services {}",
        String::from_utf8_lossy(&date.stdout).trim(),
        options.rounds,
        options.seconds,
        list.join(",")
    );
    if options.rows != Row::ALL {
        let rows: Vec<&str> = options.rows.iter().skip(1).map(|row| row.key()).collect();
        write!(line, " --rows {}", rows.join(","))?;
    }
    Ok(line)
}

/// The tables of a number of Services: of no proxy the figures, of all others their ratios to it.
pub(crate) fn of_size(samples: &Samples, services: u32) -> String {
    let mut text = String::new();
    for direction in Direction::ALL {
        let rows = Row::ALL.into_iter().filter(|row| samples.keys().any(|key| key.1 == direction && key.2 == *row));
        let names = Figure::ALL.map(Figure::name).join(" | ");
        text += &format!("{}, {services} Services\n\n| | {names} |\n|---{}|\n", direction.name(), "|---".repeat(6));
        for row in rows {
            let cells = Figure::ALL.map(|figure| cell(samples, (services, direction, row, figure)));
            text += &format!("| {} | {} |\n", row.name(), cells.join(" | "));
        }
        text.push('\n');
    }
    text
}

fn cell(samples: &Samples, key: (u32, Direction, Row, Figure)) -> String {
    if key.2 == Row::NoProxy {
        return match samples.median(key) {
            Some(value) if value < 100.0 => format!("{value:.1}"),
            Some(value) => format!("{value:.0}"),
            None => "-".to_owned(),
        };
    }
    samples.ratio(key).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"))
}

/// Where a row of bpvs is not ahead of one of kube-proxy.
pub(crate) fn behind(samples: &Samples) -> String {
    let mut text = String::new();
    for key @ (services, direction, row, figure) in samples.keys().filter(|key| key.2.is_bpvs()) {
        let Some(own) = samples.ratio(key) else { continue };
        for other in Row::ALL.into_iter().filter(|other| *other != Row::NoProxy && !other.is_bpvs()) {
            let theirs = samples.ratio((services, direction, other, figure));
            if let Some(theirs) = theirs.filter(|theirs| !figure.is_better(own, *theirs)) {
                text += &format!(
                    "not ahead: {}, {services} Services, {}, {}: {own:.3}, {} {theirs:.3}\n",
                    row.name(),
                    direction.name(),
                    figure.name(),
                    other.name()
                );
            }
        }
    }
    text
}

/// Every figure as an object.
pub(crate) fn json(samples: &Samples) -> Value {
    let object = |key: (u32, Direction, Row, Figure)| {
        let (services, direction, row, figure) = key;
        json!({
            "services": services, "direction": direction.key(), "row": row.key(), "figure": figure.key(),
            "median": samples.median(key), "ratio": samples.ratio(key), "ratios": samples.ratios(key),
        })
    };
    samples.keys().map(object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Samples {
        let mut samples = Samples::default();
        for (row, rate, late) in [(Row::NoProxy, 1_000.0, 50.0), (Row::Tc, 900.0, 60.0), (Row::Nftables, 800.0, 55.0)] {
            samples.add(1, Direction::Pod, row, Figure::Connections, rate);
            samples.add(1, Direction::Pod, row, Figure::Late, late);
        }
        samples
    }

    #[test]
    fn tables_have_figures_of_no_proxy_and_ratios_of_the_others() {
        let text = of_size(&samples(), 1);
        for line in [
            "| no proxy | 1000 | - | 50.0 | - | - | - |",
            "| bpvs, tc | 0.900 | - | 1.200 | - | - | - |",
            "| nftables | 0.800 | - | 1.100 | - | - | - |",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert!(!text.contains("bpvs, socket"));
    }

    #[test]
    fn what_is_not_ahead_is_told() {
        assert_eq!(
            behind(&samples()),
            "not ahead: bpvs, tc, 1 Services, pod to cluster address, p99, us: 1.200, nftables 1.100\n"
        );
    }

    #[test]
    fn json_has_every_figure() {
        let json = json(&samples());
        assert_eq!(json.as_array().unwrap().len(), 6);
        let tc = json.as_array().unwrap().iter().find(|object| object["row"] == "tc" && object["ratio"] == 0.9);
        assert_eq!(tc.unwrap()["figure"], "short_connections_per_s");
    }
}

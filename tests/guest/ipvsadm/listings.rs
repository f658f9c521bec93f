//! One question, asked of `ipvsadm` and of `bpvs`: both print the same bytes.
//!
//! What may differ, and nothing else, is an [`Allowance`].

use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};

use super::directors::Directors;

/// What is made the same before two answers are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Allowance {
    /// Nothing.
    None,
    /// The first line has the program's name and version, and the size of a table that each of them has for itself:
    /// it must begin with what is given here, and the rest of it is left out.
    Title,
    /// IPVS prints connections in the order of its hash table, which is another one after each boot: lines are sorted. Each
    /// connection began a moment later in bpvs than in IPVS, and is asked for a moment later too: an expiry that differs by
    /// no more than [`MOMENT`] seconds is taken for the same.
    Connections,
    /// `ipvsadm -S` forgets thresholds, which `bpvs save` writes: they are left out.
    Thresholds,
}

/// What a title begins with.
const TITLES: [&str; 2] = ["IP Virtual Server version ", "BPF Virtual Server version "];
/// Seconds.
const MOMENT: u64 = 2;

/// A question in both languages.
pub(super) type Question = (&'static [&'static str], &'static [&'static str], Allowance);

/// All listings of services.
pub(super) const SERVICES: [Question; 10] = [
    (&["-Ln"], &["list", "-n"], Allowance::Title),
    (&["-Ln", "--exact"], &["list", "-n", "--exact"], Allowance::Title),
    (&["-Ln", "--stats"], &["list", "-n", "--stats"], Allowance::Title),
    (&["-Ln", "--stats", "--exact"], &["list", "-n", "--stats", "--exact"], Allowance::Title),
    (&["-Ln", "--rate"], &["list", "-n", "--rate"], Allowance::Title),
    (&["-Ln", "--rate", "--exact"], &["list", "-n", "--rate", "--exact"], Allowance::Title),
    (&["-Ln", "--thresholds"], &["list", "-n", "--thresholds"], Allowance::Title),
    (&["-Ln", "--persistent-conn"], &["list", "-n", "--persistent-conn"], Allowance::Title),
    (&["-Ln", "--tun-info"], &["list", "-n", "--tun-info"], Allowance::Title),
    (&["-Ln", "--timeout"], &["list", "-n", "--timeout"], Allowance::None),
];

/// The rules.
pub(super) const SAVED: Question = (&["-Sn"], &["save"], Allowance::Thresholds);
/// The connections.
pub(super) const CONNECTIONS: Question = (&["-Lnc"], &["connections"], Allowance::Connections);

/// The answer of both, which is the same.
pub(super) fn same(directors: &Directors<'_>, question: Question) -> Result<String> {
    let (ipvsadm, bpvs, allowance) = question;
    compared(&directors.ipvsadm(ipvsadm)?, &directors.bpvs(bpvs)?, allowance)
        .with_context(|| format!("`bpvs {}` prints another thing than `ipvsadm {}`", bpvs.join(" "), ipvsadm.join(" ")))
}

/// What `ipvsadm` printed, if `bpvs` printed the same.
fn compared(ipvsadm: &str, bpvs: &str, allowance: Allowance) -> Result<String> {
    let (mut wanted, mut found) = (lines(ipvsadm), lines(bpvs));
    match allowance {
        Allowance::None => {}
        Allowance::Title => {
            for (lines, title) in [&mut wanted, &mut found].into_iter().zip(TITLES) {
                let first = lines.first_mut().context("there is no title")?;
                ensure!(first.starts_with(title) && first.ends_with(")\n"), "the title is {first:?}");
                *first = "title\n".to_owned();
            }
        }
        Allowance::Connections => {
            wanted.sort_by_key(|line| without_expiry(line));
            found.sort_by_key(|line| without_expiry(line));
            for (wanted, found) in wanted.iter_mut().zip(&mut found) {
                if let (Some(a), Some(b)) = (expiry(wanted), expiry(found))
                    && a.abs_diff(b) <= MOMENT
                {
                    (*wanted, *found) = (without_expiry(wanted), without_expiry(found));
                }
            }
        }
        Allowance::Thresholds => found.iter_mut().for_each(|line| *line = without_thresholds(line)),
    }
    if wanted == found {
        return Ok(ipvsadm.to_owned());
    }
    let only = |these: &[String], those: &[String]| -> String {
        these.iter().filter(|line| !those.contains(line)).map(|line| format!("  {line:?}\n")).collect()
    };
    let (wanted, found) = (only(&wanted, &found), only(&found, &wanted));
    bail!("only ipvsadm:\n{wanted}only bpvs:\n{found}ipvsadm printed\n{ipvsadm}bpvs printed\n{bpvs}")
}

/// Lines with their ends, blanks at which count too.
fn lines(text: &str) -> Vec<String> {
    text.split_inclusive('\n').map(str::to_owned).collect()
}

/// The column `expire`, in seconds; none in a heading.
fn expiry(line: &str) -> Option<u64> {
    let (minutes, seconds) = line.get(column(line))?.trim_end().split_once(':')?;
    Some(minutes.parse::<u64>().ok()? * 60 + seconds.parse::<u64>().ok()?)
}

/// Where the column is, as `%-3s %-6s ` puts it behind the name of a protocol, with the blank behind it.
fn column(line: &str) -> Range<usize> {
    let start = line.find(' ').unwrap_or_default().max(3) + 1;
    start..start + 7
}

fn without_expiry(line: &str) -> String {
    let column = column(line);
    match expiry(line) {
        Some(_) => format!("{}expire {}", &line[..column.start], &line[column.end..]),
        None => line.to_owned(),
    }
}

fn without_thresholds(line: &str) -> String {
    line.split_once(" -x ").map_or_else(|| line.to_owned(), |(before, _)| format!("{before}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "IPVS connection entries\npro expire state       source             virtual            destination\n";
    const ONE: &str = "TCP 14:57  ESTABLISHED 10.1.2.3:1006      10.96.0.1:80       10.1.0.1:8080\n";
    const TWO: &str = "UDP 04:57  UDP         10.1.2.3:1006      10.96.0.1:53       10.1.0.1:5353\n";

    #[test]
    fn the_expiry_stands_behind_the_protocol() {
        for (line, seconds, without) in [
            ("IP  04:59  NONE", Some(299), "IP  expire NONE"),
            ("TCP 00:09  CLOSE", Some(9), "TCP expire CLOSE"),
            ("SCTP 120:00 ESTABLISHED", Some(7200), "SCTP expire ESTABLISHED"),
            ("pro expire state", None, "pro expire state"),
            ("IPVS connection entries", None, "IPVS connection entries"),
        ] {
            assert_eq!((expiry(line), without_expiry(line).as_str()), (seconds, without));
        }
    }

    #[test]
    fn connections_may_differ_in_their_order_and_by_a_moment() {
        let listing = |lines: [&str; 2]| [HEAD, lines[0], lines[1]].concat();
        let same = |found: &str| compared(&listing([ONE, TWO]), found, Allowance::Connections).is_ok();
        assert!(same(&listing([ONE, TWO])));
        assert!(same(&listing([TWO, ONE])));
        assert!(same(&listing([TWO, &ONE.replace("14:57", "14:59")])));
        for wrong in [
            listing([&ONE.replace("14:57", "15:00"), TWO]),
            listing([&ONE.replace("ESTABLISHED", "CLOSE      "), TWO]),
            listing([&ONE.replace("8080", "8081"), TWO]),
            listing([&ONE.replace("8080", "8080 "), TWO]),
            listing([&ONE.replace("14:57 ", "14:57"), TWO]),
            listing([ONE, ""]),
            listing([ONE, TWO]) + TWO,
        ] {
            assert!(!same(&wrong), "{wrong}");
        }
    }

    #[test]
    fn titles_and_thresholds_alone_may_differ() {
        let same = |wanted: &str, found: &str, allowance| compared(wanted, found, allowance).is_ok();
        let (wanted, found) =
            ("IP Virtual Server version 1.2.1 (size=4096)\n", "BPF Virtual Server version 0.1.0 (size=1)\n");
        assert!(same(wanted, found, Allowance::Title));
        assert!(same(&format!("{wanted}a \n"), &format!("{found}a \n"), Allowance::Title));
        assert!(!same(&format!("{wanted}a \n"), &format!("{found}a\n"), Allowance::Title));
        assert!(!same(wanted, wanted, Allowance::Title) && !same(wanted, found, Allowance::None));
        let (wanted, found) = ("-a -f 1 -r 10.1.0.1:0 -m -w 1\n", "-a -f 1 -r 10.1.0.1:0 -m -w 1 -x 2 -y 1\n");
        assert!(same(wanted, found, Allowance::Thresholds) && !same(wanted, found, Allowance::None));
        assert!(!same(wanted, &found.replace("-w 1", "-w 2"), Allowance::Thresholds));
    }
}

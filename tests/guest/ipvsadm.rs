//! `bpvs-guest ipvsadm SCHEDULER,...`: does bpvs print what the real `ipvsadm` prints, and read what it saves? IPVS and
//! bpvs have a network each; what they are told and what passes through them is the same, and so is every byte that is
//! printed of it, but for what [`listings::Allowance`] names.
//!
//! | module | what |
//! |---|---|
//! | [`directors`] | both, and how they are told and asked |
//! | [`kinds`] | rules of every kind |
//! | [`listings`] | questions, and what their answers may differ in |
//! | [`traffic`] | rules and packets that make something to list |

mod directors;
mod kinds;
mod listings;
mod traffic;

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bpvs_tests::agent::{Agent, Builder, binary};
use bpvs_tests::namespace::Namespace;
use lb_common::scheduler::Scheduler;

use directors::{Directors, ipvsadm};
use listings::{Allowance, CONNECTIONS, Question, SAVED, SERVICES, same};

pub(crate) use directors::Networks;
pub(crate) use traffic::MARKS;

/// Longest time until the agent has followed its file, and until IPVS has summed up its counters, which it does every two
/// seconds.
const DEADLINE: Duration = Duration::from_secs(20);
/// Longer than all timeouts of states but those of established connections, and long enough that IPVS's estimate of what
/// passed per second is 0. Timers of Linux are up to an eighth late.
const LATER: Duration = Duration::from_secs(150);

/// Of the agent. Filters stand in an order, which the marks need; TCX programs would come before all of them. Each program
/// and each place in a map that a listing reads costs time, and more so where a processor is emulated.
const OPTIONS: [&str; 8] =
    ["--tc", "clsact", "--socket-lb", "off", "--max-services", "1024", "--max-destinations", "16384"];

/// What the steps share.
pub(crate) struct Bench<'a> {
    schedulers: Vec<Scheduler>,
    directors: Directors<'a>,
}

/// A step of this mode.
pub(crate) type Step = fn(&mut Bench<'_>) -> Result<String>;

/// After the networks. What a step finds is what those before it left.
pub(crate) const STEPS: [(&str, Step); 14] = [
    ("read", read),
    ("listed", listed),
    ("one", one),
    ("restored", restored),
    ("big-mark", big_mark),
    ("lists", lists),
    ("followed", followed),
    ("packets", packets),
    ("states", states),
    ("counts", counts),
    ("edited", |bench| edited(bench, &[traffic::EDITS])),
    ("returned", |bench| edited(bench, &[traffic::EDITS, traffic::RETURN])),
    ("later", later),
    ("cleared", cleared),
];

impl<'a> Bench<'a> {
    /// Both directors, without rules.
    pub(crate) fn new(networks: &'a Networks, names: &str) -> Result<Self> {
        let scheduler = |name| Scheduler::from_name(name).with_context(|| format!("`{name}` is no scheduler"));
        let schedulers = names.split(',').map(scheduler).collect::<Result<_>>()?;
        Ok(Self { schedulers, directors: Directors { networks, agent: None } })
    }

    /// All listings of services are the same, in an instant or, as IPVS sums up its counters every two seconds, at last.
    fn services(&self, questions: &[Question]) -> Result<String> {
        let mut lines = 0;
        for question in questions {
            let end = Instant::now() + DEADLINE;
            let printed = loop {
                match same(&self.directors, *question) {
                    Err(_) if Instant::now() < end => thread::sleep(Duration::from_millis(500)),
                    result => break result?,
                }
            };
            lines += printed.lines().count();
        }
        Ok(format!("{} listings, {lines} lines", questions.len()))
    }

    /// Other rules, in a text that both read.
    fn restore(&self, rules: &str) -> Result<()> {
        self.directors.ipvsadm(&["-C"])?;
        ipvsadm(self.directors.networks.ipvs.director(), &["-R"], rules)?;
        self.follow(rules).map(drop)
    }

    /// The agent has followed the file: it saves what IPVS has.
    fn follow(&self, rules: &str) -> Result<String> {
        self.directors.networks.write(rules)?;
        let end = Instant::now() + DEADLINE;
        loop {
            match same(&self.directors, SAVED) {
                Err(_) if Instant::now() < end => thread::sleep(Duration::from_millis(100)),
                result => return result,
            }
        }
    }
}

/// Rules of every kind are made by `ipvsadm`, one call each, and saved; bpvs finds nothing wrong in what was saved, serves
/// it, and saves the same.
fn read(bench: &mut Bench<'_>) -> Result<String> {
    let directors = &mut bench.directors;
    let lines = kinds::lines(&bench.schedulers);
    for line in &lines {
        directors.ipvsadm(&line.split(' ').collect::<Vec<_>>())?;
    }
    let saved = directors.ipvsadm(&["-S", "-n"])?;
    directors.networks.write(&saved)?;
    let (director, file) = (directors.networks.bpvs.director(), directors.networks.file());
    let checked = Command::new(binary()?).args(["check", "--ipvs-rules"]).arg(&file).output()?;
    let said = String::from_utf8_lossy(&checked.stdout);
    ensure!(said.contains("real servers, 0 problems\n"), "`bpvs check --ipvs-rules` of what ipvsadm saved:\n{said}");
    let agent = Agent::builder(director).rules(&file);
    directors.agent = Some(OPTIONS.into_iter().fold(agent, Builder::argument).start()?);
    same(directors, (SAVED.0, SAVED.1, Allowance::None))?;
    let count = saved.lines().count();
    ensure!(count == lines.len(), "ipvsadm saved {count} lines of {}", lines.len());
    Ok(format!("{count} lines"))
}

/// All listings of rules of every kind, without a packet.
fn listed(bench: &mut Bench<'_>) -> Result<String> {
    same(&bench.directors, CONNECTIONS)?;
    bench.services(&SERVICES)
}

/// Listings of one service.
fn one(bench: &mut Bench<'_>) -> Result<String> {
    const ONE: [Question; 8] = [
        (&["-Ln", "-t", "10.96.1.1:80"], &["list", "-n", "tcp/10.96.1.1:80"], Allowance::None),
        (&["-Ln", "-t", "10.96.1.1:80", "--stats"], &["list", "-n", "tcp/10.96.1.1:80", "--stats"], Allowance::None),
        (&["-Ln", "-u", "10.96.1.1:53"], &["list", "-n", "udp/10.96.1.1:53"], Allowance::None),
        (&["-Ln", "-u", "10.96.1.1:0"], &["list", "-n", "udp/10.96.1.1:0"], Allowance::None),
        (&["-Ln", "--sctp-service", "10.96.1.1:36412"], &["list", "-n", "sctp/10.96.1.1:36412"], Allowance::None),
        (&["-Ln", "-t", "[fd00:96::1]:80"], &["list", "-n", "tcp/[fd00:96::1]:80"], Allowance::None),
        (&["-Ln", "-f", "7"], &["list", "-n", "fwm/7"], Allowance::None),
        (&["-Ln", "-f", "8", "-6", "--rate"], &["list", "-n", "fwm/8", "--rate"], Allowance::None),
    ];
    bench.services(&ONE)
}

/// What bpvs saved is restored by `ipvsadm` where there is nothing, and saved again.
fn restored(bench: &mut Bench<'_>) -> Result<String> {
    let saved = bench.directors.bpvs(&["save"])?;
    let elsewhere = Namespace::new("restored")?;
    ipvsadm(&elsewhere, &["-R"], &saved)?;
    let again = ipvsadm(&elsewhere, &["-S", "-n"], "")?;
    ensure!(again == saved, "ipvsadm restored\n{saved}and saved\n{again}");
    Ok(format!("{} lines", saved.lines().count()))
}

/// Of a mark from 2147483648 on ipvsadm saves what it does not restore; bpvs reads it, and saves what ipvsadm restores.
fn big_mark(bench: &mut Bench<'_>) -> Result<String> {
    let directors = &bench.directors;
    let made = ["-A -f 4294967295 -s rr", "-a -f 4294967295 -r 10.20.0.1:0 -m -w 1", "-A -f 2147483648 -6 -s rr"];
    directors.ipvsadm(&["-C"])?;
    for line in made {
        directors.ipvsadm(&line.split(' ').collect::<Vec<_>>())?;
    }
    let saved = directors.ipvsadm(&["-S", "-n"])?;
    directors.networks.write(&saved)?;
    let end = Instant::now() + DEADLINE;
    let signless = saved.replace("-f -1 ", "-f 4294967295 ").replace("-f -2147483648 ", "-f 2147483648 ");
    ensure!(signless != saved, "ipvsadm writes marks without a sign now:\n{saved}");
    loop {
        let found = directors.bpvs(&["save"])?;
        if found == signless {
            break;
        }
        ensure!(Instant::now() < end, "ipvsadm saved\n{saved}bpvs saves\n{found}");
        thread::sleep(Duration::from_millis(100));
    }
    let elsewhere = Namespace::new("marks")?;
    ipvsadm(&elsewhere, &["-R"], &signless)?;
    ensure!(ipvsadm(&elsewhere, &["-S", "-n"], "")? == saved, "ipvsadm does not restore {signless}");
    Ok("-f -1 is 4294967295".to_owned())
}

/// Servers in the order of `ipvsadm`, and as they stand in the list of IPVS: in bpvs too the newest comes first.
fn lists(bench: &mut Bench<'_>) -> Result<String> {
    const LISTS: [Question; 5] = [
        (&["-Ln"], &["list", "-n"], Allowance::Title),
        (&["-Ln", "-t", "10.96.2.1:80"], &["list", "-n", "tcp/10.96.2.1:80"], Allowance::None),
        (&["-Ln", "-t", "10.96.2.1:80", "--nosort"], &["list", "-n", "tcp/10.96.2.1:80", "--nosort"], Allowance::None),
        (&["-Ln", "-t", "10.96.2.2:80", "--nosort"], &["list", "-n", "tcp/10.96.2.2:80", "--nosort"], Allowance::None),
        (&["-Ln", "-t", "10.96.2.3:80", "--nosort"], &["list", "-n", "tcp/10.96.2.3:80", "--nosort"], Allowance::None),
    ];
    bench.restore(&kinds::lists())?;
    bench.services(&LISTS)
}

/// Rules with thresholds: what bpvs saves restores these too. Timeouts, of which 0 keeps the one before.
fn followed(bench: &mut Bench<'_>) -> Result<String> {
    bench.restore(&traffic::rules(&bench.schedulers))?;
    let directors = &bench.directors;
    let elsewhere = Namespace::new("thresholds")?;
    ipvsadm(&elsewhere, &["-R"], &directors.bpvs(&["save"])?)?;
    let listing = ["-Ln", "--thresholds"];
    let (wanted, found) = (directors.ipvsadm(&listing)?, ipvsadm(&elsewhere, &listing, "")?);
    ensure!(wanted == found, "what bpvs saved is restored as\n{found}and not as\n{wanted}");
    directors.ipvsadm(&["--set", "800", "110", "290"])?;
    directors.bpvs(&["set-timeouts", "800", "110", "290"])?;
    directors.ipvsadm(&["--set", "0", "111", "0"])?;
    directors.bpvs(&["set-timeouts", "0", "111", "0"])?;
    bench.services(&SERVICES)
}

/// The same packets through both.
fn packets(bench: &mut Bench<'_>) -> Result<String> {
    let sent = traffic::play(bench.directors.networks, &bench.schedulers)?;
    Ok(format!("{sent} packets through each"))
}

/// The connections that they made, in every state, and the counts of servers.
fn states(bench: &mut Bench<'_>) -> Result<String> {
    let connections = same(&bench.directors, CONNECTIONS)?;
    let found = traffic::states(&connections);
    let missing: Vec<_> = traffic::STATES.iter().filter(|state| !found.contains(**state)).collect();
    ensure!(missing.is_empty(), "no connection is in a state of {missing:?}:\n{connections}");
    Ok(format!("{} connections in {} states", connections.lines().count() - 2, found.len()))
}

/// All listings but rates, which are of different times: IPVS keeps an estimate that decays, bpvs measures one second.
fn counts(bench: &mut Bench<'_>) -> Result<String> {
    let questions: Vec<_> = SERVICES.into_iter().filter(|(asked, ..)| !asked.contains(&"--rate")).collect();
    bench.services(&questions)
}

/// Further lines, which IPVS is told one by one and the file has after the others: with connections open, the last of these
/// edits has the same effect on all that is counted.
fn edited(bench: &mut Bench<'_>, edits: &[&str]) -> Result<String> {
    for line in edits.last().into_iter().flat_map(|edit| edit.lines()) {
        bench.directors.ipvsadm(&line.split(' ').collect::<Vec<_>>())?;
    }
    bench.follow(&(traffic::rules(&bench.schedulers) + &edits.concat()))?;
    counts(bench)
}

/// When all is quiet: short-lived connections are gone from both, and so are their counts; the estimates are 0.
fn later(bench: &mut Bench<'_>) -> Result<String> {
    thread::sleep(LATER);
    let connections = same(&bench.directors, CONNECTIONS)?;
    let found = bench.services(&SERVICES)?;
    Ok(format!("{} connections, {found}", connections.lines().count() - 2))
}

/// Both without rules.
fn cleared(bench: &mut Bench<'_>) -> Result<String> {
    bench.directors.ipvsadm(&["-C"])?;
    let saved = bench.follow("-C\n")?;
    ensure!(saved.is_empty(), "rules are left: {saved}");
    bench.services(&SERVICES)
}

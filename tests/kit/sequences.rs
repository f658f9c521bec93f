//! Recorded answers of Linux IPVS (`tests/data/ipvs-sequences.txt`), and their replay against anything that balances.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};

/// The recorded lines.
const RECORDED: &str = include_str!("../data/ipvs-sequences.txt");

/// Weights of the servers that every line starts with; server 1 is added first.
pub const WEIGHTS: [i32; 5] = [1, 2, 3, 4, 5];

const CLIENTS: &str = "10.10.0.2";
const SERVER_PORT: u16 = 8080;
const DESTINATIONS: &str = "10.97.0.4";

/// One line: a scheduler, the steps, and what IPVS answered.
#[derive(Clone, Debug)]
pub struct Script {
    /// IPVS's name of the scheduler.
    pub scheduler: String,
    /// Port of the servers, as they were configured; 0 for "the same as the client asked for".
    pub server_port: u16,
    /// The steps in order.
    pub steps: Vec<Step>,
    /// Its line number in the file.
    pub line: usize,
}

/// One step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Opens a connection.
    Open {
        /// The client's address.
        client: IpAddr,
        /// The destination that the client wrote.
        destination: IpAddr,
        /// False to close it at once.
        hold: bool,
        /// The server that IPVS chose, or none if it refused.
        recorded: Option<u32>,
    },
    /// Closes held connections, first to last, by number.
    Close(usize, usize),
    /// Changes the servers.
    Edit(Edit),
    /// A bar of the text.
    Bar,
}

/// A change of the servers in mid-run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edit {
    /// Sets a server's weight.
    Weight(u32, i32),
    /// Deletes a server.
    Delete(u32),
    /// Adds a deleted server again, with its weight.
    Add(u32),
}

/// What a script runs against: a model, BPF programs, or real traffic. It starts with [`WEIGHTS`].
pub trait Target {
    /// Opens a TCP connection up to ESTABLISHED; the server it went to, or none if it was refused. `connection` counts
    /// the script's opens from 0.
    fn open(&mut self, connection: usize, client: IpAddr, destination: IpAddr) -> Result<Option<u32>>;
    /// Ends a connection with FINs from both sides, so that it is in TIME_WAIT.
    fn close(&mut self, connection: usize) -> Result<()>;
    /// Changes the servers.
    fn edit(&mut self, edit: Edit) -> Result<()>;
}

impl Script {
    /// Where a server of this number listened. Only mh's answers depend on it.
    pub fn server(&self, number: u32) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::new(10, 20, number as u8, 2).into(), self.server_port)
    }

    /// Runs the script; the answers, one per open.
    pub fn replay(&self, target: &mut impl Target) -> Result<Vec<Option<u32>>> {
        let mut answers = Vec::new();
        for &step in &self.steps {
            match step {
                Step::Open { client, destination, hold, .. } => {
                    let connection = answers.len();
                    let answer = target.open(connection, client, destination)?;
                    if answer.is_some() && !hold {
                        target.close(connection)?;
                    }
                    answers.push(answer);
                }
                Step::Close(first, last) => (first..=last).try_for_each(|connection| target.close(connection))?,
                Step::Edit(edit) => target.edit(edit)?,
                Step::Bar => {}
            }
        }
        Ok(answers)
    }

    /// The recorded answers, one per open.
    pub fn recorded(&self) -> Vec<Option<u32>> {
        let recorded = |step: &Step| if let Step::Open { recorded, .. } = step { Some(*recorded) } else { None };
        self.steps.iter().filter_map(recorded).collect()
    }

    /// The steps as the file writes them, with these answers; so that two runs are compared as two lines.
    pub fn render(&self, answers: &[Option<u32>]) -> String {
        let mut answers = answers.iter();
        let mut words = Vec::new();
        for step in &self.steps {
            words.push(match *step {
                Step::Open { hold, .. } => {
                    let server = match answers.next() {
                        Some(Some(server)) => server.to_string(),
                        Some(None) => "R".to_owned(),
                        None => "?".to_owned(),
                    };
                    server + if hold { "" } else { "'" }
                }
                Step::Close(first, last) => format!("[c{first}-{last}]"),
                Step::Edit(Edit::Weight(server, weight)) => format!("[w{server}={weight}]"),
                Step::Edit(Edit::Delete(server)) => format!("[d{server}]"),
                Step::Edit(Edit::Add(server)) => format!("[a{server}]"),
                Step::Bar => "|".to_owned(),
            });
        }
        words.join(" ")
    }
}

/// Every recorded script.
pub fn recorded() -> Result<Vec<Script>> {
    parse(RECORDED).context("tests/data/ipvs-sequences.txt")
}

/// Scripts from text in the file's format.
pub fn parse(text: &str) -> Result<Vec<Script>> {
    let mut scripts = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        scripts.push(script(line, index + 1).with_context(|| format!("line {}", index + 1))?);
    }
    Ok(scripts)
}

fn script(text: &str, line: usize) -> Result<Script> {
    let (head, steps) = text.split_once(" : ").context("no ` : ` between the scheduler and its steps")?;
    let mut head = head.split_whitespace();
    let scheduler = head.next().context("no scheduler before ` : `")?.to_owned();
    let (mut clients, mut destinations) = (addresses(CLIENTS)?, addresses(DESTINATIONS)?);
    let mut server_port = SERVER_PORT;
    for option in head {
        match option.split_once('=') {
            Some(("clients", list)) => clients = addresses(list)?,
            Some(("destinations", list)) => destinations = addresses(list)?,
            Some(("server-port", port)) => server_port = port.parse().with_context(|| option.to_owned())?,
            _ => bail!("unknown option `{option}`: there are clients=LIST, destinations=LIST and server-port=PORT"),
        }
    }
    let mut script = Script { scheduler, server_port, steps: Vec::new(), line };
    let mut opens = 0;
    for word in steps.split_whitespace() {
        let step = if word == "|" {
            Step::Bar
        } else if let Some(inner) = word.strip_prefix('[').and_then(|w| w.strip_suffix(']')) {
            bracket(inner, opens).with_context(|| format!("step `{word}`"))?
        } else {
            let (server, hold) = word.strip_suffix('\'').map_or((word, true), |server| (server, false));
            let recorded = if server == "R" { None } else { Some(self::server(server)?) };
            let (client, destination) = (nth(&clients, opens)?, nth(&destinations, opens)?);
            opens += 1;
            Step::Open { client, destination, hold, recorded }
        };
        script.steps.push(step);
    }
    Ok(script)
}

fn bracket(text: &str, opens: usize) -> Result<Step> {
    let (kind, rest) = text.split_at_checked(1).context("empty brackets")?;
    Ok(match kind {
        "c" => {
            let (first, last) = rest.split_once('-').context("`[cA-B]` closes connections A to B")?;
            let (first, last) = (first.parse()?, last.parse()?);
            ensure!(first <= last && last < opens, "only connections 0 to {opens} (exclusive) were opened before");
            Step::Close(first, last)
        }
        "w" => {
            let (id, weight) = rest.split_once('=').context("`[wS=W]` sets the weight of server S to W")?;
            Step::Edit(Edit::Weight(server(id)?, weight.parse()?))
        }
        "d" => Step::Edit(Edit::Delete(server(rest)?)),
        "a" => Step::Edit(Edit::Add(server(rest)?)),
        _ => bail!("brackets begin with c, w, d or a"),
    })
}

fn server(text: &str) -> Result<u32> {
    let servers = 1..=WEIGHTS.len() as u32;
    match text.parse() {
        Ok(server) if servers.contains(&server) => Ok(server),
        _ => bail!("`{text}` is no server: there are {} to {}, and R", servers.start(), servers.end()),
    }
}

/// Addresses of a list such as `10.0.0.1-12,10.0.0.7`.
fn addresses(list: &str) -> Result<Vec<IpAddr>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, count) = match part.split_once('-') {
            None => (part, 1),
            Some((first, last)) => {
                let low: u8 = first.rsplit('.').next().unwrap_or_default().parse().with_context(|| part.to_owned())?;
                let high: u8 = last.parse().with_context(|| part.to_owned())?;
                ensure!(low <= high, "`{part}` ends before it begins");
                (first, u32::from(high - low) + 1)
            }
        };
        let first: Ipv4Addr = first.parse().with_context(|| format!("`{part}` is no IPv4 address or range"))?;
        all.extend((0..count).map(|n| IpAddr::from(Ipv4Addr::from(u32::from(first) + n))));
    }
    Ok(all)
}

fn nth(list: &[IpAddr], open: usize) -> Result<IpAddr> {
    match list {
        [one] => Ok(*one),
        _ => list.get(open).copied().with_context(|| format!("only {} addresses for open {open}", list.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_rendered_as_it_was_written() {
        let steps = "5 R | [c0-0] 3' [w3=0] [d2] [a2] R'";
        let scripts = parse(&format!("# comment\n\nrr clients=10.0.0.9-12 : {steps}\n")).unwrap();
        assert_eq!((scripts.len(), scripts[0].line, scripts[0].scheduler.as_str()), (1, 3, "rr"));
        assert_eq!(scripts[0].render(&scripts[0].recorded()), steps);
        let clients: Vec<_> = scripts[0].steps.iter().filter_map(client).collect();
        assert_eq!(clients, ["10.0.0.9", "10.0.0.10", "10.0.0.11", "10.0.0.12"]);
    }

    fn client(step: &Step) -> Option<String> {
        if let Step::Open { client, .. } = step { Some(client.to_string()) } else { None }
    }

    #[test]
    fn a_wrong_line_is_named_with_what_is_wrong() {
        for (line, part) in [
            ("rr 1 2 3", "no ` : `"),
            (" : 1", "no scheduler"),
            ("rr client=1.2.3.4 : 1", "unknown option `client=1.2.3.4`"),
            ("rr server-port=x : 1", "server-port=x"),
            ("rr clients=1.2.3 : 1", "`1.2.3` is no IPv4 address"),
            ("rr clients=1.2.3.4-3 : 1", "ends before it begins"),
            ("rr clients=1.2.3.4-5 : 1 1 1", "only 2 addresses for open 2"),
            ("rr : 6", "`6` is no server: there are 1 to 5"),
            ("rr : x'", "`x` is no server"),
            ("rr : 1 [c0-1]", "only connections 0 to 1"),
            ("rr : 1 [x]", "brackets begin with"),
            ("rr : 1 []", "empty brackets"),
            ("rr : 1 [w3]", "`[wS=W]`"),
        ] {
            let error = format!("{:#}", parse(&format!("\n{line}\n")).unwrap_err());
            assert!(error.starts_with("line 2: ") && error.contains(part), "{line}: {error}");
        }
    }
}

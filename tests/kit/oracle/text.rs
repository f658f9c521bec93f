//! Scripts as text, to be read by people and by the next run.
//!
//! ```text
//! wlc tcp4 vip=17 : +1:1 +2:3 a0s=2 a0S a0a=2 b0s=1 w2:0 a1s=1 -1 a2s=R ?=2:1/0
//! ```
//!
//! Before the colon: the scheduler, its flags (`port`, `fallback`), `tcp4`, `udp6` and their like, `vip=` the script's
//! number, `mark=PLACES` if the service is a firewall mark, and where they differ from `ipvsadm`'s defaults `persistent=SECONDS/PREFIX`, `ops`, and the director's switches
//! `expire_nodest_conn`, `expire_quiescent_template`, `sloppy_tcp`. Behind it, in order:
//!
//! | text | event |
//! |---|---|
//! | `a0s` | client `a`, its port 0, sends to the service: `s`ets up, `a`ccepts, sends `d`ata, `f`inishes, `r`esets, ... |
//! | `a0S` | the server of that connection sends: the same letters, upper case |
//! | `+2:3` | server 2 is added with weight 3; `+2:3:10:8` with thresholds |
//! | `w2:5` | server 2 gets weight 5, likewise |
//! | `-2` | server 2 is removed |
//! | `!sh,port` | the service is edited: scheduler and flags |
//! | `N` | the service is deleted and added again, without servers |
//! | `t4/3/5` | timeouts in seconds of TCP, TCP's FIN_WAIT, UDP |
//! | `~6000` | milliseconds pass |
//! | `?` | the list is looked at |
//!
//! With `mark=` a client's port says what it asks for ([`Script::virtual_address`]).
//!
//! An answer follows `=`. A client's packet: the number of the server that it reached, with a `k` if at the port that the
//! client asked for instead of its own, `R` for ICMP unreachable, `T` for a TCP reset, `-` for nothing. A server's packet: nothing if the client got it in the service's name, `u` if
//! untranslated, `-` if not at all. `0`: not sent, or not compared. A list: `server:active/inactive`, newest
//! first, and `/templates` where there are some.

use std::fmt::{self, Display, Write as _};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use lb_common::address::Protocol;
use lb_common::scheduler::Scheduler;

use super::control::Switches;
use super::script::{
    Answer, CLIENTS, Choice, Event, Flow, Listed, NUMBERS, PLACES, PORTS, SERVERS, Script, Share, Side, Signal,
};

impl Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.v6 { 6 } else { 4 };
        let choice = self.choice.text(self.v6).replace(',', " ");
        write!(f, "{choice} {}{family} vip={}", self.protocol.name().to_lowercase(), self.number)?;
        if self.is_marked() {
            write!(f, " mark={}", self.places)?;
        }
        for (name, set) in switches(self.switches) {
            if set {
                write!(f, " {name}")?;
            }
        }
        f.write_str(" :")?;
        for (event, answer) in &self.steps {
            write!(f, " {}", event.text(self.v6))?;
            match answer {
                None | Some(Answer::Done | Answer::Reply) => {}
                Some(answer) => write!(f, "={answer}")?,
            }
        }
        Ok(())
    }
}

fn switches(switches: Switches) -> [(&'static str, bool); 3] {
    [
        ("expire_nodest_conn", switches.expire_nodest_conn),
        ("expire_quiescent_template", switches.expire_quiescent_template),
        ("sloppy_tcp", switches.sloppy_tcp),
    ]
}

impl Choice {
    /// Scheduler and flags, separated by commas.
    pub fn text(&self, v6: bool) -> String {
        let mut text = self.scheduler.name().to_owned();
        for (name, set) in [("port", self.port), ("fallback", self.fallback), ("ops", self.one_packet)] {
            if set {
                let _ = write!(text, ",{name}");
            }
        }
        if self.persistence != 0 || self.netmask != Self::plain(self.scheduler, v6).netmask {
            let _ = write!(text, ",persistent={}/{}", self.persistence, self.netmask);
        }
        text
    }

    fn set(&mut self, word: &str) -> Result<bool> {
        match word {
            "port" => self.port = true,
            "fallback" => self.fallback = true,
            "ops" => self.one_packet = true,
            _ => {
                let Some(value) = word.strip_prefix("persistent=") else { return Ok(false) };
                let (seconds, prefix) = value.split_once('/').context("persistence is `persistent=SECONDS/PREFIX`")?;
                (self.persistence, self.netmask) = (number(seconds)?, number(prefix)?);
            }
        }
        Ok(true)
    }
}

impl Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.weight)?;
        if (self.upper, self.lower) != (0, 0) { write!(f, ":{}:{}", self.upper, self.lower) } else { Ok(()) }
    }
}

impl Event {
    /// The event without its answer.
    pub fn text(&self, v6: bool) -> String {
        match self {
            Self::Packet { flow, from, signal } => {
                let (client, letter) = (char::from(b'a' + flow.client), signal.letter());
                let letter = if *from == Side::Client { letter } else { letter.to_ascii_uppercase() };
                format!("{client}{}{letter}", flow.port)
            }
            Self::Add(server, share) => format!("+{server}:{share}"),
            Self::Edit(server, share) => format!("w{server}:{share}"),
            Self::Remove(server) => format!("-{server}"),
            Self::Service(choice) => format!("!{}", choice.text(v6)),
            Self::Renew => "N".to_owned(),
            Self::Timeouts(tcp, fin, udp) => format!("t{tcp}/{fin}/{udp}"),
            Self::Wait(milliseconds) => format!("~{milliseconds}"),
            Self::Look => "?".to_owned(),
        }
    }
}

impl Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done | Self::Reply => Ok(()),
            Self::Server(server) => write!(f, "{server}"),
            Self::Kept(server) => write!(f, "{server}k"),
            Self::Unreachable => f.write_str("R"),
            Self::Reset => f.write_str("T"),
            Self::Silence => f.write_str("-"),
            Self::Bare => f.write_str("u"),
            Self::Void => f.write_str("0"),
            Self::List(list) => {
                for (place, Listed { server, active, inactive, persistent }) in list.iter().enumerate() {
                    write!(f, "{}{server}:{active}/{inactive}", if place == 0 { "" } else { "," })?;
                    if *persistent != 0 {
                        write!(f, "/{persistent}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl FromStr for Script {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (head, body) = text.split_once(" :").context("no ` :` between the service and its events")?;
        let mut script = header(head)?;
        for word in body.split_whitespace().filter(|word| *word != "|") {
            script.steps.push(step(word, script.v6).with_context(|| format!("`{word}`"))?);
        }
        Ok(script)
    }
}

fn header(head: &str) -> Result<Script> {
    let mut words = head.split_whitespace();
    let name = words.next().context("no scheduler")?;
    let scheduler = Scheduler::from_name(name).with_context(|| format!("`{name}` is no scheduler"))?;
    let kind = head.split_whitespace().find_map(transport).context("none of tcp4, tcp6, udp4, udp6, sctp4, sctp6")?;
    let (protocol, v6) = kind;
    let mut script = Script {
        title: String::new(),
        number: 0,
        protocol,
        v6,
        places: 0,
        choice: Choice::plain(scheduler, v6),
        switches: Switches::default(),
        steps: Vec::new(),
    };
    let switches = &mut script.switches;
    for word in words.filter(|word| transport(word).is_none()) {
        match word {
            "expire_nodest_conn" => switches.expire_nodest_conn = true,
            "expire_quiescent_template" => switches.expire_quiescent_template = true,
            "sloppy_tcp" => switches.sloppy_tcp = true,
            _ => match word.split_once('=') {
                Some(("vip", value)) => script.number = number(value)?,
                Some(("mark", value)) => script.places = places(value)?,
                _ => ensure!(script.choice.set(word)?, "`{word}` is no property of a service"),
            },
        }
    }
    ensure!(script.number < NUMBERS, "vip={} is not below {NUMBERS}", script.number);
    Ok(script)
}

fn transport(word: &str) -> Option<(Protocol, bool)> {
    let v6 = match word.chars().next_back()? {
        '4' => false,
        '6' => true,
        _ => return None,
    };
    let name = &word[..word.len() - 1];
    let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.name().eq_ignore_ascii_case(name))?;
    Some((protocol, v6))
}

fn number<T: FromStr>(text: &str) -> Result<T> {
    text.parse().ok().with_context(|| format!("`{text}` is not a number that can stand there"))
}

fn step(word: &str, v6: bool) -> Result<(Event, Option<Answer>)> {
    // Persistence has a `=` of its own.
    if let Some(rest) = word.strip_prefix('!') {
        return Ok((Event::Service(service(rest, v6)?), Some(Answer::Done)));
    }
    let (text, answer) = word.split_once('=').map_or((word, None), |(text, answer)| (text, Some(answer)));
    let event = event(text)?;
    let answer = match (&event, answer) {
        (Event::Packet { .. }, Some("-")) => Some(Answer::Silence),
        (Event::Packet { .. }, Some("0")) => Some(Answer::Void),
        (Event::Packet { from: Side::Client, .. }, Some("R")) => Some(Answer::Unreachable),
        (Event::Packet { from: Side::Client, .. }, Some("T")) => Some(Answer::Reset),
        (Event::Packet { from: Side::Client, .. }, Some(server)) => Some(match server.strip_suffix('k') {
            Some(server) => Answer::Kept(numbered(server)?),
            None => Answer::Server(numbered(server)?),
        }),
        (Event::Packet { from: Side::Server, .. }, Some("u")) => Some(Answer::Bare),
        (Event::Packet { from: Side::Client, .. }, None) | (Event::Look, None) => None,
        (Event::Packet { from: Side::Server, .. }, None) => Some(Answer::Reply),
        (Event::Look, Some(list)) => Some(Answer::List(listed(list)?)),
        (_, None) => Some(Answer::Done),
        (_, Some(answer)) => bail!("`{answer}` is no answer to it"),
    };
    Ok((event, answer))
}

fn event(text: &str) -> Result<Event> {
    let mut letters = text.chars();
    let first = letters.next().context("an empty event")?;
    let rest = letters.as_str();
    Ok(match (first, rest) {
        ('?', "") => Event::Look,
        ('N', "") => Event::Renew,
        ('-', server) => Event::Remove(numbered(server)?),
        ('+', rest) => share(rest).map(|(server, share)| Event::Add(server, share))?,
        ('w', rest) if rest.contains(':') => share(rest).map(|(server, share)| Event::Edit(server, share))?,
        ('~', milliseconds) => Event::Wait(number(milliseconds)?),
        ('t', rest) if rest.contains('/') => {
            let times = rest.split('/').map(number).collect::<Result<Vec<u32>>>()?;
            let &[tcp, fin, udp] = times.as_slice() else { bail!("timeouts are `tTCP/FIN/UDP`") };
            Event::Timeouts(tcp, fin, udp)
        }
        ('a'..='z', rest) => packet(first as u8 - b'a', rest)?,
        _ => bail!("no event begins with `{first}`"),
    })
}

fn packet(client: u8, rest: &str) -> Result<Event> {
    ensure!(client < CLIENTS, "clients are a to z");
    let last = rest.chars().next_back().context("a client without a port")?;
    let port: u16 = number(&rest[..rest.len() - last.len_utf8()])?;
    ensure!(port < PORTS, "ports are 0 to {}", PORTS - 1);
    let from = if last.is_ascii_uppercase() { Side::Server } else { Side::Client };
    let found = Signal::ALL.into_iter().find(|(_, letter)| *letter == last.to_ascii_lowercase());
    let (signal, _) = found.with_context(|| format!("`{last}` is no packet"))?;
    Ok(Event::Packet { flow: Flow { client, port }, from, signal })
}

fn places(text: &str) -> Result<u16> {
    let places = number(text)?;
    ensure!((1..=PLACES).contains(&places), "a mark has 1 to {PLACES} places");
    Ok(places)
}

fn numbered(text: &str) -> Result<u16> {
    let server = number(text)?;
    ensure!((1..=SERVERS).contains(&server), "servers are 1 to {SERVERS}");
    Ok(server)
}

fn share(text: &str) -> Result<(u16, Share)> {
    let parts: Vec<&str> = text.split(':').collect();
    Ok(match parts.as_slice() {
        [server, weight] => (numbered(server)?, Share { weight: number(weight)?, ..Share::default() }),
        [server, weight, upper, lower] => {
            (numbered(server)?, Share { weight: number(weight)?, upper: number(upper)?, lower: number(lower)? })
        }
        _ => bail!("a server is `NUMBER:WEIGHT` or `NUMBER:WEIGHT:UPPER:LOWER`"),
    })
}

fn service(text: &str, v6: bool) -> Result<Choice> {
    let mut words = text.split(',');
    let name = words.next().unwrap_or_default();
    let scheduler = Scheduler::from_name(name).with_context(|| format!("`{name}` is no scheduler"))?;
    let mut choice = Choice::plain(scheduler, v6);
    for word in words {
        ensure!(choice.set(word)?, "`{word}` is no property of a service");
    }
    Ok(choice)
}

fn listed(text: &str) -> Result<Vec<Listed>> {
    let of = |word: &str| {
        let (server, counts) = word.split_once(':').context("a list is `SERVER:ACTIVE/INACTIVE,...`")?;
        let counts = counts.split('/').map(number).collect::<Result<Vec<u32>>>()?;
        let (active, inactive, persistent) = match *counts.as_slice() {
            [active, inactive] => (active, inactive, 0),
            [active, inactive, persistent] => (active, inactive, persistent),
            _ => bail!("counts are `ACTIVE/INACTIVE` or `ACTIVE/INACTIVE/TEMPLATES`"),
        };
        Ok(Listed { server: numbered(server)?, active, inactive, persistent })
    };
    text.split(',').filter(|word| !word.is_empty()).map(of).collect()
}

/// All scripts of a file: one a line; a line with `#` right before one is its title.
pub fn scripts(text: &str) -> Result<Vec<Script>> {
    let (mut scripts, mut title) = (Vec::new(), String::new());
    for (place, line) in text.lines().enumerate() {
        match line.trim() {
            "" => title.clear(),
            line if line.starts_with('#') => line.trim_start_matches('#').trim().clone_into(&mut title),
            line => {
                let script: Script = line.parse().with_context(|| format!("line {}", place + 1))?;
                scripts.push(Script { title: std::mem::take(&mut title), ..script });
            }
        }
    }
    Ok(scripts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_written_as_it_was_read() {
        for text in [
            "rr tcp4 vip=5 : +1:1 +2:3 a0s=2 a0S a0a=2 z59d=T b1r=- a0F=u a0R=- w2:0 -1 a2s=R ?=2:1/0,1:0/3",
            "sh port fallback udp6 vip=4194303 sloppy_tcp : !mh,fallback N t4/3/5 ~6000 +250:65535:10:8 a0s=250 a0D=0",
            "lblcr persistent=60/64 udp6 vip=1 mark=32 sloppy_tcp : +1:1 +2:1 a0d=1k a1d=2 b0d=1 ?=2:0/1/1,1:0/2",
            "wlc ops persistent=300/24 sctp4 vip=0 expire_nodest_conn expire_quiescent_template : ?= a0s",
        ] {
            let script: Script = text.parse().unwrap();
            assert_eq!(script.to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("rr tcp4 vip=5", "no ` :`"),
            ("xx tcp4 :", "`xx` is no scheduler"),
            ("rr :", "none of tcp4"),
            ("rr tcp4 sh-port :", "`sh-port` is no property"),
            ("rr tcp4 : +1", "`+1`: a server is"),
            ("rr tcp4 : a0y=1", "`y` is no packet"),
            ("rr tcp4 : a60s", "ports are 0 to 59"),
            ("rr tcp4 : a0s=0x", "`0x` is not a number"),
            ("rr tcp4 : +251:1", "servers are 1 to 250"),
            ("rr tcp4 mark=0 : a0s", "a mark has 1 to 32 places"),
            ("rr tcp4 mark=2 : a0s=k", "`` is not a number"),
            ("rr tcp4 : N=1", "`1` is no answer"),
            ("rr tcp4 : t1/2", "timeouts are"),
            ("rr tcp4 : *", "no event begins with `*`"),
        ] {
            let error = format!("{:#}", text.parse::<Script>().unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_comment_right_before_a_script_is_its_title() {
        let read = scripts("# a file\n\n# a file\n# of one rule\nrr tcp4 : a0s\nrr tcp4 : b0s\n").unwrap();
        let titles: Vec<_> = read.iter().map(|script| script.title.as_str()).collect();
        assert_eq!(titles, ["of one rule", ""]);
    }
}

//! Changes and accidents under load: nothing is lost.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bpvs_tests::agent::{Agent, Manifests};
use bpvs_tests::sequences::WEIGHTS;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{Dial, Hammer, Held, Stream};

use crate::listing::{Listing, id_of, wait_for};
use crate::schedulers::{TCP, addresses};
use crate::screen::Screen;

const MANIFEST: &str = "rr.yaml";
/// New connections a second of each hammer.
const RATE: u32 = 150;
/// Connections that the effect of a change is judged by: four rounds of wrr.
const WINDOW: u64 = 60;
const ROUND: u64 = 15;
/// The whole load ends by itself after this.
const LIMIT: Duration = Duration::from_secs(120);
const SLOW: Duration = Duration::from_secs(20);

struct Load {
    v4: SocketAddr,
    /// New connections to the IPv4 service, one after the other.
    pod: Hammer,
    /// New connections to the IPv6 service.
    outside: Hammer,
    streams: Vec<(&'static str, Stream)>,
    held: Vec<Held>,
}

/// Runs all of it against the Service `rr`.
pub(crate) fn run(topology: &Topology, agent: &Agent<'_>, manifests: &Manifests, screen: &mut Screen) -> Result<()> {
    screen.heading("under load: two clients opening connections, three streams, 30 held connections");
    let mut load = Load::start(topology)?;
    // The hard cases: a server that a stream is on is drained, and another one is removed.
    let (drained, removed) = (load.streams[0].1.server, load.streams[2].1.server);
    ensure!(drained != removed, "both streams over IPv4 are on server {drained}: round robin does not turn");
    let mut weights = WEIGHTS;
    let original = manifests.read(MANIFEST)?;

    let wrr = original.replace("bpvs.io/scheduler: rr", "bpvs.io/scheduler: wrr");
    manifests.edit(MANIFEST, |_| wrr.clone())?;
    load.until_listed(agent, "scheduler wrr", |scheduler, _| scheduler == "wrr")?;
    load.share(screen, "scheduler rr -> wrr", &weights)?;
    load.alive(screen, "after the scheduler changed")?;

    let weight = std::mem::replace(&mut weights[usize::from(drained) - 1], 0);
    let less = wrr.replace(&format!("server-{drained}={weight}"), &format!("server-{drained}=0"));
    manifests.edit(MANIFEST, |_| less.clone())?;
    load.until_listed(agent, "a weight of 0", |_, weights| weights.get(&drained) == Some(&0))?;
    load.share(screen, &format!("weight of server {drained} -> 0, a stream is on it"), &weights)?;
    load.alive(screen, "with a server drained")?;

    weights[usize::from(removed) - 1] = 0;
    manifests.edit(MANIFEST, |text| without_endpoint(text, removed))?;
    load.until_listed(agent, "a server less", |_, weights| !weights.contains_key(&removed))?;
    load.share(screen, &format!("server {removed} removed, a stream is on it"), &weights)?;
    load.alive(screen, "with a server removed")?;

    agent.kill()?;
    load.share(screen, "bpvs run killed with SIGKILL", &weights)?;
    load.alive(screen, "without an agent")?;

    let begin = Instant::now();
    agent.start()?;
    let took = begin.elapsed().as_secs_f64();
    load.share(screen, &format!("bpvs run started again, ready in {took:.1} s"), &weights)?;
    load.alive(screen, "after the restart")?;

    manifests.edit(MANIFEST, |_| wrr.clone())?;
    load.until_listed(agent, "all servers again", |_, weights| {
        weights.len() == WEIGHTS.len() && weights.get(&drained) == Some(&weight)
    })?;
    load.share(screen, "both put back, by the new agent", &WEIGHTS)?;
    load.alive(screen, "at the end")?;

    load.finish(screen)
}

/// The manifest without a server's entry in each EndpointSlice.
fn without_endpoint(manifest: &str, server: u16) -> String {
    let name = format!("    name: server-{server}");
    let (mut kept, mut entry) = (String::new(), String::new());
    let mut flush = |entry: &mut String| {
        if !entry.lines().any(|line| line == name) {
            kept.push_str(entry);
        }
        entry.clear();
    };
    for line in manifest.lines() {
        if line.starts_with("- addresses:") || line == "---" {
            flush(&mut entry);
        }
        entry.push_str(line);
        entry.push('\n');
    }
    flush(&mut entry);
    kept
}

impl Load {
    fn start(topology: &Topology) -> Result<Self> {
        let (v4, v6) = addresses("rr")?;
        let (v4, v6) = (SocketAddr::new(v4, TCP), SocketAddr::new(v6, TCP));
        let (pod, outside, node) =
            (&topology.clients[0].namespace, &topology.external.namespace, &topology.node.namespace);
        let mut streams = Vec::new();
        for (who, from, to) in [("pod", pod, v4), ("outside", outside, v6), ("node", node, v4)] {
            streams.push((who, Stream::start(from, None, to, 2_000_000, LIMIT)?));
        }
        let mut held = Vec::new();
        for from in [pod, outside, node] {
            for index in 0..10 {
                let to = if index % 2 == 0 { v4 } else { v6 };
                held.push(Dial::new(from, to).open().with_context(|| format!("connecting to {to}"))?);
            }
        }
        let pod = Hammer::start(pod, v4, RATE, LIMIT)?;
        let outside = Hammer::start(outside, v6, RATE, LIMIT)?;
        pod.advance(ROUND, SLOW)?;
        Ok(Self { v4, pod, outside, streams, held })
    }

    fn until_listed(
        &self,
        agent: &Agent<'_>,
        what: &str,
        wanted: impl Fn(&str, &BTreeMap<u16, i32>) -> bool,
    ) -> Result<()> {
        wait_for(agent, what, |listing: &Listing| {
            listing.service("TCP", self.v4).is_some_and(|service| {
                let weights = service.servers.iter().filter_map(|s| Some((id_of(s.address)?, s.weight))).collect();
                wanted(&service.scheduler, &weights)
            })
        })?;
        // The connection that was being opened may be older than the change.
        self.pod.advance(2, SLOW)
    }

    /// Checks where the pod's next connections go: by these weights, in whole rounds.
    fn share(&self, screen: &mut Screen, event: &str, weights: &[i32]) -> Result<()> {
        let before = self.pod.report().per_server;
        self.pod.advance(WINDOW, SLOW)?;
        let mut share = self.pod.report().per_server;
        share.iter_mut().for_each(|(server, count)| *count -= before.get(server).copied().unwrap_or(0));
        let total: u64 = share.values().sum();
        screen.check(
            follows(&share, weights),
            &format!("{event:45} the next {total} go{} |{}", row(&share), by_weight(total, weights)),
        );
        Ok(())
    }

    /// Every stream moves and every held connection still echoes.
    fn alive(&mut self, screen: &mut Screen, when: &str) -> Result<()> {
        let mut dead = Vec::new();
        for (who, stream) in &self.streams {
            if let Err(error) = stream.advance(100_000, SLOW) {
                dead.push(format!("the stream of the {who}: {error:#}"));
            }
        }
        for held in &mut self.held {
            if let Err(error) = held.exchange(when.as_bytes()) {
                dead.push(format!("a held connection to server {}: {error}", held.server));
            }
        }
        let (streams, held) = (self.streams.len(), self.held.len());
        screen.check(dead.is_empty(), &format!("  {streams} streams and {held} held connections alive {when}"));
        dead.iter().take(5).for_each(|line| screen.plain(line));
        Ok(())
    }

    fn finish(self, screen: &mut Screen) -> Result<()> {
        for (who, hammer) in [("pod", self.pod), ("outside", self.outside)] {
            let report = hammer.stop()?;
            let (attempts, failed) = (report.attempts, report.failed);
            screen.check(failed == 0 && attempts > 0, &format!("{attempts} connections from {who}: {failed} lost"));
            report.failures.iter().for_each(|(at, what)| screen.plain(&format!("at {at:.1?}: {what}")));
        }
        let (total, mut lost) = (self.held.len(), Vec::new());
        for held in self.held {
            let server = held.server;
            if let Err(error) = held.close() {
                lost.push(format!("held connection to server {server}: {error}"));
            }
        }
        screen.check(lost.is_empty(), &format!("{total} held connections: {} lost", lost.len()));
        lost.iter().for_each(|line| screen.plain(line));
        for (who, stream) in self.streams {
            let server = stream.server;
            match stream.finish() {
                Ok(report) => {
                    let (bytes, gap) = (report.bytes / 1000, report.longest_gap);
                    let what = format!(
                        "stream from {who} on server {server}: {bytes} kB, every byte in order, longest gap {gap:.0?}"
                    );
                    screen.check(report.bytes > 0, &what);
                }
                Err(error) => screen.check(false, &format!("stream from {who} on server {server}: {error:#}")),
            }
        }
        Ok(())
    }
}

/// True if the shares are those of whole rounds of wrr with these weights, give or take the round that was cut.
fn follows(share: &BTreeMap<u16, u64>, weights: &[i32]) -> bool {
    let (total, sum) = (share.values().sum::<u64>() as f64, weights.iter().sum::<i32>() as f64);
    (1..).zip(weights).all(|(server, &weight)| {
        let found = share.get(&server).copied().unwrap_or(0) as f64;
        let expected = total * f64::from(weight) / sum;
        if weight == 0 { found == 0.0 } else { (found - expected).abs() <= f64::from(weight) + 1.0 }
    })
}

fn row(share: &BTreeMap<u16, u64>) -> String {
    (1..=5).map(|server| format!("{:3}", share.get(&server).copied().unwrap_or(0))).collect()
}

fn by_weight(total: u64, weights: &[i32]) -> String {
    let sum: i32 = weights.iter().sum();
    weights.iter().map(|&weight| format!("{:3}", total * weight as u64 / sum as u64)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{follows, without_endpoint};

    #[test]
    fn shares_by_weight_are_told_from_equal_ones() {
        let share = |counts: [u64; 5]| (1..).zip(counts).collect::<BTreeMap<u16, u64>>();
        assert!(follows(&share([4, 8, 12, 16, 20]), &[1, 2, 3, 4, 5]));
        assert!(follows(&share([5, 9, 12, 16, 19]), &[1, 2, 3, 4, 5]));
        assert!(!follows(&share([12, 12, 12, 12, 12]), &[1, 2, 3, 4, 5]));
        assert!(!follows(&share([6, 12, 18, 23, 1]), &[1, 2, 3, 4, 0]));
    }

    #[test]
    fn an_endpoint_is_cut_out_of_every_slice() {
        let entry = |n| format!("- addresses:\n  - 10.1.1.{n}\n  targetRef:\n    name: server-{n}\n");
        let text = |entries: &str| {
            format!("metadata:\n  name: server-2\n---\nendpoints:\n{entries}---\nendpoints:\n{entries}")
        };
        let all = text(&[entry(1), entry(2), entry(3)].concat());
        assert_eq!(without_endpoint(&all, 2), text(&[entry(1), entry(3)].concat()));
        assert_eq!(without_endpoint(&all, 3), text(&[entry(1), entry(2)].concat()));
        assert_eq!(without_endpoint(&all, 4), all);
    }
}

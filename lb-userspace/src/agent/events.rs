//! The loop of the agent: one task that owns all state and does one thing at a time.

use std::future::pending;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::block_in_place;
use tokio::time::{MissedTickBehavior, interval, sleep_until};
use tracing::{info, warn};

use super::Config;
use super::config_file::{self, ConfigFile};
use super::lost::LostSockets;
use super::node::Node;
use super::observers::Observers;
use super::once::Once;
use super::sources::Sources;
use super::sweep::Sweeper;
use super::sync::Programmer;
use crate::model::Model;
use crate::source::Update;

/// How long it rests after it has programmed: the first change is not kept waiting, and a rollout is many changes and few
/// rounds (kube-proxy's `minSyncPeriod`, SY-1).
const ROUND_REST: Duration = Duration::from_millis(10);
/// How long after a change of the network the node is looked at.
const NETWORK_DEBOUNCE: Duration = Duration::from_millis(20);
/// How soon what failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How soon at the latest what keeps failing is tried again: some errors last until somebody changes the input.
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// How often the node is looked at when nothing is reported.
const RESYNC: Duration = Duration::from_secs(30);
/// How often removed destinations are looked at (IPVS: `IP_VS_DEST_TRASH_PERIOD`, halved).
const COLLECT: Duration = Duration::from_secs(60);

/// A sweep rests this many times as long as it took, at least: packets of its CPU wait while it runs.
const SWEEP_REST: u32 = 20;
/// Likewise a look at all maps: what changes waits while it lasts.
const CHECK_REST: u32 = 100;
/// Likewise a look at the node, whose cost follows its interfaces and routes: thousands of routes may change a second.
const LOOK_REST: u32 = 4;

/// The running agent.
#[derive(Debug)]
pub struct Agent {
    model: Model,
    node: Node,
    programmer: Programmer,
    updates: mpsc::Receiver<Update>,
    network: watch::Receiver<u64>,
    sweeper: Sweeper,
    lost_sockets: LostSockets,
    sweep_interval: Duration,
    check_interval: Duration,
    check_errors: Once,
    sweep_errors: Once,
    node_errors: Once,
    observers: Observers,
    config_file: Option<ConfigFile>,
    ready: bool,
    /// When to program.
    due: Option<Instant>,
    /// When to program again at the earliest.
    rested: Instant,
    /// When to look at the node.
    node_due: Option<Instant>,
    /// When to look at the node again at the earliest.
    node_rested: Instant,
    /// How soon to try again what could not be programmed.
    retry: Duration,
}

impl Agent {
    /// An agent with everything in place; nothing is programmed before every source has told all that it has.
    pub fn new(config: &Config, node: Node, programmer: Programmer, sources: Sources, observers: Observers) -> Self {
        let (mut model, mut programmer, mut observers) = (Model::new(), programmer, observers);
        programmer.set_addresses(node.addresses());
        for id in sources.ids {
            model.expect(id);
        }
        observers.start(&model, sources.connection);
        observers.set_interfaces(node.interfaces());
        Self {
            model,
            node,
            programmer,
            updates: sources.updates,
            network: super::watch::start(),
            sweeper: Sweeper::new(config.recount_interval),
            lost_sockets: LostSockets::new(config.sockets.is_on()),
            config_file: config.config_file.clone(),
            sweep_interval: config.sweep_interval,
            check_interval: config.check_interval,
            check_errors: Once::default(),
            sweep_errors: Once::default(),
            node_errors: Once::default(),
            observers,
            ready: false,
            due: None,
            rested: Instant::now(),
            node_due: None,
            node_rested: Instant::now(),
            retry: RETRY,
        }
    }

    /// Runs until SIGTERM or SIGINT.
    pub async fn run(mut self) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen to signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen to signals")?;
        let place = self.config_file.as_ref().map(|file| file.path.display().to_string()).unwrap_or_default();
        let mut reconfigured = pin!(config_file::changed(self.config_file.take()));
        let mut sweep = interval(self.sweep_interval);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut check = interval(self.check_interval);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut collect = interval(COLLECT);
        let mut resync = interval(RESYNC);
        loop {
            tokio::select! {
                biased;
                _ = terminate.recv() => return self.stop("SIGTERM"),
                _ = interrupt.recv() => return self.stop("SIGINT"),
                error = self.observers.failed() => {
                    self.observers.flush().await;
                    return Err(error);
                }
                () = &mut reconfigured => {
                    bail!("{place} has changed: restart the agent; what is attached and programmed stays meanwhile")
                }
                () = at(self.due) => self.program(),
                () = at(self.node_due) => self.look_at_node().await,
                _ = sweep.tick() => {
                    let took = self.sweep();
                    sweep.reset_after(rest(self.sweep_interval, took, SWEEP_REST));
                }
                _ = check.tick() => {
                    let took = self.check_maps();
                    check.reset_after(rest(self.check_interval, took, CHECK_REST));
                }
                _ = collect.tick() => block_in_place(|| self.programmer.collect(Instant::now())),
                update = self.updates.recv() => match update {
                    Some(update) => self.take(update),
                    None => bail!("every source has ended: restart the agent"),
                },
                changed = self.network.changed() => match changed {
                    Ok(()) => self.look_at_node_in(NETWORK_DEBOUNCE),
                    Err(_) => bail!("the watch of the network interfaces has ended: restart the agent"),
                },
                _ = resync.tick() => {
                    self.look_at_node_in(Duration::ZERO);
                    self.observers.listen_for_checks(&self.programmer);
                }
            }
        }
    }

    fn stop(&self, signal: &str) -> Result<()> {
        info!("{signal}: stopping; what is attached and programmed stays (`bpvs cleanup` removes it)");
        Ok(())
    }

    /// Takes an update and all that wait behind it.
    fn take(&mut self, update: Update) {
        let mut next = Some(update);
        while let Some(update) = next {
            let changed = self.model.change(update.source, update.change);
            self.observers.changed(&self.model, update.source, changed);
            next = self.updates.try_recv().ok();
        }
        self.observers.queued(&self.model, Instant::now());
        self.due = Some(sooner(self.due, self.rested.max(Instant::now())));
    }

    fn program(&mut self) {
        self.due = None;
        if !self.model.is_complete() {
            return;
        }
        let begin = Instant::now();
        let outcome = block_in_place(|| self.programmer.sync(&mut self.model, begin));
        self.rested = Instant::now() + ROUND_REST;
        self.observers.synced(&self.model, &self.programmer, &outcome, begin.elapsed());
        if outcome.complete() {
            self.retry = RETRY;
        } else {
            self.due = Some(Instant::now() + self.retry);
            self.retry = (2 * self.retry).min(LONGEST_RETRY);
        }
        if !self.ready {
            self.ready = true;
            self.tell_ready();
        }
    }

    fn tell_ready(&self) {
        let services = &self.programmer.plan().services;
        let destinations: usize = services.values().map(|service| service.destinations.len()).sum();
        let interfaces = self.node.interfaces();
        info!("ready: {} services with {destinations} destinations, {interfaces} interfaces", services.len());
    }

    fn look_at_node_in(&mut self, delay: Duration) {
        let earliest = self.node_rested;
        self.node_due.get_or_insert_with(|| earliest.max(Instant::now() + delay));
    }

    async fn look_at_node(&mut self) {
        self.node_due = None;
        let begin = Instant::now();
        let mut errors = Vec::new();
        if let Err(error) = self.node.refresh_interfaces().await {
            errors.push(format!("{error:#}"));
        }
        if let Err(error) = self.node.refresh_excluded() {
            errors.push(format!("{error:#}"));
        }
        if let Err(error) = self.node.refresh_settings().await {
            errors.push(format!("{error:#}"));
        }
        self.observers.set_interfaces(self.node.interfaces());
        // After an error the addresses are those of before: node ports stay (NP-6).
        if self.programmer.set_addresses(self.node.addresses()) {
            self.due = Some(sooner(self.due, Instant::now()));
        }
        self.node_rested = Instant::now() + LOOK_REST * begin.elapsed();
        if !errors.is_empty() {
            errors.extend(self.node.reconnect().err().map(|error| format!("{error:#}")));
            self.node_due = Some(Instant::now() + RETRY);
        }
        for error in self.node_errors.news(errors) {
            warn!("{error}; trying again");
        }
    }

    /// Looks whether somebody else has changed the maps, once they are programmed; how long it took.
    fn check_maps(&mut self) -> Duration {
        let begin = Instant::now();
        if !self.ready {
            return Duration::ZERO;
        }
        let result = block_in_place(|| self.programmer.compare());
        if result.as_ref().is_ok_and(|differ| *differ) {
            self.due = Some(sooner(self.due, Instant::now()));
        }
        for error in self.check_errors.news(result.err().map(|error| format!("{error:#}"))) {
            warn!("{error}; trying again");
        }
        begin.elapsed()
    }

    /// Sweeps; how long it took.
    fn sweep(&mut self) -> Duration {
        let begin = Instant::now();
        let ebpf = &mut self.node.ebpf;
        let result = block_in_place(|| {
            let lost = self.sweeper.run(ebpf, Instant::now())?;
            self.lost_sockets.end(ebpf, lost)
        });
        for error in self.sweep_errors.news(result.err().map(|error| format!("{error:#}"))) {
            warn!("{error}; trying again");
        }
        let took = begin.elapsed();
        self.observers.swept(took);
        took
    }
}

/// How long to wait after something that took so long.
fn rest(interval: Duration, took: Duration, share: u32) -> Duration {
    interval.max(share * took)
}

/// The sooner of a time that may be set and another: a change does not wait for what is to be tried again.
fn sooner(set: Option<Instant>, other: Instant) -> Instant {
    set.map_or(other, |set| set.min(other))
}

/// Ends at a time; never, if there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_rests_long() {
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis);
        assert_eq!(rest(second, ms(3), SWEEP_REST), second);
        assert_eq!(rest(second, ms(75), SWEEP_REST), ms(1500));
    }

    #[test]
    fn a_change_does_not_wait_for_what_is_tried_again_and_puts_nothing_off() {
        let now = Instant::now();
        assert_eq!(sooner(None, now), now);
        assert_eq!(sooner(Some(now + LONGEST_RETRY), now), now);
        assert_eq!(sooner(Some(now), now + ROUND_REST), now);
    }
}

//! All metrics of one moment, as text.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use prometheus::TextEncoder;
use prometheus::proto::MetricFamily;
use tracing::warn;

use super::Metrics;
use super::services::{self, Existing};
use super::tables::Tables;
use crate::datapath::store::kernel::{KernelMaps, KernelStore};
use crate::kernel::pins::Pins;
use crate::plan::{Frontend, Holders, Services};

/// What states each service: the agent tells, scrapes read.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<Mutex<Arc<Holders>>>);

impl Names {
    /// Tells what states these services now, which are others than before, or gone.
    pub fn update(&self, services: &Services, touched: &BTreeSet<Frontend>) {
        if touched.is_empty() {
            return;
        }
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A copy is made while a scrape reads the old ones, and only then.
        let names = Arc::make_mut(&mut names);
        for frontend in touched {
            match services.get(frontend) {
                Some(service) => drop(names.insert(*frontend, service.clone())),
                None => drop(names.remove(frontend)),
            }
        }
    }

    fn get(&self) -> Arc<Holders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads all metrics.
pub struct Scraper {
    metrics: Metrics,
    store: KernelStore,
    tables: Tables,
    names: Names,
    limit: usize,
    told: BTreeSet<String>,
}

impl Scraper {
    /// Opens the pinned maps. At most `limit` services and destinations are shown one by one.
    pub fn open(pins: &Pins, metrics: Metrics, names: Names, limit: usize) -> Result<Self> {
        let store = KernelStore::new(KernelMaps::pinned(pins.root())?)?;
        Ok(Self { metrics, store, tables: Tables::open(pins)?, names, limit, told: BTreeSet::new() })
    }

    /// All metrics in Prometheus' text format. What cannot be read is left out and counted.
    pub fn text(&mut self) -> Result<String> {
        let read = self.maps().unwrap_or_else(|error| {
            self.metrics.own.scrape_errors.inc();
            let error = format!("{error:#}");
            if self.told.insert(error.clone()) {
                warn!("metrics: {error}: what is in the maps is left out");
            }
            Vec::new()
        });
        let mut families = self.metrics.registry.gather();
        families.extend(read);
        families.sort_by(|a, b| a.name().cmp(b.name()));
        TextEncoder::new().encode_to_string(&families).context("cannot write the metrics")
    }

    fn maps(&self) -> Result<Vec<MetricFamily>> {
        let existing = Existing::read(&self.store)?;
        let mut families = services::families(&self.store, &existing, &self.names.get(), self.limit)?;
        families.extend(self.tables.families(&existing)?);
        Ok(families)
    }
}

//! Arguments of `bpvs run` that kube-proxy has too, by its names, and the file of configuration that stands for them.
//!
//! With a file they count for nothing but `--hostname-override` and `--master` (CL-1). bpvs's own arguments count always.

mod flags;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use axum::http::Uri;
use clap::{ArgAction, Args};
use lb_common::scheduler::Scheduler;
use tracing::{info, warn};

use self::flags::Given;
use super::cluster::ClusterArgs;
use super::servers::ServerArgs;
use crate::agent::{Api, ConfigFile, TimeoutChange};
use crate::kube_proxy::document::document;
use crate::kube_proxy::values::{self, Mode};
use crate::kube_proxy::{HEALTHZ_PORT, METRICS_PORT, Settings, file};
use crate::plan::Options;
use crate::source::api::RequestLimit;

/// What kube-proxy's flags are for.
#[derive(Debug, Args)]
pub(super) struct KubeProxyArgs {
    // First: whoever takes a value takes it away.
    #[command(flatten)]
    given: Given,
    /// KubeProxyConfiguration, as kubeadm writes it for kube-proxy: stands for all flags that kube-proxy has, but
    /// --hostname-override and --master
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Follow the API server that this file names (without any source: the one of this pod's cluster)
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// URL of the API server, instead of the one that the kubeconfig file names
    #[arg(long, value_name = "URL", value_parser = server)]
    master: Option<Uri>,
    /// Name of this node at the API server [default: the host name, trimmed, in lower case]
    #[arg(long, value_name = "NAME", visible_alias = "hostname-override")]
    node_name: Option<String>,
    /// kube-proxy's mode: whether --ipvs-... flags count, and what node ports are served at where nothing is stated
    #[arg(long, value_name = "MODE", value_parser = Mode::parse)]
    proxy_mode: Option<Mode>,
    /// As --scheduler, for mh with the source port
    #[arg(long, value_name = "NAME", value_parser = values::scheduler, conflicts_with = "scheduler")]
    ipvs_scheduler: Option<Scheduler>,
    /// As --tcp-timeout
    #[arg(long, value_name = "TIME", value_parser = values::timeout, conflicts_with = "tcp_timeout")]
    ipvs_tcp_timeout: Option<u32>,
    /// As --tcp-fin-timeout
    #[arg(long, value_name = "TIME", value_parser = values::timeout, conflicts_with = "tcp_fin_timeout")]
    ipvs_tcpfin_timeout: Option<u32>,
    /// As --udp-timeout
    #[arg(long, value_name = "TIME", value_parser = values::timeout, conflicts_with = "udp_timeout")]
    ipvs_udp_timeout: Option<u32>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    servers: ServerArgs,
    /// Requests that the API server is asked in a second at most, on average [default: 5]; less than 0: no limit
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    kube_api_qps: Option<f64>,
    /// Requests that it is asked at once at most [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(i32::MAX)))]
    kube_api_burst: Option<u32>,
    /// How soon the kernel ends the agent when it is out of memory, from -1000 (never) to 1000 [default: as it is; with a
    /// file -999]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    oom_score_adj: Option<i32>,
    /// Feature gates of Kubernetes; AllowServiceExternalIPs=false leaves externalIPs alone, others have no effect
    #[arg(long, value_name = "NAME=BOOL,...", value_delimiter = ',', value_parser = gate)]
    feature_gates: Vec<(String, bool)>,
    /// Ends at once: there is nothing to prepare
    #[arg(long, hide = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", value_parser = values::truth)]
    pub(super) init_only: bool,
    /// `bpvs cleanup` does it
    #[arg(long, hide = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", value_parser = values::truth)]
    cleanup: bool,
    /// Write what is stated, by a file or flags, as a file for --config, and end
    #[arg(long, value_name = "FILE")]
    pub(super) write_config_to: Option<PathBuf>,
}

/// What the file says, or else the flags.
#[derive(Debug)]
pub(super) struct Stated {
    pub(super) node_name: Option<String>,
    pub(super) api: Option<Api>,
    pub(super) api_limit: RequestLimit,
    /// kube-proxy's scheduler, if one is stated.
    pub(super) scheduler: Option<Scheduler>,
    pub(super) timeouts: TimeoutChange,
    pub(super) services: Options,
    pub(super) healthz: Option<SocketAddr>,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) bind_hard_fail: bool,
    pub(super) oom_score_adjust: Option<i32>,
    pub(super) config_file: Option<ConfigFile>,
}

impl Stated {
    /// As a file says it; what is to be answered nowhere is answered at kube-proxy's addresses by one.
    pub(super) fn settings(&self) -> Settings {
        let kubeconfig = match &self.api {
            Some(Api::Kubeconfig { path, .. }) => Some(path.clone()),
            _ => None,
        };
        let or_default = |at: Option<SocketAddr>, ip: IpAddr, port| at.unwrap_or(SocketAddr::new(ip, port));
        Settings {
            node_name: self.node_name.clone(),
            kubeconfig,
            api_limit: self.api_limit,
            scheduler: self.scheduler,
            timeouts: self.timeouts,
            services: self.services.clone(),
            healthz: or_default(self.healthz, Ipv4Addr::UNSPECIFIED.into(), HEALTHZ_PORT),
            metrics: or_default(self.metrics, Ipv4Addr::LOCALHOST.into(), METRICS_PORT),
            bind_hard_fail: self.bind_hard_fail,
            oom_score_adjust: self.oom_score_adjust.unwrap_or(0),
            without_effect: Vec::new(),
        }
    }

    /// Writes it (`--write-config-to`). A file cannot say that a server is to be nowhere.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        for (flag, at) in [("--healthz-bind-address", self.healthz), ("--metrics-bind-address", self.metrics)] {
            if at.is_none() {
                bail!("--write-config-to: {flag} is nowhere, which a file cannot say: give an address");
            }
        }
        let text = serde_saphyr::to_string(&document(&self.settings())).context("--write-config-to")?;
        let place = path.display();
        std::fs::write(path, text).with_context(|| format!("--write-config-to {place}: cannot write"))?;
        info!("configuration written to {place}");
        Ok(())
    }
}

impl KubeProxyArgs {
    /// `other_sources`: there are manifests or rules, so that no API server is needed.
    pub(super) fn stated(mut self, other_sources: bool) -> Result<Stated> {
        // A variable of the environment that is not set says nothing, as with kube-proxy.
        self.node_name = self.node_name.filter(|name| !name.is_empty());
        if self.cleanup {
            bail!("--cleanup: `bpvs cleanup` removes what bpvs made; nothing of kube-proxy's is touched");
        }
        match self.config.clone() {
            Some(path) => self.by_file(&path, other_sources),
            None => self.by_flags(other_sources),
        }
    }

    fn by_file(self, path: &Path, other_sources: bool) -> Result<Stated> {
        let read = file::read(path).context("--config")?;
        for warning in &read.warnings {
            warn!("{warning}");
        }
        let place = path.display();
        info!("configuration: {place}");
        let Settings { node_name, kubeconfig, api_limit, scheduler, timeouts, services, healthz, metrics, .. } =
            read.settings;
        tell(&format!("{place}: no effect here"), &read.settings.without_effect);
        tell("no effect here", &self.given.without_effect(true));
        tell("without effect beside --config", &self.given.overruled());
        let api = match (kubeconfig, self.master) {
            (None, None) if !is_pod() && !other_sources => {
                bail!("{place}: clientConnection.kubeconfig: missing: must name a file, as this is no pod of a cluster")
            }
            (kubeconfig, master) => api(kubeconfig, master, is_pod()),
        };
        Ok(Stated {
            node_name: self.node_name.or(node_name),
            api,
            api_limit,
            scheduler,
            timeouts,
            services,
            healthz: Some(healthz),
            metrics: Some(metrics),
            bind_hard_fail: read.settings.bind_hard_fail,
            oom_score_adjust: Some(read.settings.oom_score_adjust),
            config_file: Some(ConfigFile { path: path.to_owned(), bytes: read.bytes }),
        })
    }

    fn by_flags(self, other_sources: bool) -> Result<Stated> {
        let gates = self.feature_gates.iter().filter(|(name, _)| name != values::EXTERNAL_ADDRESSES_GATE);
        let gates = gates.map(|(name, _)| format!("--feature-gates {name}"));
        let mode = self.proxy_mode.unwrap_or_default();
        // Without a mode they are asked for by themselves.
        let ipvs = self.proxy_mode.is_none_or(|mode| mode == Mode::Ipvs);
        let of_ipvs = [
            ("--ipvs-scheduler", self.ipvs_scheduler.is_some()),
            ("--ipvs-tcp-timeout", self.ipvs_tcp_timeout.is_some()),
            ("--ipvs-tcpfin-timeout", self.ipvs_tcpfin_timeout.is_some()),
            ("--ipvs-udp-timeout", self.ipvs_udp_timeout.is_some()),
        ];
        let of_ipvs = of_ipvs.into_iter().filter(|(_, given)| *given && !ipvs);
        let of_ipvs = of_ipvs.map(|(name, _)| format!("{name} (the mode is {})", mode.name()));
        let without_effect = self.given.without_effect(false).into_iter().chain(of_ipvs).chain(gates);
        tell("no effect here", &without_effect.collect::<Vec<_>>());

        let api = match (self.kubeconfig, self.master) {
            (None, None) if !is_pod() && !other_sources => bail!(
                "no source: give --manifests PATH, --ipvs-rules FILE or --kubeconfig FILE (this is no pod of a cluster)"
            ),
            (kubeconfig, master) => api(kubeconfig, master, !other_sources),
        };
        let gate = |name| self.feature_gates.iter().rev().find(|(gate, _)| gate == name).map(|(_, on)| *on);
        let external_addresses = gate(values::EXTERNAL_ADDRESSES_GATE).unwrap_or(true);
        let timeout = |given: Option<u32>| given.filter(|_| ipvs).unwrap_or(0);
        Ok(Stated {
            node_name: self.node_name,
            api_limit: RequestLimit::stated(self.kube_api_qps, self.kube_api_burst),
            scheduler: self.ipvs_scheduler.filter(|_| ipvs),
            timeouts: TimeoutChange {
                tcp: timeout(self.ipvs_tcp_timeout),
                tcp_fin: timeout(self.ipvs_tcpfin_timeout),
                udp: timeout(self.ipvs_udp_timeout),
            },
            services: Options { external_addresses, ..self.cluster.options(mode)? },
            healthz: self.servers.healthz(api.is_some())?,
            metrics: self.servers.metrics(api.is_some())?,
            bind_hard_fail: self.servers.bind_address_hard_fail,
            oom_score_adjust: self.oom_score_adj,
            api,
            config_file: None,
        })
    }
}

fn tell(what: &str, names: &[String]) {
    if !names.is_empty() {
        info!("{what}: {} (docs/configuration.md says why)", names.join(", "));
    }
}

/// True in a pod of a cluster.
fn is_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

fn api(kubeconfig: Option<PathBuf>, server: Option<Uri>, in_cluster: bool) -> Option<Api> {
    match (kubeconfig, server) {
        (Some(path), server) => Some(Api::Kubeconfig { path, server }),
        (None, Some(server)) => Some(Api::Server(server)),
        (None, None) => in_cluster.then_some(Api::InCluster),
    }
}

fn server(text: &str) -> Result<Uri, String> {
    let url = text.parse::<Uri>().ok();
    let usable = url.filter(|url| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some());
    usable.ok_or_else(|| "must be a URL, such as https://192.0.2.1:6443".to_owned())
}

fn gate(text: &str) -> Result<(String, bool), String> {
    let allowed = || "must be names with true or false, such as AllowServiceExternalIPs=false".to_owned();
    let (name, value) = text.trim().split_once('=').ok_or_else(allowed)?;
    Ok((name.to_owned(), values::truth(value).map_err(|_| allowed())?))
}

#[cfg(test)]
mod tests;

//! Arguments of `bpvs run` about the servers of the agent: who may ask it, and where.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use clap::Args;

/// Where the agent answers.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// Where /healthz, /livez and /readyz are answered; empty: nowhere [default: 0.0.0.0:10256 with an API server, else nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    healthz_bind_address: Option<String>,
    /// Where /metrics, /healthz and /proxyMode are answered; empty: nowhere [default: 127.0.0.1:10249 with an API server, else nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_bind_address: Option<String>,
    /// How many services and destinations together have metrics of their own
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pub(super) metrics_limit: usize,
    /// End if one of these addresses cannot be listened on, instead of trying again
    #[arg(long)]
    pub(super) bind_address_hard_fail: bool,
}

/// Where kube-proxy says whether it is well.
const HEALTHZ: Server = Server { flag: "--healthz-bind-address", default: "0.0.0.0:10256" };
/// Where kube-proxy shows its metrics.
const METRICS: Server = Server { flag: "--metrics-bind-address", default: "127.0.0.1:10249" };

impl ServerArgs {
    /// Where health is told; none: nowhere. Without an API server nobody expects it.
    pub(super) fn healthz(&self, api: bool) -> Result<Option<SocketAddr>> {
        HEALTHZ.address(self.healthz_bind_address.as_deref(), api)
    }

    /// Likewise the metrics.
    pub(super) fn metrics(&self, api: bool) -> Result<Option<SocketAddr>> {
        METRICS.address(self.metrics_bind_address.as_deref(), api)
    }
}

struct Server {
    flag: &'static str,
    default: &'static str,
}

impl Server {
    fn address(&self, given: Option<&str>, api: bool) -> Result<Option<SocketAddr>> {
        let Self { flag, default } = self;
        let text = match given.map(str::trim) {
            None if api => default,
            None | Some("") => return Ok(None),
            Some(text) => text,
        };
        let address = text.parse().ok();
        address
            .map(Some)
            .with_context(|| format!("{flag} {text}: must be an address and a port, such as {default}, or empty"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_where_there_is_a_cluster_or_where_it_is_asked_for() {
        for server in [HEALTHZ, METRICS] {
            let at = |given, api| server.address(given, api).map_err(|error| error.to_string());
            assert_eq!(at(None, false), Ok(None));
            assert_eq!(at(None, true), Ok(Some(server.default.parse().unwrap())));
            assert_eq!(at(Some(" "), true), Ok(None));
            assert_eq!(at(Some("[::1]:99"), false), Ok(Some("[::1]:99".parse().unwrap())));
            for wrong in ["10249", "localhost:10249", "127.0.0.1", "127.0.0.1:65536", "::1:10249x", "[::1]", ":10249"] {
                let error = at(Some(wrong), true).unwrap_err();
                assert!(error.contains("must be an address and a port"), "{error}");
                assert!(error.starts_with(server.flag), "{error}");
            }
        }
    }
}

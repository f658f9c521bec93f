//! Arguments of `bpvs run` about the servers of the agent: who may ask it, and where.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Result, anyhow};
use clap::{ArgAction, Args};

use crate::kube_proxy::values::{self, listen};
use crate::kube_proxy::{HEALTHZ_PORT, METRICS_PORT};

/// Where the agent answers.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// Where /healthz, /livez and /readyz are answered; empty: nowhere [default: 0.0.0.0:10256 with an API server, else nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    healthz_bind_address: Option<String>,
    /// Port of --healthz-bind-address if that is an address alone; 0: nowhere
    #[arg(long, value_name = "PORT")]
    healthz_port: Option<u16>,
    /// Where /metrics, /healthz and /proxyMode are answered; empty: nowhere [default: 127.0.0.1:10249 with an API server, else nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_bind_address: Option<String>,
    /// Port of --metrics-bind-address if that is an address alone; 0: nowhere
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<u16>,
    /// End if one of these addresses cannot be listened on, instead of trying again
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", hide_default_value = true, value_parser = values::truth, value_name = "BOOL")]
    pub(super) bind_address_hard_fail: bool,
}

/// Where kube-proxy says whether it is well.
const HEALTHZ: Server = Server { flag: "--healthz-bind-address", address: Ipv4Addr::UNSPECIFIED, port: HEALTHZ_PORT };
/// Where kube-proxy shows its metrics.
const METRICS: Server = Server { flag: "--metrics-bind-address", address: Ipv4Addr::LOCALHOST, port: METRICS_PORT };

impl ServerArgs {
    /// Where health is told; none: nowhere. Without an API server nobody expects it.
    pub(super) fn healthz(&self, api: bool) -> Result<Option<SocketAddr>> {
        HEALTHZ.address(self.healthz_bind_address.as_deref(), self.healthz_port, api)
    }

    /// Likewise the metrics.
    pub(super) fn metrics(&self, api: bool) -> Result<Option<SocketAddr>> {
        METRICS.address(self.metrics_bind_address.as_deref(), self.metrics_port, api)
    }
}

struct Server {
    flag: &'static str,
    address: Ipv4Addr,
    port: u16,
}

impl Server {
    fn address(&self, given: Option<&str>, port: Option<u16>, api: bool) -> Result<Option<SocketAddr>> {
        let default = IpAddr::from(self.address);
        match (given.map(str::trim), port) {
            (_, Some(0)) | (Some(""), _) => Ok(None),
            (None, None) => Ok(api.then_some(SocketAddr::new(default, self.port))),
            (None, Some(port)) => Ok(Some(SocketAddr::new(default, port))),
            (Some(text), port) => listen(text, port.unwrap_or(self.port))
                .map(Some)
                .map_err(|message| anyhow!("{} {text}: {message}, or empty", self.flag)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_where_there_is_a_cluster_or_where_it_is_asked_for() {
        for server in [HEALTHZ, METRICS] {
            let at = |given, api| server.address(given, None, api).map_err(|error| error.to_string());
            let default = SocketAddr::new(server.address.into(), server.port);
            assert_eq!(at(None, false), Ok(None));
            assert_eq!(at(None, true), Ok(Some(default)));
            assert_eq!(at(Some(" "), true), Ok(None));
            assert_eq!(at(Some("[::1]:99"), false), Ok(Some("[::1]:99".parse().unwrap())));
            assert_eq!(at(Some("::1"), false), Ok(Some(SocketAddr::new("::1".parse().unwrap(), server.port))));
            for wrong in ["10249", "localhost:10249", "127.0.0.1:65536", "::1:10249x", "[::1]", ":10249", "127.0.0.1:0"]
            {
                let error = at(Some(wrong), true).unwrap_err();
                assert!(error.contains("must be an address and a port"), "{error}");
                assert!(error.starts_with(server.flag), "{error}");
            }
        }
    }

    #[test]
    fn a_port_is_for_an_address_alone_and_none_for_no_server() {
        let at = |given, port| HEALTHZ.address(given, Some(port), true).unwrap().map(|address| address.to_string());
        for (given, port, expected) in [
            (None, 0, None),
            (Some("127.0.0.1:9"), 0, None),
            (Some(""), 99, None),
            (None, 99, Some("0.0.0.0:99")),
            (Some("::1"), 99, Some("[::1]:99")),
            (Some("[::1]:98"), 99, Some("[::1]:98")),
        ] {
            assert_eq!(at(given, port).as_deref(), expected, "{given:?} {port}");
        }
    }
}

//! IPVS and bpvs, each on a network of its own, with the program that tells and asks it.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use bpvs_tests::agent::Agent;
use bpvs_tests::namespace::Namespace;
use bpvs_tests::oracle::network::{self, CLIENT_SIDE, Network, tc};

/// A network for each.
pub(crate) struct Networks {
    /// Of IPVS.
    pub(super) ipvs: Network,
    /// Of bpvs.
    pub(super) bpvs: Network,
    folder: tempfile::TempDir,
}

impl Networks {
    /// Both, on the CPU where the caller is and stays.
    pub(crate) fn new() -> Result<Self> {
        network::pin()?;
        let networks = Self {
            ipvs: Network::new("ipvsadm")?,
            bpvs: Network::new("bpvs")?,
            folder: tempfile::tempdir().context("making a folder for the rules")?,
        };
        Ok(networks)
    }

    /// Packets from clients to an address have a firewall mark, in both networks: by a filter that comes before bpvs's.
    pub(crate) fn mark(&self, marks: &[(u32, &str, &str)]) -> Result<()> {
        for network in [&self.ipvs, &self.bpvs] {
            network::require_clsact(network.director())?;
            for (preference, (mark, protocol, to)) in (network::MARKS + 1..).zip(marks) {
                network.director().run(&mut tc(&format!(
                    "filter add dev {CLIENT_SIDE} ingress pref {preference} protocol {protocol} flower dst_ip {to} \
                     action skbedit mark {mark} continue"
                )))?;
            }
        }
        Ok(())
    }

    /// The file of rules that bpvs follows.
    pub(super) fn file(&self) -> PathBuf {
        self.folder.path().join("rules")
    }

    /// Writes it in one step.
    pub(super) fn write(&self, rules: &str) -> Result<()> {
        let new = self.folder.path().join("new");
        fs::write(&new, rules).with_context(|| format!("writing {}", new.display()))?;
        fs::rename(&new, self.file()).with_context(|| format!("writing {}", self.file().display()))
    }
}

/// Both directors, as they are told and asked.
pub(crate) struct Directors<'a> {
    /// Their networks.
    pub(super) networks: &'a Networks,
    /// The agent of bpvs, once it runs.
    pub(super) agent: Option<Agent<'a>>,
}

impl Directors<'_> {
    /// What `ipvsadm` prints in the network of IPVS.
    pub(super) fn ipvsadm(&self, arguments: &[&str]) -> Result<String> {
        ipvsadm(self.networks.ipvs.director(), arguments, "")
    }

    /// What `bpvs` prints.
    pub(super) fn bpvs(&self, arguments: &[&str]) -> Result<String> {
        self.agent.as_ref().context("the agent does not run")?.command(arguments)
    }
}

/// What `ipvsadm` prints in a namespace; `input` is what it reads (`-R`). It says nothing else: `-R` goes on after a line
/// that it cannot do.
pub(super) fn ipvsadm(namespace: &Namespace, arguments: &[&str], input: &str) -> Result<String> {
    let line = arguments.join(" ");
    let mut command = Command::new("ipvsadm");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = namespace.spawn(&mut command).context("starting `ipvsadm`")?;
    // Small enough for a pipe, so that it can be written before the output is read.
    let written = child.stdin.take().context("`ipvsadm` has no stdin")?.write_all(input.as_bytes());
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.is_empty(), "`ipvsadm {line}`: {}: {}", output.status, said.trim());
    written.with_context(|| format!("writing to `ipvsadm {line}`"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

//! The authority of the cluster, the certificate of its API server and the key of its service accounts.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::namespace::run;

#[derive(Debug)]
pub(super) struct Certificates {
    folder: PathBuf,
}

const EC: [&str; 4] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];

impl Certificates {
    /// Makes all of them; the API server's is for these addresses and for those of the Service `kubernetes`.
    pub(super) fn new(folder: &Path, addresses: &[IpAddr]) -> Result<Self> {
        let names: String = addresses.iter().map(|address| format!(",IP:{address}")).collect();
        let text = format!(
            "[req]\ndistinguished_name=name\nprompt=no\n[name]\nCN=kubernetes\n\
             [authority]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,digitalSignature\n\
             subjectKeyIdentifier=hash\n\
             [server]\nbasicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n\
             extendedKeyUsage=serverAuth\n\
             subjectAltName=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:10.96.0.1{names}\n"
        );
        fs::write(folder.join("openssl.cnf"), text)?;
        let made = Self { folder: folder.to_owned() };
        made.replace()?;
        let mut accounts = Command::new("openssl");
        accounts.args(["ecparam", "-genkey", "-noout", "-name", "prime256v1", "-out", "accounts.key"]);
        run(accounts.current_dir(folder)).context("the key of the service accounts")?;
        Ok(made)
    }

    /// Another authority, and a certificate of it for the API server.
    pub(super) fn replace(&self) -> Result<()> {
        self.openssl("req", &["-x509", "-extensions", "authority", "-keyout", "ca.key", "-out", "ca.crt"])?;
        let arguments = ["-x509", "-extensions", "server", "-CA", "ca.crt", "-CAkey", "ca.key"];
        self.openssl("req", &[&arguments[..], &["-keyout", "server.key", "-out", "server.crt"]].concat())
    }

    fn openssl(&self, what: &str, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new("openssl");
        command.args([what, "-config", "openssl.cnf", "-nodes", "-days", "2"]).args(EC).args(arguments);
        run(command.current_dir(&self.folder))
            .context("the control plane's certificates are made by openssl 3")
            .map(drop)
    }

    pub(super) fn authority(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    pub(super) fn server(&self) -> PathBuf {
        self.folder.join("server.crt")
    }

    pub(super) fn server_key(&self) -> PathBuf {
        self.folder.join("server.key")
    }

    /// Signs the tokens of service accounts.
    pub(super) fn accounts(&self) -> PathBuf {
        self.folder.join("accounts.key")
    }
}

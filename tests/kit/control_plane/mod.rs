//! A real control plane: etcd, kube-apiserver and kube-controller-manager in a namespace, told by kubectl.
//!
//! There is no scheduler and no kubelet: Pods name their node, and a test writes their status. The controllers make of
//! them what they make in any cluster. Programs are those of [`FOLDER`]; certificates are made by `openssl`.

mod audit;
mod certificates;
mod program;

pub use audit::Asked;
pub use program::Program;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use crate::namespace::Namespace;
use crate::world::wait_for;
use certificates::Certificates;

/// Environment variable that names the folder of `etcd`, `kube-apiserver`, `kube-controller-manager` and `kubectl`.
pub const FOLDER: &str = "BPVS_KUBERNETES_BIN";
/// Where Services get their addresses from.
pub const SERVICE_NETWORKS: &str = "10.96.0.0/16,fd00:96::/112";
/// The address of the Service `kubernetes`.
pub const KUBERNETES: &str = "https://10.96.0.1:443";
/// The token of who may do everything.
const ADMINISTRATOR: &str = "administrator";
const CONTROLLERS: &str = "controllers";
const ETCD: &str = "http://127.0.0.1:2379";
/// An API server makes its roles and a controller manager its accounts in this time, on a busy machine.
const START: Duration = Duration::from_secs(120);
/// Those that the tests need. The one that looks after nodes would have them all NotReady: nobody runs a kubelet.
const ENABLED: &str = "serviceaccount-controller,serviceaccount-token-controller,root-ca-certificate-publisher-controller,\
                       endpointslice-controller,namespace-controller,garbage-collector-controller,service-cidr-controller,\
                       daemonset-controller";

/// A running control plane. Dropping it ends it.
#[derive(Debug)]
pub struct ControlPlane {
    api_server: Mutex<Option<Program>>,
    controllers: Mutex<Option<Program>>,
    etcd: Option<Program>,
    programs: PathBuf,
    address: SocketAddr,
    certificates: Certificates,
    namespace: Namespace,
    folder: TempDir,
}

fn lock(program: &Mutex<Option<Program>>) -> MutexGuard<'_, Option<Program>> {
    program.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder that [`FOLDER`] names.
fn programs() -> Result<PathBuf> {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from).with_context(|| {
        format!("{FOLDER} must name a folder with etcd, kube-apiserver, kube-controller-manager and kubectl")
    })?;
    for name in ["etcd", "kube-apiserver", "kube-controller-manager", "kubectl"] {
        let path = folder.join(name);
        ensure!(path.is_file(), "{FOLDER} is {}, where there is no {name}", folder.display());
    }
    Ok(folder)
}

impl ControlPlane {
    /// Starts all of it in a namespace that has these addresses, of which the first one is advertised.
    pub fn start(namespace: Namespace, addresses: &[IpAddr]) -> Result<Self> {
        let programs = programs()?;
        let folder = TempDir::new().context("folder of the control plane")?;
        let address = SocketAddr::new(*addresses.first().context("no address")?, 6443);
        let certificates = Certificates::new(folder.path(), addresses)?;
        let mut plane = Self {
            api_server: Mutex::default(),
            controllers: Mutex::default(),
            etcd: None,
            programs,
            address,
            certificates,
            namespace,
            folder,
        };
        plane.users()?;
        plane.etcd = Some(plane.start_etcd()?);
        plane.start_api_server()?;
        plane.start_controllers()?;
        plane.kubectl(&["create", "namespace", "demo"])?;
        let account = || Ok(plane.kubectl(&["-n", "demo", "get", "serviceaccount", "default"]).ok());
        let said = || lock(&plane.controllers).as_ref().map(Program::said).unwrap_or_default();
        wait_for("service account in the namespace demo", START, account, said)?;
        // By these kubectl looks at what it is to apply. They come a moment after the server is ready.
        for schema in ["/openapi/v2", "/openapi/v3/api/v1"] {
            wait_for(schema, START, || Ok(plane.kubectl(&["get", "--raw", schema]).ok()), said)?;
        }
        Ok(plane)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn users(&self) -> Result<()> {
        let tokens = format!(
            "{ADMINISTRATOR},{ADMINISTRATOR},{ADMINISTRATOR},system:masters\n\
             {CONTROLLERS},system:kube-controller-manager,{CONTROLLERS}\n"
        );
        fs::write(self.file("tokens.csv"), tokens)?;
        fs::write(self.file("audit.yaml"), audit::POLICY)?;
        for name in [ADMINISTRATOR, CONTROLLERS] {
            let token = self.file(&format!("{name}.token"));
            fs::write(&token, name)?;
            self.kubeconfig(&self.file(name), &format!("https://{}", self.address), &token)?;
        }
        Ok(())
    }

    fn start_etcd(&self) -> Result<Program> {
        let mut command = Command::new(self.programs.join("etcd"));
        command.arg("--data-dir").arg(self.file("etcd")).arg(format!("--listen-client-urls={ETCD}"));
        command.args([&format!("--advertise-client-urls={ETCD}"), "--log-level=warn", "--unsafe-no-fsync"]);
        Program::start("etcd", &self.namespace, command, self.folder.path())
    }

    /// After the end of those that run.
    fn start_controllers(&self) -> Result<()> {
        *lock(&self.controllers) = None;
        let mut command = Command::new(self.programs.join("kube-controller-manager"));
        command.arg("--kubeconfig").arg(self.file(CONTROLLERS));
        command.arg("--root-ca-file").arg(self.certificates.authority());
        command.arg("--service-account-private-key-file").arg(self.certificates.accounts());
        command.args(["--use-service-account-credentials", "--leader-elect=false", "--secure-port=0"]);
        command.arg(format!("--controllers={ENABLED}"));
        let started = Program::start("kube-controller-manager", &self.namespace, command, self.folder.path())?;
        *lock(&self.controllers) = Some(started);
        Ok(())
    }

    /// Starts the API server, after its end if it runs, and waits until it is ready.
    pub fn start_api_server(&self) -> Result<()> {
        self.kill_api_server();
        let mut command = Command::new(self.programs.join("kube-apiserver"));
        let (certificates, address) = (&self.certificates, self.address);
        for (flag, path) in [
            ("--cert-dir", self.folder.path().to_owned()),
            ("--tls-cert-file", certificates.server()),
            ("--tls-private-key-file", certificates.server_key()),
            ("--service-account-key-file", certificates.accounts()),
            ("--service-account-signing-key-file", certificates.accounts()),
            ("--token-auth-file", self.file("tokens.csv")),
            ("--audit-policy-file", self.file("audit.yaml")),
            ("--audit-log-path", self.file("audit.log")),
        ] {
            command.arg(flag).arg(path);
        }
        command.args([
            &format!("--etcd-servers={ETCD}"),
            &format!("--advertise-address={}", address.ip()),
            &format!("--secure-port={}", address.port()),
            &format!("--service-cluster-ip-range={SERVICE_NETWORKS}"),
            "--bind-address=::",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-extend-token-expiration=false",
        ]);
        let started = Program::start("kube-apiserver", &self.namespace, command, self.folder.path())?;
        let ready = || {
            ensure!(!started.has_ended()?, "the API server has ended; it said:\n{}", started.said());
            Ok(self.kubectl(&["get", "--raw", "/readyz"]).ok())
        };
        wait_for("API server that is ready", START, ready, || started.said())?;
        *lock(&self.api_server) = Some(started);
        Ok(())
    }

    /// Ends the API server with SIGKILL.
    pub fn kill_api_server(&self) {
        *lock(&self.api_server) = None;
    }

    /// Where all of it runs.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Where the API server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs kubectl as one who may do everything; returns what it prints.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(self.programs.join("kubectl"));
        command.arg("--kubeconfig").arg(self.file(ADMINISTRATOR)).args(arguments).env("HOME", self.folder.path());
        Ok(String::from_utf8_lossy(&self.namespace.run(&mut command)?.stdout).into_owned())
    }

    /// The same with these objects as a file.
    pub fn kubectl_with(&self, arguments: &[&str], objects: &[Value]) -> Result<String> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let file = NamedTempFile::new_in(self.folder.path())?;
        fs::write(file.path(), list.to_string())?;
        let name = file.path().to_str().context("a name that is no text")?;
        self.kubectl(&[arguments, &["--filename", name]].concat())
    }

    /// Makes or changes objects.
    pub fn apply(&self, objects: &[Value]) -> Result<()> {
        self.kubectl_with(&["apply"], objects).map(drop)
    }

    /// Makes the status of objects that there are this one.
    pub fn state(&self, objects: &[Value]) -> Result<()> {
        self.kubectl_with(&["replace", "--subresource=status"], objects).map(drop)
    }

    /// An object, or a list of objects: `["-n", "demo", "service", "web"]`.
    pub fn get(&self, what: &[&str]) -> Result<Value> {
        let text = self.kubectl(&[&["get", "-o", "json"], what].concat())?;
        serde_json::from_str(&text).with_context(|| format!("kubectl get {what:?} printed {text}"))
    }

    /// Starts the API server again with a certificate of another authority, whose own takes the old one's place in the file
    /// that kubeconfig files name. The controllers are started again, too: they look at that file once.
    pub fn replace_authority(&self) -> Result<()> {
        self.kill_api_server();
        self.certificates.replace()?;
        self.start_api_server()?;
        self.start_controllers()
    }

    /// Starts the real kube-proxy, in its nftables mode, on a node.
    pub fn start_kube_proxy(
        &self,
        namespace: &Namespace,
        node: &str,
        kubeconfig: &Path,
        pods: &str,
    ) -> Result<Program> {
        let mut command = self.kube_proxy()?;
        command.arg("--kubeconfig").arg(kubeconfig).arg(format!("--hostname-override={node}"));
        command.arg(format!("--cluster-cidr={pods}"));
        // Settings of the whole machine are not its business here.
        command.args(["--proxy-mode=nftables", "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0"]);
        command.arg("--conntrack-tcp-timeout-close-wait=0");
        Program::start("kube-proxy", namespace, command, self.folder.path())
    }

    /// Removes what kube-proxy has left behind on a node.
    pub fn clean_up_kube_proxy(&self, namespace: &Namespace) -> Result<()> {
        namespace.run(self.kube_proxy()?.args(["--cleanup", "--proxy-mode=nftables"])).map(drop)
    }

    fn kube_proxy(&self) -> Result<Command> {
        let path = self.programs.join("kube-proxy");
        ensure!(path.is_file(), "{FOLDER} is {}, where there is no kube-proxy", self.programs.display());
        Ok(Command::new(path))
    }

    /// What the API server was asked by a user since it was first started, oldest first.
    pub fn asked_by(&self, user: &str) -> Result<Vec<Asked>> {
        audit::read(&self.folder.path().join("audit.log"), user)
    }

    /// Writes a kubeconfig file that names this server (`https://...`) and a file with a token.
    pub fn kubeconfig(&self, path: &Path, server: &str, token: &Path) -> Result<()> {
        let cluster = json!({"server": server, "certificate-authority": self.certificates.authority()});
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"tokenFile": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        });
        fs::write(path, config.to_string()).with_context(|| format!("writing {}", path.display()))
    }
}

//! The real agent in a real cluster: etcd, kube-apiserver and kube-controller-manager, with the stock roles, two nodes with a
//! `bpvs` each as kubeadm would configure it, and real connections.
//!
//! Ignored, since nothing brings those programs: `BPVS_KUBERNETES_BIN` names their folder. Needs root, openssl and the bpvs
//! binary (`BPVS_BIN`, or built beside this test).

mod life;
mod many;
mod network;
mod objects;
mod policies;
mod services;
mod takeover;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bpvs_tests::agent::Agent;
use bpvs_tests::control_plane::{Asked, ControlPlane};
use bpvs_tests::namespace::Namespace;
use bpvs_tests::traffic::{Dial, Hammer, Held, UdpClient};
use serde_json::Value;
use tempfile::TempDir;

use network::{Network, Pod, on_link};

/// What kubeadm writes, with mode ipvs and wlc.
const KUBEADM: &str = include_str!("../../../lb-userspace/tests/data/kubeadm-config.conf");
/// The role of kube-proxy for bpvs's account, and nothing else.
const BINDING: &str = include_str!("../../../deploy/kustomize/clusterrolebinding.yaml");
const ACCOUNT: &str = "system:serviceaccount:kube-system:bpvs";
/// Longest time until packets see a change: e2e allows 30 s for endpoints (FE-12).
const DEADLINE: Duration = Duration::from_secs(30);

/// Two nodes and what tells them. Pods are made by a test.
#[derive(Debug)]
struct Cluster {
    network: Network,
    control: ControlPlane,
    folder: TempDir,
}

impl Cluster {
    fn new() -> Self {
        let (network, namespace) = Network::new();
        let control = ControlPlane::start(namespace, &on_link(1)).unwrap();
        let cluster = Self { network, control, folder: tempfile::tempdir().unwrap() };
        let nodes: Vec<Value> = cluster.network.nodes.iter().map(objects::node).collect();
        cluster.control.apply(&nodes).unwrap();
        cluster.control.state(&nodes).unwrap();
        let binding: Value = serde_saphyr::from_str(BINDING).unwrap();
        cluster.control.kubectl(&["-n", "kube-system", "create", "serviceaccount", "bpvs"]).unwrap();
        cluster.control.apply(&[binding]).unwrap();
        cluster.token(&[]);
        for node in 0..2 {
            cluster.kubeconfig(node, &format!("https://{}", cluster.control.address()));
            let text = [
                ("/var/lib/kube-proxy/kubeconfig.conf", &*cluster.file(node, "kubeconfig").display().to_string()),
                ("hostnameOverride: \"\"", &format!("hostnameOverride: {}", cluster.network.nodes[node].name)),
                ("clusterCIDR: 10.244.0.0/16", "clusterCIDR: 10.1.0.0/16,fd00:1::/48"),
            ]
            .iter()
            .fold(KUBEADM.to_owned(), |text, (from, to)| {
                assert!(text.contains(from), "{from}");
                text.replace(from, to)
            });
            std::fs::write(cluster.file(node, "config.conf"), text).unwrap();
        }
        cluster
    }

    fn file(&self, node: usize, name: &str) -> PathBuf {
        self.folder.path().join(format!("{node}-{name}"))
    }

    /// Where both agents have their token from.
    fn token_file(&self) -> PathBuf {
        self.folder.path().join("token")
    }

    /// Gives the agents another token, as the kubelet does: another file takes the name.
    fn token(&self, bound: &[&str]) {
        let create = ["-n", "kube-system", "create", "token", "bpvs", "--duration=1h"];
        let token = self.control.kubectl(&[&create[..], bound].concat()).unwrap();
        let new = self.folder.path().join("new");
        std::fs::write(&new, token.trim()).unwrap();
        std::fs::rename(new, self.token_file()).unwrap();
    }

    /// Tells an agent how to reach the API server, from its next start on.
    fn kubeconfig(&self, node: usize, server: &str) {
        self.control.kubeconfig(&self.file(node, "kubeconfig"), server, &self.token_file()).unwrap();
    }

    /// The agent of a node, as kubeadm's configuration starts it.
    fn agent(&self, node: usize) -> Agent<'_> {
        let agent = Agent::builder(&self.network.nodes[node].host.namespace);
        agent.argument("--config").argument(self.file(node, "config.conf")).build().unwrap()
    }

    /// Both agents, ready.
    fn agents(&self) -> [Agent<'_>; 2] {
        let agents = [self.agent(0), self.agent(1)];
        for agent in &agents {
            agent.start().unwrap();
        }
        agents
    }

    /// A pod on a node, known to the cluster and ready.
    fn pod(&self, node: usize, id: u16, app: &str) -> Pod {
        let pod = self.network.pod(node, id);
        self.control.apply(&[objects::pod(&pod, app)]).unwrap();
        self.readiness(&pod, app, true);
        pod
    }

    fn readiness(&self, pod: &Pod, app: &str, ready: bool) {
        self.control.state(&[objects::with_status(objects::pod(pod, app), &pod.addresses, ready)]).unwrap();
    }

    fn service(&self, name: &str) -> Value {
        self.control.get(&["-n", "demo", "service", name]).unwrap()
    }

    /// Changes a Service by a merge patch.
    fn patch(&self, name: &str, patch: &Value) {
        let patch = patch.to_string();
        self.control.kubectl(&["-n", "demo", "patch", "service", name, "--type=merge", "--patch", &patch]).unwrap();
    }

    /// The addresses of a Service, with a port.
    fn at(&self, name: &str, port: u16) -> Vec<SocketAddr> {
        let service = self.service(name);
        let addresses = service["spec"]["clusterIPs"].as_array().unwrap();
        let of = |address: &Value| SocketAddr::new(address.as_str().unwrap().parse().unwrap(), port);
        addresses.iter().map(of).collect()
    }

    /// Nothing was asked for that the role does not allow, and what kube-proxy asks for was.
    #[track_caller]
    fn within_its_role(&self) {
        let asked = self.control.asked_by(ACCOUNT).unwrap();
        let refused: Vec<&Asked> = asked.iter().filter(|asked| asked.status == 403).collect();
        assert!(refused.is_empty(), "beyond the role: {refused:?}");
        let nameless: Vec<&Asked> = asked.iter().filter(|asked| !asked.agent.starts_with("bpvs/")).collect();
        assert!(nameless.is_empty(), "{nameless:?}");
        let odd: Vec<&Asked> = asked.iter().filter(|asked| [400, 404, 405, 415, 422].contains(&asked.status)).collect();
        assert!(odd.is_empty(), "not as the API server wants it: {odd:?}");
        for resource in ["services", "endpointslices", "nodes", "servicecidrs"] {
            for verb in ["list", "watch"] {
                let done = |asked: &Asked| asked.verb == verb && asked.resource == resource && asked.status == 200;
                assert!(asked.iter().any(done), "{verb} {resource}: {asked:?}");
            }
        }
    }
}

/// Connections all the time. One whose first segment is lost has failed: it is sent again after a second.
fn hammer(from: &Namespace, to: SocketAddr) -> Hammer {
    Hammer::start_with(from, to, 20, Duration::from_secs(600), Duration::from_millis(900)).unwrap()
}

/// The server that a new connection reaches; `None` if it is refused.
fn dial(from: &Namespace, to: SocketAddr) -> Result<Option<u16>, String> {
    open(from, to).as_ref().map(server).map_err(Clone::clone)
}

fn server(held: &Option<Held>) -> Option<u16> {
    held.as_ref().map(|held| held.server)
}

fn open(from: &Namespace, to: SocketAddr) -> Result<Option<Held>, String> {
    match Dial::new(from, to).open() {
        Ok(held) => Ok(Some(held)),
        Err(error) if error.is_refused() => Ok(None),
        Err(error) => Err(format!("{to}: {error}")),
    }
}

fn datagram(from: &Namespace, to: SocketAddr) -> Option<u16> {
    let client = UdpClient::unconnected(from, None, to).unwrap();
    client.request(20, DEADLINE / 10).ok().map(|answer| answer.server)
}

/// Waits until connections reach exactly these servers, or are refused if there are none. Returns how long that took.
#[track_caller]
fn expect(from: &Namespace, to: SocketAddr, servers: &[u16]) -> Duration {
    let begin = Instant::now();
    let wanted: BTreeSet<Result<Option<u16>, String>> = match servers {
        [] => [Ok(None)].into(),
        servers => servers.iter().map(|server| Ok(Some(*server))).collect(),
    };
    let mut seen = BTreeSet::new();
    loop {
        let round = Instant::now();
        seen.clear();
        // Open ones count for wlc: each round reaches every server.
        let held: Vec<_> = (0..(3 * servers.len()).max(1)).map(|_| open(from, to)).collect();
        seen.extend(held.iter().map(|answer| answer.as_ref().map(server).map_err(Clone::clone)));
        if seen == wanted {
            return round - begin;
        }
        assert!(begin.elapsed() < DEADLINE, "{to} from {}: {seen:?}, not {wanted:?}", from.name());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[track_caller]
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + 2 * DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "not within {:?}: {what}", 2 * DEADLINE);
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn both(addresses: [IpAddr; 2], port: u16) -> [SocketAddr; 2] {
    addresses.map(|address| SocketAddr::new(address, port))
}

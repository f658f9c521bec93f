//! What the cluster is told of this node and of Services: Events at the API server, as kube-proxy emits them.
//!
//! Nobody waits for an Event to be taken. While the API server is away a few wait for it; more are lost, which is counted.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use prometheus::IntCounter;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use crate::source::api::Connection;

/// Who emits them.
const CONTROLLER: &str = "bpvs";
/// Events that wait.
const WAITING: usize = 64;
/// How often an Event is offered to an API server that cannot be reached, and how long after the last time.
const TRIES: u32 = 12;
const PAUSE: Duration = Duration::from_secs(10);
/// Longest time for one try.
const TRY: Duration = Duration::from_secs(10);

/// Something to tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The agent starts (IN-9).
    Starting,
    /// Nobody is told of the node's health (HZ-7).
    HealthzFails(String),
    /// Nobody is shown metrics.
    MetricsFail(String),
    /// Nobody is told of a Service's endpoints here (HC-9): namespace, name, and why.
    HealthCheckFails(String, String, String),
}

impl Notice {
    /// The Event, and what it is about: on this node, unless it is about a Service.
    fn event(&self, node: &str) -> (Event, ObjectReference) {
        let of_node = || ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            // By this, not by the object's, `kubectl describe node` finds what kubelet and kube-proxy emit.
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        };
        let event = |type_, reason: &str, action: &str, note: &str| Event {
            type_,
            reason: reason.to_owned(),
            note: (!note.is_empty()).then(|| note.to_owned()),
            action: action.to_owned(),
            secondary: None,
        };
        const START: &str = "StartKubeProxy";
        match self {
            Self::Starting => (event(EventType::Normal, "Starting", START, ""), of_node()),
            Self::HealthzFails(why) => {
                (event(EventType::Warning, "FailedToStartProxierHealthcheck", START, why), of_node())
            }
            Self::MetricsFail(why) => (event(EventType::Warning, "FailedToStartMetricServer", START, why), of_node()),
            Self::HealthCheckFails(namespace, name, why) => {
                let service = ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Service".to_owned()),
                    namespace: Some(namespace.clone()),
                    name: Some(name.clone()),
                    uid: Some(format!("{namespace}/{name}")),
                    ..ObjectReference::default()
                };
                (event(EventType::Warning, "FailedToStartServiceHealthcheck", "Listen", why), service)
            }
        }
    }
}

/// Where notices are given. Clones give to the same place; without an API server they go nowhere.
#[derive(Clone, Debug)]
pub struct Notices {
    sender: Option<mpsc::Sender<Work>>,
    lost: IntCounter,
}

#[derive(Debug)]
enum Work {
    Tell(Notice),
    Flush(oneshot::Sender<()>),
}

impl Notices {
    /// To this API server, if there is one; about this node. Counts what was lost. Needs a runtime.
    pub fn start(connection: Option<Connection>, node: &str, lost: IntCounter) -> Self {
        let sender = connection.map(|connection| {
            let (sender, receiver) = mpsc::channel(WAITING);
            let reporter =
                Reporter { controller: CONTROLLER.to_owned(), instance: Some(format!("{CONTROLLER}-{node}")) };
            let (client, made) = connection.client();
            let recorder = Recorder::new(client, reporter.clone());
            let teller = Teller { connection, made, reporter, recorder, node: node.to_owned(), lost: lost.clone() };
            tokio::spawn(teller.run(receiver));
            sender
        });
        Self { sender, lost }
    }

    /// Gives a notice, without waiting.
    pub fn tell(&self, notice: Notice) {
        let Some(sender) = &self.sender else { return };
        if sender.try_send(Work::Tell(notice)).is_err() {
            self.lost.inc();
        }
    }

    /// Waits until all that was given is told, or the time is over.
    pub async fn flush(&self, within: Duration) {
        let Some(sender) = &self.sender else { return };
        let (done, told) = oneshot::channel();
        let flush = async {
            if sender.send(Work::Flush(done)).await.is_ok() {
                let _all_or_none_is_left = told.await;
            }
        };
        let _whoever_is_late_is_not_waited_for = timeout(within, flush).await;
    }
}

struct Teller {
    connection: Connection,
    /// When the recorder's client was made.
    made: Instant,
    reporter: Reporter,
    recorder: Recorder,
    node: String,
    lost: IntCounter,
}

impl Teller {
    async fn run(mut self, mut receiver: mpsc::Receiver<Work>) {
        let mut warned = false;
        while let Some(work) = receiver.recv().await {
            match work {
                Work::Flush(done) => drop(done.send(())),
                Work::Tell(notice) => {
                    if let Err(error) = self.publish(&notice).await {
                        self.lost.inc();
                        if !std::mem::replace(&mut warned, true) {
                            warn!("the API server takes no Event: {error}: {notice:?} is lost, and so may be others");
                        }
                    }
                }
            }
        }
    }

    /// Asks by the client of now.
    fn use_connection(&mut self) {
        let (client, made) = self.connection.client();
        if made != self.made {
            (self.recorder, self.made) = (Recorder::new(client, self.reporter.clone()), made);
        }
    }

    /// Offers an Event until it is taken or refused.
    async fn publish(&mut self, notice: &Notice) -> Result<(), String> {
        let (event, about) = notice.event(&self.node);
        let mut tries = 0;
        loop {
            tries += 1;
            self.use_connection();
            let error = match timeout(TRY, self.recorder.publish(&event, &about)).await {
                Ok(Ok(())) => return Ok(()),
                // It was heard, and refused: the same again would be, too.
                Ok(Err(kube::Error::Api(status))) if is_refusal(status.code) => return Err(status.to_string()),
                Ok(Err(error)) => {
                    if matches!(&error, kube::Error::Api(status) if status.code == 401) {
                        self.connection.renew(self.made).await;
                    }
                    error.to_string()
                }
                Err(_) => format!("no answer within {TRY:?}"),
            };
            if tries == TRIES {
                return Err(error);
            }
            sleep(PAUSE).await;
        }
    }
}

/// The client's fault, but for asking too often, and for credentials that may have been replaced.
fn is_refusal(code: u16) -> bool {
    (400..500).contains(&code) && ![401, 429].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::api::RequestLimit;

    #[test]
    fn events_are_kube_proxys() {
        let why = || "why".to_owned();
        let service = Notice::HealthCheckFails("demo".to_owned(), "web".to_owned(), why());
        for (notice, kind, reason, action, note) in [
            (Notice::Starting, "Node", "Starting", "StartKubeProxy", None),
            (Notice::HealthzFails(why()), "Node", "FailedToStartProxierHealthcheck", "StartKubeProxy", Some("why")),
            (Notice::MetricsFail(why()), "Node", "FailedToStartMetricServer", "StartKubeProxy", Some("why")),
            (service, "Service", "FailedToStartServiceHealthcheck", "Listen", Some("why")),
        ] {
            let (event, about) = notice.event("n0");
            let expected_type = if reason == "Starting" { EventType::Normal } else { EventType::Warning };
            assert_eq!((event.type_, event.reason.as_str(), event.action.as_str()), (expected_type, reason, action));
            assert_eq!((event.note.as_deref(), about.kind.as_deref()), (note, Some(kind)));
            let (name, uid) = if kind == "Node" { ("n0", "n0") } else { ("web", "demo/web") };
            assert_eq!((about.name.as_deref(), about.uid.as_deref()), (Some(name), Some(uid)));
        }
    }

    #[tokio::test]
    async fn without_an_api_server_nobody_is_told_and_nobody_waits() {
        let lost = IntCounter::new("lost", "lost").unwrap();
        let notices = Notices::start(None, "n0", lost.clone());
        notices.tell(Notice::Starting);
        notices.flush(Duration::from_secs(3600)).await;
        assert_eq!(lost.get(), 0);
    }

    #[tokio::test]
    async fn what_an_api_server_that_is_away_is_to_be_told_is_bounded_and_counted() {
        let lost = IntCounter::new("lost", "lost").unwrap();
        // Nobody listens on port 0.
        let nowhere = "http://127.0.0.1:0".parse().unwrap();
        let connection = Connection::new(None, Some(&nowhere), RequestLimit::default()).await.unwrap();
        let notices = Notices::start(Some(connection), "n0", lost.clone());
        for _ in 0..3 * WAITING {
            notices.tell(Notice::Starting);
        }
        assert_eq!(lost.get(), 2 * WAITING as u64);
        notices.flush(Duration::from_millis(10)).await;
    }
}

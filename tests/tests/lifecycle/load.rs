//! Streams and new connections that go on through everything.

use std::time::Duration;

use bpvs_tests::traffic::{Hammer, Stream};
use bpvs_tests::world::{TCP, World, frontends};

/// The load ends by itself after this.
const LIMIT: Duration = Duration::from_secs(300);
/// Longest time for a few more bytes or connections.
const SLOW: Duration = Duration::from_secs(10);
const BYTES_PER_SECOND: u64 = 300_000;
const CONNECTIONS_PER_SECOND: u32 = 60;

pub(crate) struct Load {
    pub(crate) streams: Vec<(String, Stream)>,
    pub(crate) hammers: Vec<(String, Hammer)>,
}

impl Load {
    /// A stream and a hammer of each client, streams over both families.
    pub(crate) fn start(world: &World, number: u16) -> Self {
        let (mut streams, mut hammers) = (Vec::new(), Vec::new());
        for (index, (who, client)) in world.clients().into_iter().enumerate() {
            for to in frontends(number, TCP) {
                let stream = Stream::start(&client.namespace, None, to, BYTES_PER_SECOND, LIMIT);
                let name = format!("stream of the {who} to {to}");
                streams.push((name.clone(), stream.unwrap_or_else(|error| panic!("{name}: {error}"))));
            }
            let to = frontends(number, TCP)[index % 2];
            let hammer = Hammer::start(&client.namespace, to, CONNECTIONS_PER_SECOND, LIMIT).unwrap();
            hammers.push((format!("hammer of the {who} to {to}"), hammer));
        }
        Self { streams, hammers }
    }

    /// Every stream moves and every hammer opens connections.
    pub(crate) fn alive(&self, when: &str) {
        for (name, stream) in &self.streams {
            stream.advance(10_000, SLOW).unwrap_or_else(|error| panic!("{when}: {name}: {error:#}"));
        }
        for (name, hammer) in &self.hammers {
            hammer.advance(2, SLOW).unwrap_or_else(|error| panic!("{when}: {name}: {error:#}"));
            let report = hammer.report();
            assert_eq!(report.failed, 0, "{when}: {name}: {:?}", report.failures);
        }
    }

    /// From here on no hammer's connection goes to this server.
    pub(crate) fn avoids(&self, server: u16, when: &str) {
        // The connection that was being opened may be older than the change.
        self.alive(when);
        let to_it = |hammer: &Hammer| hammer.report().per_server.get(&server).copied().unwrap_or(0);
        let before: Vec<_> = self.hammers.iter().map(|(_, hammer)| to_it(hammer)).collect();
        for ((name, hammer), before) in self.hammers.iter().zip(before) {
            hammer.advance(10, SLOW).unwrap_or_else(|error| panic!("{when}: {name}: {error:#}"));
            assert_eq!(to_it(hammer), before, "{when}: {name} still gets server {server}");
        }
    }

    /// Ends all: every byte came in order, no connection was lost.
    pub(crate) fn finish(self) {
        for (name, hammer) in self.hammers {
            let report = hammer.stop().unwrap();
            assert!(report.attempts > 0 && report.failed == 0, "{name}: {report:?}");
        }
        for (name, stream) in self.streams {
            let report = stream.finish().unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(report.bytes > 0, "{name}: {report:?}");
        }
    }
}

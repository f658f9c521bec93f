//! Rows of a table, and how one is checked.

use bpvs_tests::{
    datapath::{Hook, NEXT, Options},
    packets::verify,
};

use crate::{shapes::plain, world::World};

/// One packet: where it comes by, what becomes of it.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) hook: Hook,
    pub(crate) sent: Vec<u8>,
    pub(crate) verdict: i32,
    pub(crate) out: Vec<u8>,
}

impl Row {
    /// A request becomes another packet and goes on.
    pub(crate) fn request(what: &str, sent: Vec<u8>, out: Vec<u8>) -> Self {
        Self { what: what.to_owned(), hook: Hook::Ingress, sent, verdict: NEXT, out }
    }

    /// A reply becomes another packet and goes on.
    pub(crate) fn reply(what: &str, sent: Vec<u8>, out: Vec<u8>) -> Self {
        Self { hook: Hook::Egress, ..Self::request(what, sent, out) }
    }

    /// A packet is none of ours, on one hook.
    pub(crate) fn untouched(what: &str, hook: Hook, sent: Vec<u8>) -> Self {
        Self { what: what.to_owned(), hook, verdict: NEXT, out: sent.clone(), sent }
    }

    /// The same with another verdict.
    pub(crate) fn verdict(self, verdict: i32) -> Self {
        Self { verdict, ..self }
    }
}

impl World {
    /// Runs rows one after another.
    pub(crate) fn check(&self, rows: impl IntoIterator<Item = Row>) {
        for row in rows {
            self.check_one(&row);
        }
    }

    fn check_one(&self, row: &Row) {
        let what = format!("{} ({:?}, {})", row.what, row.hook, if self.v6 { "IPv6" } else { "IPv4" });
        let run = self.datapath.run(row.hook, &row.sent, Options::default()).unwrap();
        assert_eq!(run.verdict, row.verdict, "verdict: {what}; drops {:?}", self.datapath.all_drops().unwrap());
        if run.frame != row.out {
            panic!("{what}\n    sent {}\n     got {}\nexpected {}", hex(&row.sent), hex(&run.frame), hex(&row.out));
        }
        if row.sent != row.out {
            // What the builder and the programs agree on must be right too, by a third judge.
            verify(&plain(&run.frame)).unwrap_or_else(|error| panic!("{what}: {error:#}"));
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

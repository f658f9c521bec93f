//! Resets that both ends ignore, because they are out of every window: bpvs, as IPVS, knows no windows.

use std::time::Duration;

use bpvs_tests::datapath::{NEXT, REDIRECTED};
use bpvs_tests::packets::flags;
use lb_common::drops::Drop;

use crate::{
    rows::Row,
    shapes::{Around, Inside},
    world::{CHANGED, SERVER_PORT, World},
};

#[test]
fn a_stray_reset_ends_nothing_that_goes_on_within_ten_seconds() {
    for mut world in World::both() {
        for (port, from_server) in [(4000, false), (4001, true)] {
            let (client, vip, server) = (world.client(port), world.vip(CHANGED), world.server(SERVER_PORT));
            let frame = |from, to, bits| Around::Plain.frame(from, to, Inside::Segment(bits));
            world.datapath.ingress(&Around::Plain.frame(client, vip, Inside::Syn)).unwrap();
            world.datapath.egress(&Around::Plain.frame(server, client, Inside::Syn.answer())).unwrap();
            let going_on = || {
                let (ack, data) = (flags::ACK, flags::ACK | flags::PSH);
                [
                    Row::request("request", frame(client, vip, data), frame(client, server, data)),
                    Row::reply("reply", frame(server, client, ack), frame(vip, client, ack)),
                ]
            };
            world.check(going_on());
            let reset = flags::RST;
            world.check([match from_server {
                true => Row::reply("reset", frame(server, client, reset), frame(vip, client, reset)),
                false => Row::request("reset", frame(client, vip, reset), frame(client, server, reset)),
            }]);
            for _ in 0..5 {
                world.check(going_on());
                world.datapath.age(Duration::from_secs(9)).unwrap();
            }
            world.check(going_on());
            // Who is silent for longer finds it over: 15 minutes before the reset, 10 s after it.
            world.datapath.age(Duration::from_secs(11)).unwrap();
            assert_eq!(world.datapath.ingress(&frame(client, vip, flags::ACK)).unwrap().verdict, REDIRECTED);
            assert_eq!(world.datapath.drops(Drop::NotSyn).unwrap(), 1 + u64::from(from_server));
            let anew = world.datapath.ingress(&Around::Plain.frame(client, vip, Inside::Syn)).unwrap();
            assert_eq!(anew.verdict, NEXT);
        }
    }
}

//! The laws of translation, over whole frames: it does what a sender with the other addresses would have sent, it can
//! be undone, and it hides no damage.

mod build;

use build::{Flow, Recipe, UDP, error, ethernet, flows, frame, ip, recipes};
use lb_common::{
    nat::{self, Refused, Rewrite, SliceEditor, checksum::Difference},
    packet::{self, Kind, Packet},
};
use proptest::prelude::*;

/// Parses and translates.
fn translated(frame: &[u8], to: &Rewrite) -> Result<Vec<u8>, Refused> {
    let packet = Packet::parse(frame).expect("a frame of services");
    let mut out = frame.to_vec();
    nat::apply(&mut SliceEditor { frame: &mut out }, &packet, to)?;
    Ok(out)
}

/// Parses and translates an ICMP error: outer addresses, and what the quoted packet becomes.
fn translated_error(frame: &[u8], outer: Flow, quoted: Flow) -> Vec<u8> {
    let packet = Packet::parse(frame).expect("an ICMP error");
    assert_eq!(packet.kind, Kind::IcmpError);
    let mut inner = Packet::default();
    packet::parse_quoted(frame, &packet, &mut inner).expect("a quoted packet of services");
    let (outer, mut out) = (outer.rewrite(), frame.to_vec());
    let mut editor = SliceEditor { frame: &mut out };
    nat::apply_embedded(&mut editor, &packet, outer.source, outer.destination, &inner, &quoted.rewrite()).unwrap();
    out
}

fn offset_of_transport(frame: &[u8]) -> usize {
    Packet::parse(frame).unwrap().transport as usize
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_translated_packet_is_the_one_that_a_sender_with_the_new_addresses_makes(
        recipe in recipes(), (before, after) in flows()
    ) {
        let out = translated(&frame(&recipe, before), &after.rewrite()).unwrap();
        prop_assert_eq!(out, frame(&recipe, after));
    }

    #[test]
    fn a_reply_after_a_request_is_the_identity(recipe in recipes(), (client, server) in flows()) {
        // The server sends back what it received; the frontend's answer is what the client sent.
        let request = translated(&frame(&recipe, client), &server.rewrite()).unwrap();
        prop_assert_eq!(&request, &frame(&recipe, server));
        let reply = translated(&frame(&recipe, server.reversed()), &client.rewrite().reversed()).unwrap();
        prop_assert_eq!(reply, frame(&recipe, client.reversed()));
        let back = translated(&request, &client.rewrite()).unwrap();
        prop_assert_eq!(back, frame(&recipe, client));
    }

    #[test]
    fn a_damaged_packet_stays_damaged_in_the_same_bits(
        recipe in recipes(), (before, after) in flows(), at in any::<prop::sample::Index>(), bit in 0..8u8
    ) {
        // Behind the ports, so that the flow is the same: payload, or fields that no rewrite looks at.
        let right = frame(&recipe, before);
        let transport = offset_of_transport(&right);
        let first = match recipe.protocol { UDP => 8, build::TCP => 18, _ => 12 };
        prop_assume!(right.len() > transport + first);
        let place = transport + first + at.index(right.len() - transport - first);
        let mut damaged = right.clone();
        damaged[place] ^= 1 << bit;
        let mut expected = frame(&recipe, after);
        expected[place] ^= 1 << bit;
        prop_assert_eq!(translated(&damaged, &after.rewrite()).unwrap(), expected);
    }

    #[test]
    fn a_wrong_checksum_stays_wrong(recipe in recipes(), (before, after) in flows(), wrong in any::<u16>()) {
        let right = frame(&recipe, before);
        let field = offset_of_transport(&right) + match recipe.protocol { UDP => 6, build::TCP => 16, _ => 8 };
        let mut damaged = right.clone();
        damaged[field..field + 2].copy_from_slice(&wrong.to_be_bytes());
        let equal = |a: u16, b: u16| a == b || (a == 0xffff || a == 0) && (b == 0xffff || b == 0);
        let is = |frame: &[u8]| u16::from_be_bytes([frame[field], frame[field + 1]]);
        prop_assume!(!(recipe.protocol == UDP && (wrong == 0 || is(&right) == 0)));
        let (out, expected) = (translated(&damaged, &after.rewrite()).unwrap(), frame(&recipe, after));
        let was_right = if recipe.protocol == build::SCTP { wrong == is(&right) } else { equal(wrong, is(&right)) };
        let is_right =
            if recipe.protocol == build::SCTP { is(&out) == is(&expected) } else { equal(is(&out), is(&expected)) };
        prop_assert_eq!(was_right, is_right);
    }

    #[test]
    fn trailing_bytes_of_the_link_layer_stay(
        recipe in recipes(), (before, after) in flows(), trailer in prop::collection::vec(any::<u8>(), 1..60)
    ) {
        let with = |mut frame: Vec<u8>| { frame.extend(&trailer); frame };
        let out = translated(&with(frame(&recipe, before)), &after.rewrite()).unwrap();
        prop_assert_eq!(out, with(frame(&recipe, after)));
    }

    #[test]
    fn an_error_quotes_to_its_receiver_the_packet_that_it_sent(
        recipe in recipes(), outer in recipes(), (sent, forwarded) in flows(), (from, _) in flows(),
        cut in any::<prop::sample::Index>(), trailer in prop::collection::vec(any::<u8>(), 0..60)
    ) {
        // A router, or the server itself, answers the translated packet and quotes what it likes of it.
        let quoted = ip(&recipe, forwarded);
        let header = offset_of_transport(&ethernet(&recipe, forwarded, &quoted)) - 14 - 4 * recipe.tags.len();
        let length = match 8 + cut.index(quoted.len() - header - 7) {
            // Half a checksum cannot follow; no sender cuts there.
            cut if recipe.protocol == build::SCTP && cut < 12 => header + 8,
            17 if recipe.protocol == build::TCP => header + 16,
            cut => header + cut,
        };
        let router = if from.source.is_ipv4() == sent.source.is_ipv4() { from.source } else { forwarded.destination };
        let back = Flow { source: router, destination: forwarded.source, ..forwarded };
        let mut arrived = error(&outer, back, &quoted[..length]);
        arrived.extend(&trailer);

        let to = Flow { source: sent.destination, destination: sent.source, ..sent };
        let out = translated_error(&arrived, to, sent);
        let mut expected = error(&outer, to, &ip(&recipe, sent)[..length]);
        expected.extend(&trailer);
        prop_assert_eq!(out, expected);
    }

    #[test]
    fn an_error_about_a_quote_with_a_wrong_checksum_is_right_itself(
        mut recipe in recipes(), outer in recipes(), (sent, forwarded) in flows(), wrong in any::<u16>()
    ) {
        // The receiver finds the quote as damaged as it was, in an error that is right.
        recipe.protocol = build::TCP;
        let mut quoted = ip(&recipe, forwarded);
        let place = quoted.len() - 20 - recipe.payload.len() + 4;
        quoted[place..place + 2].copy_from_slice(&wrong.to_be_bytes());
        let mut original = ip(&recipe, sent);
        original[place..place + 2].copy_from_slice(&wrong.to_be_bytes());
        let out = translated_error(&error(&outer, forwarded.reversed(), &quoted), sent.reversed(), sent);
        prop_assert_eq!(out, error(&outer, sent.reversed(), &original));
    }
}

/// Sampling would hardly meet the two zeros of one's complement.
#[test]
fn an_update_agrees_with_the_sum_for_every_field() {
    for field in 0..=u16::MAX {
        for (old, new) in [(0, 0), (0xffff, 0), (0, 0xffff), (0x1234, 0xedcb), (0xffff, 1), (1, 0xfffe)] {
            let updated = Difference::ZERO.half(old, new).update(field);
            let sum = |field: u16, value: u16| (u32::from(field) + u32::from(value)) % 0xffff;
            assert_eq!(sum(field, old), sum(updated, new), "field {field:#x}, {old:#x} to {new:#x}");
            assert_ne!(updated, 0xffff, "no sender computes that: field {field:#x}, {old:#x} to {new:#x}");
        }
    }
}

#[test]
fn a_udp_checksum_that_becomes_zero_is_written_as_ones() {
    let recipe = Recipe {
        protocol: UDP,
        tags: vec![],
        options: vec![],
        extensions: vec![],
        payload: vec![0, 0],
        no_checksum: false,
    };
    let address = |last| std::net::IpAddr::from([10, 0, 0, last]);
    let before = Flow { source: address(1), destination: address(2), source_port: 1000, destination_port: 53 };
    // Each port once: exactly one makes the sum come out as zero.
    let mut found = 0;
    for port in 0..=u16::MAX {
        let after = Flow { destination_port: port, ..before };
        let out = translated(&frame(&recipe, before), &after.rewrite()).unwrap();
        assert_ne!(out[40..42], [0, 0], "port {port}: zero means that there is none");
        found += usize::from(out[40..42] == [0xff, 0xff]);
    }
    assert_eq!(found, 1);
}

#[test]
fn an_sctp_fragment_with_another_port_is_refused_and_with_the_same_goes_on() {
    let recipe = Recipe {
        protocol: build::SCTP,
        tags: vec![],
        options: vec![],
        extensions: vec![],
        payload: vec![7; 16],
        no_checksum: false,
    };
    let address = |last| std::net::IpAddr::from([10, 0, 0, last]);
    let before = Flow { source: address(1), destination: address(2), source_port: 1000, destination_port: 53 };
    let mut first = frame(&recipe, before);
    first[20] = 0x20; // More fragments.
    let other = Flow { destination: address(9), destination_port: 54, ..before };
    assert_eq!(translated(&first, &other.rewrite()), Err(Refused));
    let same = Flow { destination: address(9), ..before };
    let out = translated(&first, &same.rewrite()).unwrap();
    assert_eq!(out[34..], first[34..], "nothing of the transport changes");
}

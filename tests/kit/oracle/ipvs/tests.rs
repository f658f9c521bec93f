//! Services and real servers, as IPVS is told of them.

use lb_common::address::Protocol;
use lb_common::scheduler::Scheduler;
use netlink_packet_core::Nla;

use super::*;

fn service(key: VirtualKey) -> VirtualService {
    VirtualService {
        key,
        scheduler: Scheduler::SourceHash,
        hash_port: true,
        hash_fallback: true,
        persistence: 360,
        netmask: 24,
        one_packet: false,
    }
}

/// The attributes in one that holds others.
fn inside(attribute: &Attribute) -> Attributes {
    let mut bytes = vec![0; attribute.value_len()];
    attribute.emit_value(&mut bytes);
    Attributes::parse(&bytes).unwrap()
}

#[test]
fn a_service_has_its_ports_and_ipv4_netmask_in_network_order() {
    let key = VirtualKey::Address { protocol: Protocol::Sctp, address: "10.96.0.1".parse().unwrap(), port: 80 };
    let told = inside(&whole_service(&service(key)));
    assert_eq!(told.half(service::FAMILY).unwrap(), V4);
    assert_eq!(told.half(service::PROTOCOL).unwrap(), 132);
    assert_eq!(told.array(service::ADDRESS).unwrap(), [10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(told.array(service::PORT).unwrap(), [0, 80]);
    assert_eq!(told.value(service::SCHEDULER).unwrap(), b"sh\0");
    // Persistent, fallback, port.
    assert_eq!(told.array(service::FLAGS).unwrap(), (0xffff_ffff_0000_0019_u64).to_le_bytes());
    assert_eq!(told.word(service::TIMEOUT).unwrap(), 360);
    assert_eq!(told.array(service::NETMASK).unwrap(), [255, 255, 255, 0]);
    assert!(told.value(service::MARK).is_err());
}

#[test]
fn a_service_by_mark_has_no_address_and_ipv6_a_length_as_netmask() {
    let told = inside(&whole_service(&service(VirtualKey::Mark { mark: 7, v6: true })));
    assert_eq!(told.half(service::FAMILY).unwrap(), V6);
    assert_eq!(told.word(service::MARK).unwrap(), 7);
    assert_eq!(told.word(service::NETMASK).unwrap(), 24);
    assert!(told.value(service::ADDRESS).is_err() && told.value(service::PROTOCOL).is_err());
}

#[test]
fn a_real_server_is_read_back_as_it_was_told() {
    let address = "fd00::7".parse().unwrap();
    let told = whole_server(&RealServer { address, port: 8080, weight: -1, upper: 9, lower: 4 });
    let fields = inside(&told);
    assert_eq!((fields.word(server::METHOD).unwrap(), fields.word(server::UPPER).unwrap()), (0, 9));
    assert_eq!(fields.word(server::LOWER).unwrap(), 4);
    let mut bytes = vec![0; told.value_len()];
    told.emit_value(&mut bytes);
    let counts = [(server::ACTIVE, 1), (server::INACTIVE, 2), (server::PERSISTENT, 3)];
    for (kind, count) in counts {
        bytes.extend([8_u16.to_ne_bytes(), kind.to_ne_bytes()].concat());
        bytes.extend(u32::to_ne_bytes(count));
    }
    let length = u16::try_from(bytes.len() + 4).unwrap();
    let answer = [&length.to_ne_bytes()[..], &command::SERVER.to_ne_bytes(), &bytes].concat();
    let state = server_state(&Attributes::parse(&answer).unwrap(), V4).unwrap();
    assert_eq!(state, RealServerState { address, port: 8080, weight: -1, active: 1, inactive: 2, persistent: 3 });
}

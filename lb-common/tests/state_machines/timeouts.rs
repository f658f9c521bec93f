//! The defaults that `ipvsadm -L --timeout` prints, and which timeout belongs to which protocol's state.

use lb_common::{address::Protocol, sctp, tcp, timeouts::Timeouts};

#[test]
fn defaults_print_900_120_300() {
    let of = |protocol, state| Timeouts::default().of(protocol, state) / 1000;
    assert_eq!(of(Protocol::Tcp, tcp::State::Established as u8), 900);
    assert_eq!(of(Protocol::Tcp, tcp::State::FinWait as u8), 120);
    assert_eq!(of(Protocol::Udp, 0), 300);
    assert_eq!(of(Protocol::Sctp, sctp::State::Established as u8), 900);
}

#[test]
fn any_state_number_has_a_timeout() {
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        for state in 0..=255 {
            assert!(Timeouts::IPVS.of(protocol, state) >= 2_000, "{protocol:?} {state}");
        }
    }
}

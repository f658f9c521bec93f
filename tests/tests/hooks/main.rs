//! Equal on every hook: one table of cases, each through tc, XDP native, XDP generic and the socket.
//!
//! | file | idea |
//! |---|---|
//! | `hook` | a world whose packets go by one hook, and the proof that they did |
//! | `schedulers` | each of the fourteen, decision by decision |
//! | `strained` | what is dropped where something is short, and who is none of a hook's, on an agent of its own |
//! | `rules` | what a Service says: who is served, from which address, who is refused, who is not answered |

mod hook;
mod rules;
mod schedulers;
mod strained;

use bpvs_tests::world::World;
use hook::{Hook, On};

/// A case. Its number is its place in the table, and the number of its virtual addresses.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// The Service, as YAML.
    service: fn(&World, u16) -> String,
    /// What every hook must do with it.
    check: fn(&On<'_>, u16),
}

/// Every case, on one hook.
fn every_case(hook: Hook) {
    let world = hook.world();
    let cases: Vec<Case> = rules::CASES.iter().chain(schedulers::CASES).copied().collect();
    hook.publish(&world, &cases);
    let on = On::start(hook, &world);
    let mut failed = Vec::new();
    for (number, case) in (1..).zip(&cases) {
        eprintln!("{hook:?}: {}", case.name);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (case.check)(&on, number)));
        if outcome.is_err() {
            failed.push(case.name);
        }
    }
    on.went_by_the_hook();
    assert!(failed.is_empty(), "{hook:?}: {failed:?} (each is told above)");
}

#[test]
fn tc() {
    every_case(Hook::Tc);
}

#[test]
fn tc_direct() {
    every_case(Hook::TcDirect);
}

#[test]
fn xdp_native() {
    every_case(Hook::XdpNative);
}

#[test]
fn xdp_generic() {
    every_case(Hook::XdpGeneric);
}

#[test]
fn socket() {
    every_case(Hook::Socket);
}

//! Which destination a new connection goes to: the loops around `lb_common::scheduler`.

use core::{
    arch::asm,
    ffi::{c_long, c_void},
};

use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_loop, generated::bpf_probe_read_kernel};
use lb_common::{
    address::Address,
    layout::{DestinationLoad, DestinationSlot, SERVICE_THRESHOLDS, Service},
    scheduler::{
        Scheduler,
        cursor::{RoundRobinWalk, WeightSteps, WeightedStep, WeightedWalk},
        scan::{Candidate, Flow},
        twos::{self, Total, TwoChoices},
        word::SchedulerWord,
    },
};

use crate::{
    atomic::Word,
    hashing::{destination_hash, maglev, source_hash},
    locality,
    maps::{DESTINATION_LOAD, DESTINATION_SLOTS, SCHEDULER_STATE},
    scan::{ExpectedDelay, Failover, Least, NeverQueue, Overflow, STRIDE, WeightedLeast, scan},
};

/// What a scheduler may look at in a packet or a connect call.
#[derive(Clone, Copy)]
pub struct Request {
    /// Client address.
    pub client: Address,
    /// The address that the client asked for.
    pub destination: Address,
    /// Monotonic clock, nanoseconds.
    pub now: u64,
    /// Client port, host order.
    pub client_port: u32,
    /// Not 0 if the packet ends a connection.
    pub ends: u32,
    /// Answer of [`persistence`](crate::persistence): control word of the connection.
    pub control: u32,
    /// Destination id of the server that the packet was sent to inside of another one: nobody is asked. 0 for none.
    pub server: u32,
}

/// Picks a destination; 0 for none. Part of its caller: on Linux 6.1 a frame counts 32 bytes at least, and lblcr's chain
/// of calls has none to spare.
#[inline(always)]
pub fn schedule(service: &Service, request: &Request) -> u32 {
    let Some(scheduler) = Scheduler::from_number(service.scheduler) else { return 0 };
    match scheduler {
        Scheduler::RoundRobin => round_robin(service),
        Scheduler::WeightedRoundRobin => weighted_round_robin(service),
        Scheduler::DestinationHash => destination_hash(service, request),
        Scheduler::SourceHash => source_hash(service, request),
        Scheduler::LocalityLeastConnection => locality::single(service, request),
        Scheduler::LocalityReplicated => locality::replicated(service, request),
        Scheduler::LeastConnection => scan::<Least>(service),
        Scheduler::WeightedLeastConnection => scan::<WeightedLeast>(service),
        Scheduler::ShortestExpectedDelay => scan::<ExpectedDelay>(service),
        Scheduler::NeverQueue => scan::<NeverQueue>(service),
        Scheduler::Failover => scan::<Failover>(service),
        Scheduler::Overflow => scan::<Overflow>(service),
        Scheduler::Maglev => maglev(service, request),
        Scheduler::TwoChoices => two_choices(service),
    }
}

/// A slot of the arena; an empty one where there is none.
#[inline(always)]
pub fn slot(index: u32) -> DestinationSlot {
    match DESTINATION_SLOTS.get(index) {
        Some(slot) => *slot,
        None => DestinationSlot { destination: 0, weight: 0 },
    }
}

/// [`DestinationLoad::usable`] without a branch: the verifier would follow both ways for every destination of a scan.
#[inline(always)]
pub fn usable(load: &DestinationLoad, weight: i32) -> i32 {
    let mut overloaded = load.connections;
    // SAFETY: shifts one register; a compiler that knew what for would make a branch of it.
    unsafe { asm!("{word} s>>= 63", word = inout(reg) overloaded, options(pure, nomem, nostack)) };
    weight & !(overloaded as i32)
}

/// A destination with its load, as schedulers compare them.
#[inline(always)]
pub fn candidate(destination: u32, weight: i32) -> Candidate {
    match DESTINATION_LOAD.get(destination) {
        Some(load) => Candidate::with(destination, weight, usable(load, weight), load),
        None => Candidate::new(0, 0, &DestinationLoad { connections: 0, remote_active: 0, changes: 0 }),
    }
}

/// [`slot`], with weight 0 if the destination is over its upper threshold. `thresholds` is [`has_thresholds`], asked once.
#[inline(always)]
pub fn usable_slot(index: u32, thresholds: u32) -> DestinationSlot {
    let mut slot = slot(index);
    if thresholds != 0
        && let Some(load) = DESTINATION_LOAD.get(slot.destination)
    {
        slot.weight = usable(load, slot.weight);
    }
    slot
}

/// Not 0 if some destination of the service has an upper threshold.
#[inline(always)]
pub fn has_thresholds(service: &Service) -> u32 {
    u32::from(service.flags & SERVICE_THRESHOLDS)
}

/// Makes the verifier forget what it knows of a callback's state, which holds numbers only, no pointers; to be called
/// right before the helper that calls the callback.
///
/// The verifier of Linux 6.1 follows a callback once, with the state as it begins: what it then takes for constant is not
/// so at the second call, and branches on it would be gone. A state that a helper wrote holds nothing that it knows.
#[inline(always)]
pub fn forget<T>(state: &mut T) {
    let memory: *mut c_void = core::ptr::from_mut(state).cast();
    // SAFETY: copies the state to itself, word by word; it is on this program's stack, which can always be read.
    unsafe { bpf_probe_read_kernel(memory, size_of::<T>() as u32, memory) };
}

/// Calls `step` for 0, 1, ... below `limit` until it returns 1. The state is one that can be [forgotten](forget).
#[inline(always)]
pub fn repeat<T>(limit: u32, step: unsafe extern "C" fn(u32, *mut T) -> c_long, state: &mut T) {
    forget(state);
    // SAFETY: `step` has the type of a bpf_loop callback and gets the pointer it expects, valid during the call.
    unsafe {
        bpf_loop(limit, step as *mut c_void, core::ptr::from_mut(state).cast(), 0);
    }
}

/// The word of a cursor scheduler.
#[inline(always)]
fn word_cell(service: u32) -> Option<Word<u64>> {
    // SAFETY: 8-aligned, valid as long as the map, changed atomically by everyone, user space included.
    SCHEDULER_STATE.get_ptr_mut(service).map(|word| unsafe { Word::new(word) })
}

/// Publishes a cursor scheduler's step; false if another CPU was faster and the pick must be made again.
#[inline(always)]
fn publish(cell: Word<u64>, old: u64, new: SchedulerWord, service: &Service) -> bool {
    // A word of a newer version belongs to a set that was published after this packet read its service.
    if SchedulerWord::unpack(old).version.wrapping_sub(service.version) as i16 > 0 {
        return true;
    }
    cell.replace(old, new.pack()).is_ok()
}

/// Tries of a pick against other CPUs before the last one stands.
const TRIES: u32 = 4;

struct RoundRobin {
    walk: RoundRobinWalk,
    set_base: u32,
    destination: u32,
    position: u32,
    thresholds: u32,
}

unsafe extern "C" fn round_robin_step(attempt: u32, state: *mut RoundRobin) -> c_long {
    // SAFETY: bpf_loop passes the pointer that `repeat` gave it.
    let state = unsafe { &mut *state };
    let position = state.walk.position(attempt);
    let slot = usable_slot(state.set_base.wrapping_add(position), state.thresholds);
    if slot.weight <= 0 {
        return 0;
    }
    state.destination = slot.destination;
    state.position = position;
    1
}

#[inline(never)]
fn round_robin(service: &Service) -> u32 {
    let Some(cell) = word_cell(service.id) else { return 0 };
    let mut chosen = 0;
    for _ in 0..TRIES {
        let old = cell.load();
        let mut state = RoundRobin {
            walk: RoundRobinWalk::new(SchedulerWord::unpack(old), service.set_length),
            set_base: service.set_base,
            destination: 0,
            position: 0,
            thresholds: has_thresholds(service),
        };
        repeat(service.set_length, round_robin_step, &mut state);
        chosen = state.destination;
        if chosen == 0 {
            return 0;
        }
        let new = SchedulerWord {
            version: service.version,
            cursor: state.position.wrapping_add(1) as u16,
            // wrr's, if the service was or becomes one: the writer prepares it before it publishes the switch.
            current_weight: SchedulerWord::unpack(old).current_weight,
        };
        if publish(cell, old, new, service) {
            break;
        }
    }
    chosen
}

struct WeightedRoundRobin {
    walk: WeightedWalk,
    word: SchedulerWord,
    set_base: u32,
    destination: u32,
    thresholds: u32,
    version: u16,
}

unsafe extern "C" fn weighted_step(_: u32, state: *mut WeightedRoundRobin) -> c_long {
    // SAFETY: as in `round_robin_step`.
    let state = unsafe { &mut *state };
    match state.walk.step(state.version) {
        WeightedStep::Nothing(word) => {
            state.word = word;
            1
        }
        WeightedStep::Look(position) => {
            let slot = usable_slot(state.set_base.wrapping_add(position), state.thresholds);
            match state.walk.offer(slot.weight, false, state.version) {
                None => 0,
                Some((word, picked)) => {
                    state.word = word;
                    if picked {
                        state.destination = slot.destination;
                    }
                    1
                }
            }
        }
    }
}

/// Steps of one wrr pick at most: what `bpf_loop` allows (8 Mi, `BPF_MAX_LOOPS`).
const MAX_WEIGHTED_STEPS: u32 = 8 * 1024 * 1024;

#[inline(never)]
fn weighted_round_robin(service: &Service) -> u32 {
    let Some(cell) = word_cell(service.id) else { return 0 };
    let steps = WeightSteps { max_weight: service.max_weight, step: service.weight_step };
    let mut chosen = 0;
    for _ in 0..TRIES {
        let old = cell.load();
        let word = SchedulerWord::unpack(old);
        let mut state = WeightedRoundRobin {
            walk: WeightedWalk::new(word, steps, service.set_length),
            word,
            set_base: service.set_base,
            destination: 0,
            thresholds: has_thresholds(service),
            version: service.version,
        };
        repeat(MAX_WEIGHTED_STEPS, weighted_step, &mut state);
        chosen = state.destination;
        if publish(cell, old, SchedulerWord { version: service.version, ..state.word }, service) {
            break;
        }
    }
    chosen
}

/// A walk of twos over the set.
struct Walk<T> {
    state: T,
    set_base: u32,
    length: u32,
    thresholds: u32,
}

unsafe extern "C" fn total_step(chunk: u32, walk: *mut Walk<Total>) -> c_long {
    // SAFETY: as in `round_robin_step`.
    let walk = unsafe { &mut *walk };
    for place in 0..STRIDE {
        let index = chunk.wrapping_mul(STRIDE).wrapping_add(place);
        if index >= walk.length {
            return 1;
        }
        let slot = usable_slot(walk.set_base.wrapping_add(index), walk.thresholds);
        walk.state.step(slot, false);
    }
    0
}

unsafe extern "C" fn choices_step(index: u32, walk: *mut Walk<TwoChoices>) -> c_long {
    // SAFETY: as in `round_robin_step`.
    let walk = unsafe { &mut *walk };
    let slot = usable_slot(walk.set_base.wrapping_add(index), walk.thresholds);
    matches!(walk.state.step(slot, false), Flow::Stop).into()
}

/// 64 random bits.
#[inline(always)]
fn random() -> u64 {
    // SAFETY: no argument, no effect but on the generator's own state.
    let word = || u64::from(unsafe { bpf_get_prandom_u32() });
    word() << 32 | word()
}

#[inline(never)]
fn two_choices(service: &Service) -> u32 {
    let (set_base, length) = (service.set_base, service.set_length);
    let thresholds = has_thresholds(service);
    let mut total = Walk { state: Total::new(random()), set_base, length, thresholds };
    repeat(length.div_ceil(STRIDE), total_step, &mut total);
    let total = total.state.get();
    if total == 0 {
        return 0;
    }
    let mut walk = Walk { state: TwoChoices::new(total, [random(), random()]), set_base, length, thresholds };
    repeat(length, choices_step, &mut walk);
    let [first, second] = walk.state.chosen().map(|slot| candidate(slot.destination, slot.weight));
    twos::better(&first, &second)
}

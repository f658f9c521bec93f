//! The same on maps in the kernel.

use std::{
    collections::HashMap,
    os::fd::{FromRawFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crate::kernel::{namespace::monotonic_now, raw::Raw};
use aya::maps::{MapData, lpm_trie};
use lb_common::{
    address::Protocol,
    layout::{
        AffinityTimeout, Connection, ConnectionKey, Destination, DestinationLoad, DestinationSlot, KEY_TEMPLATE,
        NetworkKey, Service, ServiceKey, ServicePrefix, Traffic,
    },
    scheduler::{Scheduler, cursor::RoundRobinWalk, word::SchedulerWord},
};
use nix::libc;

use super::{
    super::{
        Capacity, Frontend, MapStore, Persistence, Plan, PrefixKey, Scope, StoreError, Thresholds,
        dump::{dump, outline},
        store::kernel::{KernelMaps, KernelStore},
    },
    CAPACITY, key, memory, one, plan, service, writer,
};

/// `BPF_F_NO_PREALLOC`, which tries must have.
const NO_PREALLOC: u32 = 1;
/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;

/// The kernel's number of a map type.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Kind {
    Hash = 1,
    Array = 2,
    PerCpuArray = 6,
    LpmTrie = 11,
}

/// Creates a map for values of `V`. aya creates maps too, but hands out no descriptor of them.
fn create<K, V>(kind: Kind, entries: u32, flags: u32) -> MapData {
    const BPF_MAP_CREATE: libc::c_long = 0;
    // The first five fields of `union bpf_attr` for BPF_MAP_CREATE.
    let attributes: [u32; 5] = [kind as u32, size_of::<K>() as u32, size_of::<V>() as u32, entries, flags];
    // SAFETY: the kernel reads as many bytes as the size says, all of `attributes`, and takes the rest as 0.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, attributes.as_ptr(), size_of_val(&attributes)) };
    assert!(fd >= 0, "creating BPF maps needs root (CAP_BPF) and kernel 5.5: {}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just given this descriptor to us; nobody else owns it.
    MapData::from_fd(unsafe { OwnedFd::from_raw_fd(fd as i32) }).unwrap()
}

/// As large as `ServicePrefix`.
type ServicePrefixBytes = [u8; size_of::<ServicePrefix>()];

/// As large as `NetworkKey`.
type NetworkKeyBytes = [u8; size_of::<NetworkKey>()];

fn maps(capacity: Capacity, flags: u32) -> KernelMaps {
    KernelMaps {
        services: create::<ServiceKey, Service>(Kind::Hash, capacity.services, 0),
        prefixes: create::<lpm_trie::Key<ServicePrefixBytes>, Service>(Kind::LpmTrie, capacity.prefixes, NO_PREALLOC),
        networks: create::<lpm_trie::Key<NetworkKeyBytes>, u32>(Kind::LpmTrie, capacity.networks, NO_PREALLOC),
        lookups: create::<u32, u32>(Kind::Array, 1, flags),
        connections: create::<ConnectionKey, Connection>(Kind::Hash, 64, 0),
        slots: create::<u32, DestinationSlot>(Kind::Array, capacity.slots, flags),
        destinations: create::<u32, Destination>(Kind::Array, capacity.destinations, flags),
        load: create::<u32, DestinationLoad>(Kind::Array, capacity.destinations, flags),
        traffic: create::<u32, Traffic>(Kind::PerCpuArray, capacity.destinations, 0),
        retired: create::<u32, Traffic>(Kind::Array, capacity.service_ids, flags),
        affinity: create::<u32, AffinityTimeout>(Kind::Array, capacity.service_ids, flags),
        words: create::<u32, u64>(Kind::Array, capacity.service_ids, flags),
    }
}

/// Second handles to the same maps.
fn twin(maps: &KernelMaps) -> KernelMaps {
    KernelMaps::find(|name| {
        let data = match name {
            "services" => &maps.services,
            "service_prefixes" => &maps.prefixes,
            "networks" => &maps.networks,
            "lookups" => &maps.lookups,
            "connections" => &maps.connections,
            "destination_slots" => &maps.slots,
            "destinations" => &maps.destinations,
            "destination_load" => &maps.load,
            "destination_traffic" => &maps.traffic,
            "service_retired" => &maps.retired,
            "affinity_timeouts" => &maps.affinity,
            _ => &maps.words,
        };
        MapData::from_id(data.info().unwrap().id())
    })
    .unwrap()
}

fn kernel(capacity: Capacity) -> KernelStore {
    KernelStore::new(maps(capacity, MMAPABLE)).unwrap()
}

#[test]
fn maps_in_the_kernel_hold_what_maps_in_memory_hold() {
    let plans = [
        plan([(1, service(Scheduler::SourceHash, &[(1, 1), (2, 5)])), (2, service(Scheduler::RoundRobin, &[(1, 1)]))]),
        plan([
            (1, service(Scheduler::WeightedRoundRobin, &[(2, 4), (3, 2)])),
            (3, service(Scheduler::NeverQueue, &[])),
        ]),
        Plan::default(),
        one(Scheduler::DestinationHash, &[(2, 1), (4, 1)]),
    ];
    let (mut real, mut model) = (writer(kernel(CAPACITY)), writer(memory()));
    let now = Instant::now();
    // What the two have of everything else.
    let scopes = [Scope::Mark(9), Scope::Prefix(0), Scope::Address];
    let mut odd = Plan::default();
    for scope in scopes {
        let mut wish = service(Scheduler::WeightedRoundRobin, &[(1, 1), (2, 1)]);
        wish.persistence = Some(Persistence { timeout: 7, netmask: 24 });
        wish.destinations[0].thresholds = Thresholds { upper: 4, lower: 1 };
        odd.services.insert(Frontend { scope, ..Frontend::new([0; 4].into(), 0, Protocol::Tcp) }, wish);
    }
    for plan in plans.iter().chain([&odd, &plans[0], &odd]) {
        assert_eq!(real.apply(plan, now).unwrap(), model.apply(plan, now).unwrap());
        assert_eq!(dump(real.store()).unwrap(), dump(model.store()).unwrap());
        assert_eq!(real.collect(now).unwrap(), model.collect(now).unwrap());
    }
    let restarted = writer(real.store);
    assert_eq!(restarted.findings(), []);
    assert_eq!(dump(restarted.store()).unwrap(), dump(model.store()).unwrap());
}

#[test]
fn a_second_store_over_the_same_maps_adopts_them() {
    let maps = maps(CAPACITY, MMAPABLE);
    let twin = twin(&maps);
    let plan = one(Scheduler::RoundRobin, &[(1, 1), (2, 1)]);
    let mut first = writer(KernelStore::new(maps).unwrap());
    first.apply(&plan, Instant::now()).unwrap();
    let mut second = writer(KernelStore::new(twin).unwrap());
    assert_eq!(second.findings(), []);
    assert_eq!(second.apply(&plan, Instant::now()).unwrap().writes, 0);
    assert_eq!(outline(second.store()).unwrap(), "TCP 10.96.0.1:80 rr: 10.1.0.2:8080 w1, 10.1.0.1:8080 w1\n");
}

#[test]
fn a_word_is_exchanged_only_if_it_is_what_was_read() {
    let mut store = kernel(CAPACITY);
    assert_eq!(store.exchange_word(32, 0, 7).unwrap(), Ok(()));
    assert_eq!(store.exchange_word(32, 0, 8).unwrap(), Err(7));
    assert_eq!(store.word(32).unwrap(), 7);
    assert!(matches!(store.word(33), Err(StoreError::OutOfRange { index: 33, capacity: 33, .. })));
}

#[test]
fn connections_are_exchanged_only_if_they_are_what_was_read() {
    let mut store = kernel(CAPACITY);
    let over = DestinationLoad::OVERLOADED | 7;
    assert_eq!(store.exchange_connections(256, 0, over).unwrap(), Ok(()));
    assert_eq!(store.exchange_connections(256, 0, 8).unwrap(), Err(over));
    assert_eq!((store.load(256).unwrap().inactive(), store.load(256).unwrap().overloaded()), (7, true));
    assert!(store.exchange_connections(257, 0, 0).is_err());
    store.reset_load(256).unwrap();
    assert_eq!(store.load(256).unwrap().connections, 0);
}

#[test]
fn a_full_trie_says_so_and_a_network_is_not_the_wider_one() {
    let mut store = kernel(Capacity { prefixes: 2, ..CAPACITY });
    let network = |length| PrefixKey { length, prefix: ServicePrefix { protocol: 6, ..ServicePrefix::default() } };
    let value = |id| Service { id, ..Service::default() };
    store.set_prefix(&network(128), &value(1)).unwrap();
    store.set_prefix(&network(136), &value(2)).unwrap();
    assert!(matches!(store.set_prefix(&network(144), &value(3)), Err(StoreError::Full { capacity: 2, .. })));
    let mut all = store.prefixes().unwrap();
    all.sort_by_key(|(key, _)| key.length);
    assert_eq!(all, [(network(128), value(1)), (network(136), value(2))]);
    store.delete_prefix(&network(136)).unwrap();
    store.delete_prefix(&network(136)).unwrap();
    assert_eq!(store.prefixes().unwrap(), [(network(128), value(1))]);
}

#[test]
fn templates_are_told_from_connections_and_the_last_one_counts() {
    let maps = maps(CAPACITY, MMAPABLE);
    let handle =
        aya::maps::Map::from_map_data(MapData::from_id(maps.connections.info().unwrap().id()).unwrap()).unwrap();
    let mut connections = aya::maps::HashMap::<_, Raw<ConnectionKey>, Raw<Connection>>::try_from(handle).unwrap();
    let store = KernelStore::new(maps).unwrap();
    assert_eq!(store.templates().unwrap(), HashMap::new());
    let now = monotonic_now();
    // (kind, server, seconds that it lives from now on)
    for (number, (kind, server, timeout)) in
        [(0, 1, 1000), (KEY_TEMPLATE, 2, 1000), (KEY_TEMPLATE, 2, 5000), (KEY_TEMPLATE, 3, 0)].into_iter().enumerate()
    {
        let key =
            ConnectionKey { kind, source_port: lb_common::address::Port(number as u16), ..ConnectionKey::default() };
        let last_seen = now.as_nanos() as u64;
        let value = Connection { server, last_seen, timeout: timeout * 1000, ..Connection::default() };
        connections.insert(Raw(key), Raw(value), 0).unwrap();
    }
    let named = store.templates().unwrap();
    assert_eq!((named.len(), named[&3]), (2, Duration::ZERO));
    // From the later one, less what has gone by.
    assert!(named[&2] > Duration::from_secs(1000) && named[&2] <= Duration::from_secs(5000), "{named:?}");
}

#[test]
fn the_last_entry_of_every_map_can_be_reached_and_none_beyond() {
    let mut store = kernel(CAPACITY);
    let slot = DestinationSlot { destination: 9, weight: i32::MAX };
    store.set_slots(8190, &[slot, slot]).unwrap();
    assert_eq!(store.slots(8191, 1).unwrap(), [slot]);
    assert!(store.set_slots(8191, &[slot, slot]).is_err());
    assert!(store.slots(u32::MAX, 2).is_err());
    let record = Destination { service: 3, epoch: 4, weight: -1, upper: 5, lower: u32::MAX, ..Destination::default() };
    store.set_destination(256, &record).unwrap();
    assert_eq!(store.destination(256).unwrap(), record);
    assert_eq!(store.destination(255).unwrap(), Destination::default());
    assert!(store.set_destination(257, &record).is_err());
    store.reset_load(256).unwrap();
    assert_eq!(store.load(256).unwrap(), DestinationLoad { changes: 1, ..DestinationLoad::default() });
    store.reset_traffic(256).unwrap();
    assert!(store.reset_traffic(257).is_err());
    assert_eq!(store.traffic(256).unwrap(), Traffic::default());
    assert!(store.traffic(257).is_err());
    let traffic = Traffic { connections: 1, in_packets: 2, out_packets: 3, in_bytes: 4, out_bytes: u64::MAX };
    store.set_retired(32, &traffic).unwrap();
    assert_eq!(store.retired(32).unwrap(), traffic);
    assert!(store.set_retired(33, &traffic).is_err() && store.retired(33).is_err());
}

#[test]
fn a_full_services_map_says_so_and_deleting_twice_is_no_error() {
    let mut store = kernel(Capacity { services: 2, ..CAPACITY });
    let value = Service { id: 1, ..Service::default() };
    store.set_service(&key(1), &value).unwrap();
    store.set_service(&key(2), &value).unwrap();
    assert!(matches!(store.set_service(&key(3), &value), Err(StoreError::Full { capacity: 2, .. })));
    store.delete_service(&key(1)).unwrap();
    store.delete_service(&key(1)).unwrap();
    assert_eq!(store.services().unwrap(), [(key(2), value)]);
}

#[test]
fn maps_that_cannot_be_used_are_named() {
    let error = KernelStore::new(maps(CAPACITY, 0)).unwrap_err().to_string();
    assert!(error.contains("map `destination_slots` cannot be used") && error.contains("BPF_F_MMAPABLE"), "{error}");
    let mut wrong = maps(CAPACITY, MMAPABLE);
    wrong.words = create::<u32, u32>(Kind::Array, 4, MMAPABLE);
    let error = KernelStore::new(wrong).unwrap_err().to_string();
    assert!(error.contains("`scheduler_state`") && error.contains("4 bytes, expected Array with 8"), "{error}");
}

/// One rr pick as BPF makes it, through its own view of the maps: the chosen destination and its service id.
fn pick(store: &mut KernelStore, key: &ServiceKey) -> Option<(u16, u32, Destination)> {
    let (_, entry) = store.services().unwrap().into_iter().find(|(found, _)| found == key)?;
    let packed = store.word(entry.id).unwrap();
    let word = SchedulerWord::unpack(packed);
    let position = RoundRobinWalk::new(word, entry.set_length).position(0);
    let slot = store.slots(entry.set_base + position, 1).unwrap()[0];
    if word.version.wrapping_sub(entry.version) as i16 <= 0 {
        let next = SchedulerWord { version: entry.version, cursor: position as u16 + 1, ..word };
        let _ = store.exchange_word(entry.id, packed, next.pack()).unwrap();
    }
    Some((entry.version, entry.id, store.destination(slot.destination).unwrap()))
}

#[test]
fn picks_during_changes_find_destinations_of_their_service_and_versions_only_grow() {
    let maps = maps(CAPACITY, MMAPABLE);
    let twin = twin(&maps);
    let mut writer = writer(KernelStore::new(maps).unwrap());
    let plans = [[(1, 1), (2, 1), (3, 1)].as_slice(), &[(2, 1), (4, 1)], &[(1, 5), (2, 1), (3, 1), (5, 1)]];
    let plans = plans.map(|set| one(Scheduler::RoundRobin, set));
    let mut now = Instant::now();
    writer.apply(&plans[0], now).unwrap();
    let done = AtomicBool::new(false);
    let picked = std::thread::scope(|scope| {
        let picker = scope.spawn(|| {
            let mut store = KernelStore::new(twin).unwrap();
            let key = key(1);
            let (mut picks, mut newest) = (0u32, 1u16);
            while !done.load(Ordering::Relaxed) {
                let (version, id, record) = pick(&mut store, &key).unwrap();
                assert_eq!(record.service, id, "{record:?}");
                assert!(version >= newest, "version {version} after {newest}");
                (picks, newest) = (picks + 1, version);
            }
            picks
        });
        for round in 1..3000usize {
            // Slots are written again after 200 rounds, much less than a second: a picker that slow finds another
            // version's slots, of the same service.
            now += Duration::from_millis(5);
            writer.apply(&plans[round % 3], now).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        picker.join().unwrap()
    });
    assert!(picked > 0);
    let word = SchedulerWord::unpack(writer.store().word(1).unwrap());
    let (_, entry) = writer.store().services().unwrap()[0];
    assert_eq!((word.version, entry.version), (3000, 3000));
}

#[test]
fn no_connection_is_lost_while_thresholds_change() {
    let maps = maps(CAPACITY, MMAPABLE);
    let twin = twin(&maps);
    let mut writer = writer(KernelStore::new(maps).unwrap());
    let plans = [0, 1, 40, 3].map(|upper| {
        let mut plan = one(Scheduler::LeastConnection, &[(1, 1)]);
        let server = plan.services.values_mut().flat_map(|service| &mut service.destinations).next().unwrap();
        server.thresholds = Thresholds { upper, lower: 0 };
        plan
    });
    let now = Instant::now();
    writer.apply(&plans[0], now).unwrap();
    let done = AtomicBool::new(false);
    let counted = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut store = KernelStore::new(twin).unwrap();
            let mut counted = 0u64;
            while !done.load(Ordering::Relaxed) {
                // One more, or one less: the programs add, which is the same in one step.
                let step = if counted > 20 { u64::MAX } else { DestinationLoad::ONE_INACTIVE };
                let mut current = store.load(1).unwrap().connections;
                while let Err(found) = store.exchange_connections(1, current, current.wrapping_add(step)).unwrap() {
                    current = found;
                }
                counted = counted.wrapping_add(step);
            }
            counted
        });
        for round in 1..3000usize {
            writer.apply(&plans[round % 4], now).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        traffic.join().unwrap()
    });
    let load = writer.store().load(1).unwrap();
    assert_eq!((u64::from(load.inactive()), load.active()), (counted, 0));
    // Back to no threshold: the flag goes, the count stays.
    writer.apply(&plans[0], now).unwrap();
    assert_eq!(writer.store().load(1).unwrap().connections, counted);
}

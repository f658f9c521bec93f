//! Candidates for the connection table, one program for each and operation.
//!
//! The numbers of flows come from the driver's control entry, so that user space chooses the order of access.

use aya_ebpf::{
    bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST},
    btf_maps::{HashMap, LruHashMap},
    macros::{btf_map, classifier},
    programs::TcContext,
};

use crate::driver::{control, flow};

/// As shipped; user space makes the map under test this large and the others small.
const ENTRIES: usize = 1_024;
const PREALLOC: usize = 0;
const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;

/// What a measured program returns.
const DONE: i32 = 0;
/// What it returns when the operation failed.
const FAILED: i32 = 1;

/// A key of `WORDS` words.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Key<const WORDS: usize> {
    words: [u32; WORDS],
}

/// A value of `WORDS` eight-byte words.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Value<const WORDS: usize> {
    words: [u64; WORDS],
}

/// A flow's key: what changes stands at both ends, as an address and ports do.
#[inline(always)]
fn key<const WORDS: usize>(flow: u32, reply: u32) -> Key<WORDS> {
    let mut words = [0x0a80_0000; WORDS];
    words[0] = flow & 0xffff;
    words[WORDS - 1] = (flow >> 16) | reply << 16;
    Key { words }
}

/// The cost of the frame around every operation: the flow's number and its two keys.
#[classifier]
pub fn table_none(_ctx: TcContext) -> i32 {
    let Some(control) = control() else { return FAILED };
    let flow = flow(control);
    let mut keys = [key::<10>(flow, 0), key::<10>(flow, 1)];
    // SAFETY: a volatile read of own memory, so that the keys are really made.
    unsafe { (&raw mut keys[flow as usize & 1].words[9]).read_volatile() };
    0
}

macro_rules! candidate {
    ($map:ident: $kind:ident<$key:literal words, $value:literal double words, $flags:ident>, $name:literal,
     $one:ident, $two:ident, $lookup:ident, $delete:ident) => {
        #[btf_map(name = $name)]
        static $map: $kind<Key<$key>, Value<$value>, ENTRIES, $flags> = $kind::new();

        /// Inserts one entry.
        #[classifier]
        pub fn $one(_ctx: TcContext) -> i32 {
            let Some(control) = control() else { return FAILED };
            let flow = flow(control);
            let value = Value { words: [u64::from(flow); $value] };
            match $map.insert(key(flow, 0), value, u64::from(BPF_NOEXIST)) {
                Ok(()) => DONE,
                Err(_) => FAILED,
            }
        }

        /// Inserts both entries of a connection.
        #[classifier]
        pub fn $two(_ctx: TcContext) -> i32 {
            let Some(control) = control() else { return FAILED };
            let flow = flow(control);
            let value = Value { words: [u64::from(flow); $value] };
            if $map.insert(key(flow, 1), value, u64::from(BPF_NOEXIST)).is_err() {
                return FAILED;
            }
            match $map.insert(key(flow, 0), value, u64::from(BPF_NOEXIST)) {
                Ok(()) => DONE,
                Err(_) => FAILED,
            }
        }

        /// Looks one entry up.
        #[classifier]
        pub fn $lookup(_ctx: TcContext) -> i32 {
            let Some(control) = control() else { return FAILED };
            let flow = flow(control);
            // SAFETY: read at once, and nothing deletes while it is measured.
            match unsafe { $map.get(key(flow, 0)) } {
                Some(value) if value.words[0] == u64::from(flow) => DONE,
                _ => FAILED,
            }
        }

        /// Deletes one entry.
        #[classifier]
        pub fn $delete(_ctx: TcContext) -> i32 {
            let Some(control) = control() else { return FAILED };
            let flow = flow(control);
            match $map.remove(key(flow, 0)) {
                Ok(()) => DONE,
                Err(_) => FAILED,
            }
        }
    };
}

candidate!(FULL: HashMap<10 words, 8 double words, PREALLOC>, "full",
    full_one, full_two, full_lookup, full_delete);
candidate!(FULL_SMALL: HashMap<10 words, 4 double words, PREALLOC>, "full_small",
    full_small_one, full_small_two, full_small_lookup, full_small_delete);
candidate!(FULL_LRU: LruHashMap<10 words, 8 double words, PREALLOC>, "full_lru",
    full_lru_one, full_lru_two, full_lru_lookup, full_lru_delete);
candidate!(FULL_DYNAMIC: HashMap<10 words, 8 double words, NO_PREALLOC>, "full_dynamic",
    full_dynamic_one, full_dynamic_two, full_dynamic_lookup, full_dynamic_delete);
candidate!(CLIENT: HashMap<5 words, 8 double words, PREALLOC>, "client",
    client_one, client_two, client_lookup, client_delete);
candidate!(FAMILY: HashMap<4 words, 8 double words, PREALLOC>, "family",
    family_one, family_two, family_lookup, family_delete);

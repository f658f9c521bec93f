//! Machines as people have them, and the next thing to do on each.

use std::collections::BTreeMap;

use super::*;
use crate::toolchain::facts::{Linker, Llvm};

fn compiler(name: &str, version: Version, llvm: u32, has_source: bool) -> Compiler {
    Compiler { name: name.into(), rustc: "/c/rustc".into(), cargo: "/c/cargo".into(), version, llvm, has_source }
}

fn linker(path: &str, reads: &[&str]) -> Linker {
    Linker { path: path.into(), reads: reads.iter().map(|name| (*name).to_owned()).collect() }
}

fn llvm(major: u32) -> Llvm {
    Llvm { major, prefix: format!("/llvm/{major}").into() }
}

fn offered(packages: &[(&str, &str)], compiler_llvm: Option<u32>, refreshed: bool) -> Packages {
    let candidates: BTreeMap<_, _> =
        packages.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect();
    Packages::Offered { candidates, compiler_llvm, refreshed }
}

fn debian(refreshed: bool) -> Packages {
    let names = ["rustc-web", "cargo-web", "rust-web-src", "llvm-22-dev"];
    offered(&names.map(|name| (name, "1.96.0+dfsg1")), Some(22), refreshed)
}

/// A fresh machine: rustup's stable toolchain without the sources.
fn fresh() -> Facts {
    Facts {
        compilers: vec![compiler("stable", Version(1, 95, 0), 22, false)],
        linkers: vec![],
        llvms: vec![],
        missing_tools: vec![],
        packages: Packages::NotAsked,
    }
}

fn stuck(step: Step) -> String {
    match step {
        Step::Stuck(why) => why,
        other => panic!("not stuck: {other:?}"),
    }
}

fn installs(step: Step) -> Vec<String> {
    match step {
        Step::Install(packages) => packages,
        other => panic!("installs nothing: {other:?}"),
    }
}

#[test]
fn a_prepared_machine_is_ready_without_asking_apt() {
    let system = compiler("system", Version(1, 96, 0), 22, true);
    let facts = Facts { compilers: vec![system.clone()], linkers: vec![linker("/l", &["system"])], ..fresh() };
    assert_eq!(next_step(&facts), Step::Ready(Chain { compiler: system, linker: "/l".into() }));
}

#[test]
fn rustups_toolchain_with_sources_is_preferred_to_the_systems() {
    let nightly = compiler("nightly", Version(1, 97, 0), 22, true);
    let facts = Facts {
        compilers: vec![nightly.clone(), compiler("system", Version(1, 96, 0), 22, true)],
        linkers: vec![linker("/l", &["nightly", "system"])],
        ..fresh()
    };
    assert_eq!(next_step(&facts), Step::Ready(Chain { compiler: nightly, linker: "/l".into() }));
}

#[test]
fn a_compiler_whose_bitcode_no_linker_reads_gives_way_to_one_that_works() {
    let system = compiler("system", Version(1, 96, 0), 22, true);
    let facts = Facts {
        compilers: vec![compiler("nightly", Version(1, 99, 0), 24, true), system.clone()],
        linkers: vec![linker("/l", &["system"])],
        ..fresh()
    };
    assert_eq!(next_step(&facts), Step::Ready(Chain { compiler: system, linker: "/l".into() }));
}

#[test]
fn a_fresh_debian_gets_compiler_sources_llvm_and_tools_in_one_go_and_then_a_linker() {
    let mut facts = Facts { missing_tools: vec!["bpftool"], ..fresh() };
    assert_eq!(next_step(&facts), Step::AskPackages);
    facts.packages = debian(false);
    assert_eq!(installs(next_step(&facts)), ["rustc-web", "cargo-web", "rust-web-src", "llvm-22-dev", "bpftool"]);
    facts.compilers.push(compiler("system", Version(1, 96, 0), 22, true));
    facts.llvms.push(llvm(22));
    facts.missing_tools.clear();
    assert_eq!(next_step(&facts), Step::BuildLinker { llvm: 22, prefix: "/llvm/22".into() });
    facts.linkers.push(linker("/l", &["system"]));
    assert!(matches!(next_step(&facts), Step::Ready(_)));
}

#[test]
fn old_package_lists_are_fetched_once_and_then_it_is_said_what_helps() {
    let old = |refreshed| offered(&[("rustc-web", "1.85.0"), ("rustc", "1.63.0")], None, refreshed);
    let facts = Facts { packages: old(false), ..fresh() };
    assert_eq!(next_step(&facts), Step::RefreshLists);
    let why = stuck(next_step(&Facts { packages: old(true), ..fresh() }));
    assert!(why.contains("seen: rustc 1.95.0 (stable, LLVM 22): without the sources of `core`"), "{why}");
    assert!(why.contains("rustup component add rust-src"), "{why}");
}

#[test]
fn a_compiler_that_is_here_already_needs_only_its_llvm() {
    let facts =
        Facts { compilers: vec![compiler("stable", Version(1, 95, 0), 22, true)], packages: debian(false), ..fresh() };
    assert_eq!(installs(next_step(&facts)), ["llvm-22-dev"]);
}

#[test]
fn a_compiler_with_an_llvm_that_apt_lacks_falls_back_to_the_packaged_one() {
    let facts =
        Facts { compilers: vec![compiler("nightly", Version(1, 99, 0), 23, true)], packages: debian(false), ..fresh() };
    assert_eq!(installs(next_step(&facts))[0], "rustc-web");
}

#[test]
fn missing_programs_alone_are_installed_and_nothing_else() {
    let facts = Facts {
        compilers: vec![compiler("system", Version(1, 96, 0), 22, true)],
        linkers: vec![linker("/l", &["system"])],
        missing_tools: vec!["ethtool"],
        packages: debian(false),
        ..fresh()
    };
    assert_eq!(installs(next_step(&facts)), ["ethtool"]);
    let elsewhere = Facts { packages: Packages::Unknown, ..facts };
    assert!(stuck(next_step(&elsewhere)).ends_with("ethtool"));
}

#[test]
fn another_distribution_is_told_what_helps() {
    let why = stuck(next_step(&Facts { packages: Packages::Unknown, ..fresh() }));
    assert!(why.contains("rustup toolchain install nightly --component rust-src"), "{why}");
}

#[test]
fn a_compiler_older_than_the_workspace_asks_for_is_not_used() {
    let facts = Facts {
        compilers: vec![compiler("old", Version(1, 94, 9), 22, true)],
        linkers: vec![linker("/l", &["old"])],
        packages: Packages::Unknown,
        ..fresh()
    };
    assert!(stuck(next_step(&facts)).contains("(old, LLVM 22): too old"));
}

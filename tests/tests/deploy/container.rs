//! The image: its Containerfile, as far as it can be judged without building it.

use super::{container, kustomized, read, strings};

/// Instructions, with continued lines as one.
fn instructions(text: &str) -> Vec<(String, String)> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
            (name.to_owned(), rest.split_whitespace().collect::<Vec<_>>().join(" "))
        })
        .collect()
}

#[test]
fn the_image_holds_one_static_program_and_nothing_else() {
    let text = read("deploy/Containerfile");
    let instructions = instructions(&text);
    let last = instructions.iter().rposition(|(name, _)| name == "FROM").unwrap();
    let (build, image) = instructions.split_at(last);
    assert_eq!(image[0].1, "scratch");
    let copied: Vec<&str> = image.iter().filter(|(name, _)| name == "COPY").map(|(_, rest)| rest.as_str()).collect();
    assert_eq!(copied.len(), 1, "{copied:?}");
    let [from, source, place] = copied[0].split(' ').collect::<Vec<_>>()[..] else { panic!("{copied:?}") };
    assert_eq!(from, "--from=build");
    // What is copied is what was built, for the target whose libc is linked in.
    const TARGET: &str = "$(uname -m)-unknown-linux-musl";
    let built = format!("cargo build --locked --release --package lb-userspace --bin bpvs --target \"{TARGET}\"");
    let kept = format!("install -D --strip \"target/{TARGET}/release/bpvs\" {source}");
    assert!(
        build.iter().any(|(name, rest)| name == "RUN" && rest.starts_with(&format!("{built} && {kept} && ! readelf"))),
        "{text}"
    );
    // The DaemonSet's command is found by its name.
    let objects = kustomized();
    let (folder, name) = place.rsplit_once('/').unwrap();
    assert_eq!(strings(&container(&objects)["command"]), [name]);
    assert!(image.iter().any(|(name, rest)| name == "ENV" && rest == &format!("PATH={folder}")), "{text}");
    assert!(
        image.iter().all(|(name, _)| ["FROM", "COPY", "ENV", "ENTRYPOINT", "LABEL"].contains(&name.as_str())),
        "{text}"
    );
}

#[test]
fn the_compiler_is_new_enough() {
    let manifest = read("Cargo.toml");
    let wanted = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    let from = instructions(&read("deploy/Containerfile")).into_iter().next().unwrap();
    assert_eq!(from, ("FROM".into(), format!("docker.io/library/rust:{wanted}-bookworm AS build")));
}

#[test]
fn the_image_is_built_by_the_projects_own_tasks() {
    let text = read("deploy/Containerfile");
    let runs: Vec<String> =
        instructions(&text).into_iter().filter(|(name, _)| name == "RUN").map(|(_, rest)| rest).collect();
    let place =
        |task: &str| runs.iter().position(|run| run.starts_with(task)).unwrap_or_else(|| panic!("{task}: {runs:?}"));
    let places = ["cargo xtask setup", "cargo xtask build-ebpf", "cargo build --locked"].map(place);
    assert!(places.is_sorted(), "{runs:?}");
}

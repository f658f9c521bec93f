//! Wrong manifests.

use std::fs;
use std::os::unix::fs::symlink;

use bpvs_tests::agent::Agent;

use super::{DEADLINE, World, web};

#[track_caller]
fn told(agent: &Agent<'_>, mark: usize, text: &str) {
    agent.wait_for_log(mark, text, DEADLINE, |line| line.contains(text)).unwrap();
}

/// A Service, with these lines of `metadata` and `spec`.
fn service(metadata: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata:\n  namespace: demo\n  name: odd\n  {metadata}\nspec:\n  {spec}\n")
}

const SPEC: &str = "{clusterIP: 10.96.0.9, ports: [{name: p, port: 80}]}";

#[test]
fn each_wrong_thing_is_told_with_place_field_value_and_rule_and_costs_only_itself() {
    let world = World::new();
    let agent = world.start();
    let annotated = |key: &str, value: &str| service(&format!("annotations: {{bpvs.io/{key}: \"{value}\"}}"), SPEC);
    let deep = format!("a: {}1{}", "[".repeat(40), "]".repeat(40));
    let weights = "must be NAME=WEIGHT, zone/NAME=WEIGHT or node/NAME=WEIGHT, separated by commas, WEIGHT from 0 to \
                   2147483647";
    let object = "(document 1): Service demo/odd: ";
    let cases: &[(String, String)] = &[
        (
            annotated("scheduler", "fastest"),
            format!(":6 {object}metadata.annotations[bpvs.io/scheduler]: \"fastest\": must be one of rr, wrr, lc, wlc"),
        ),
        (
            service("annotations: \"bpvs.io/scheduler: wlc\"", SPEC),
            format!(":6 {object}metadata.annotations: \"bpvs.io/scheduler: wlc\": must be a map of texts"),
        ),
        (
            annotated("weights", "pod-a=-1"),
            format!("{object}metadata.annotations[bpvs.io/weights]: \"pod-a=-1\": {weights}"),
        ),
        (
            annotated("weights", "pod-a=3000000000"),
            format!("{object}metadata.annotations[bpvs.io/weights]: \"pod-a=3000000000\": {weights}"),
        ),
        (
            service("", "clusterIP: 10.96.0.9\n  ports: [{port: 0}]"),
            format!(":9 {object}spec.ports[0].port: 0: must be a number from 1 to 65535"),
        ),
        (
            service("", "clusterIP: 10.96.0.300\n  ports: [{port: 80}]"),
            format!(":8 {object}spec.clusterIP: \"10.96.0.300\": must be a usable IPv4 or IPv6 address, such as"),
        ),
        (service("", "clusterIP: 10.96.0.9\n  ports: 7"), format!(":9 {object}spec.ports: 7: must be a list")),
        (
            service("", "clusterIP: 10.96.0.1\n  ports: [{name: p, port: 80}]"),
            format!("{object}spec.ports[0]: 80: TCP 10.96.0.1:80 belongs to demo/web:"),
        ),
        (
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, namespace: demo, labels: \
             {kubernetes.io/service-name: nobody}}\naddressType: IPv4\nports: []\nendpoints: []\n"
                .to_owned(),
            "(document 1): EndpointSlice demo/s: metadata.labels[kubernetes.io/service-name]: \"nobody\": no such \
             Service in this namespace: its endpoints wait for it"
                .to_owned(),
        ),
        (
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: [cut".to_owned(),
            ":4 (document 1): manifest: cannot be read: ".to_owned(),
        ),
        ("a".repeat(10_000_000), "(document 1): manifest: cannot be read: the text \"aaaa".to_owned()),
        ("- ".repeat(5_000_000), "(document 1): manifest: cannot be read: ".to_owned()),
        (deep, "(document 1): manifest: cannot be read: ".to_owned()),
        ("apiVersion: v1\nkind: Service\nspec: \0".to_owned(), "(document 1): manifest: cannot be read: ".to_owned()),
        ("- a list\n".to_owned(), "a list: must be Service and EndpointSlice objects as YAML or JSON".to_owned()),
        (
            "apiVersion: v1\nkind: Service\nmetadata: {name: \"a\\0b\"}\n".to_owned(),
            ":3 (document 1): Service: metadata.name: \"a\\0b\": must be a name of".to_owned(),
        ),
    ];
    for (text, line) in cases {
        let mark = agent.log().len();
        // Sorted behind the right one, which has 10.96.0.1:80 already.
        world.manifests.write("z-odd.yaml", text).unwrap();
        told(&agent, mark, line);
        let log = agent.log().text(mark);
        let odd = log.lines().filter(|line| line.contains("WARN") && line.contains("z-odd.yaml")).count();
        assert_eq!(odd, 1, "one line for one thing:\n{log}");
        assert_eq!(world.dial(), 1);
        world.manifests.remove("z-odd.yaml").unwrap();
    }
}

#[test]
fn what_cannot_be_read_is_told_and_costs_only_itself() {
    let world = World::new();
    let agent = world.start();
    let odd = world.manifests.path().join("z-odd.yaml");
    let cases: [(&dyn Fn(), &str); 4] = [
        (&|| fs::write(&odd, b"kind: Serv\xff").unwrap(), "(document 1): manifest: not UTF-8 text (byte 10): must be "),
        (&|| symlink("/nowhere", &odd).unwrap(), "z-odd.yaml: manifest: cannot be read: No such file or directory"),
        (&|| symlink("z-odd.yaml", &odd).unwrap(), "z-odd.yaml: manifest: cannot be read: Too many levels"),
        (
            &|| nix::unistd::mkfifo(&odd, nix::sys::stat::Mode::S_IRUSR).unwrap(),
            "z-odd.yaml: manifest: must be a regular file",
        ),
    ];
    for (make, line) in cases {
        let mark = agent.log().len();
        make();
        told(&agent, mark, line);
        assert_eq!(world.dial(), 1);
        fs::remove_file(&odd).unwrap();
    }
}

#[test]
fn what_was_right_once_stays_when_it_becomes_wrong() {
    let world = World::new();
    let agent = world.start();
    let scheduler = |name: &str| agent.command(&["list"]).unwrap().contains(&format!("TCP  10.96.0.1:80 {name}\n"));
    assert!(scheduler("wlc"));
    let right = web("wlc", 1);
    let half = right.len() / 2;
    for wrong in [right.replace("wlc", "fastest"), right.replace("port: 80\n", "port: 0\n"), right[..half].to_owned()] {
        let mark = agent.log().len();
        world.manifests.write("a-web.yaml", &wrong).unwrap();
        told(&agent, mark, "a-web.yaml");
        assert!(scheduler("wlc"), "after\n{wrong}");
        assert_eq!(world.dial(), 1);
    }
    // An endpoint is all address: it is left out, and the client is told at once.
    let mark = agent.log().len();
    world.manifests.write("a-web.yaml", &right.replace("\"10.1.1.1\"", "\"10.1.1.256\"")).unwrap();
    told(&agent, mark, "endpoints[0].addresses[0]: \"10.1.1.256\"");
    world.manifests.write("a-web.yaml", &web("sed", 2)).unwrap();
    let end = std::time::Instant::now() + DEADLINE;
    while !scheduler("sed") {
        assert!(std::time::Instant::now() < end, "what is right again is not taken");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(world.dial(), 2);
}

#[test]
fn a_folder_that_vanishes_takes_nothing_away_and_is_followed_when_it_returns() {
    let world = World::new();
    let agent = world.start();
    let (here, away) = (world.manifests.path(), world.manifests.path().with_extension("away"));
    let mark = agent.log().len();
    fs::rename(here, &away).unwrap();
    told(&agent, mark, "manifest: cannot be read: No such file or directory (os error 2); what it held last stays");
    assert_eq!(world.dial(), 1);
    fs::write(away.join("a-web.yaml"), web("wlc", 2)).unwrap();
    fs::rename(&away, here).unwrap();
    told(&agent, mark, "manifests: can be read again");
    told(&agent, mark, "programmed: ");
    assert_eq!(world.dial(), 2);
}

/// docs/manifests.md shows this line to its readers.
#[test]
fn the_documented_example_of_a_problem_is_what_is_said() {
    let example = include_str!("../../../docs/manifests.md")
        .lines()
        .find_map(|line| line.strip_prefix("    manifests/web.yaml"))
        .expect("docs/manifests.md shows a problem");
    let world = World::new();
    let agent = world.start();
    let text = "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: first\n---\napiVersion: v1\nkind: Service\n\
                metadata:\n  namespace: demo\n  name: web2\nspec: {clusterIP: 10.96.0.9,\n  ports: [\n  {port: 70000}]}\n";
    let mark = agent.log().len();
    world.manifests.write("web.yaml", text).unwrap();
    told(&agent, mark, &format!("/web.yaml{}", example.replace("demo/web:", "demo/web2:")));
}

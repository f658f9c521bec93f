//! Hostile and merely wrong files.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{Parsed, parse};
use crate::model::{List, Model, SourceId};

fn read(text: impl AsRef<[u8]>) -> Parsed {
    parse(&Arc::from("a.yaml"), text.as_ref())
}

fn names(parsed: &Parsed) -> Vec<&str> {
    parsed.objects.iter().map(|object| &*object.key.name).collect()
}

fn service(name: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{clusterIP: 10.96.0.1}}\n")
}

#[test]
fn documents_lists_and_json_yield_their_objects_with_lines() {
    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: c}\n";
    let typed = "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata:\n    name: d\n";
    let json = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "e", "namespace": "x"}}"#;
    let text = format!(
        "# head\n---\n{}---\n{}--- # third\n{list}---\n{typed}...\n---\n{json}\n---\n",
        service("a"),
        service("b")
    );
    let parsed = read(&text);
    assert!(parsed.problems.is_empty() && !parsed.broken, "{:?}", parsed.problems);
    assert_eq!(names(&parsed), ["a", "b", "c", "d", "e"]);
    assert_eq!(&*parsed.objects[4].key.namespace, "x");
    for object in &parsed.objects[..2] {
        let line = object.origin.first_line + object.origin.line - 1;
        assert_eq!(text.lines().nth(line as usize - 1), Some("apiVersion: v1"));
    }
}

#[test]
fn line_endings_and_a_byte_order_mark_do_not_matter() {
    let text = format!("\u{feff}{}---\n{}", service("a"), service("b")).replace('\n', "\r\n");
    assert_eq!(names(&read(text)), ["a", "b"]);
}

#[test]
fn other_kinds_and_the_same_kinds_of_other_groups_are_ignored() {
    let other = "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {}\n---\nkind: Pod\napiVersion: v1\nmetadata: {}\n";
    let parsed = read(format!("{other}---\n{}", service("a")));
    assert!(parsed.problems.is_empty(), "{:?}", parsed.problems);
    assert_eq!(names(&parsed), ["a"]);
}

#[test]
fn a_broken_document_is_one_problem_with_its_place_and_spoils_no_other() {
    for (broken, place, about) in [
        ("a: [1, 2", "a.yaml:6", "unclosed bracket"),
        ("apiVersion: v1\nkind: Service\nmetadata: {name: x, namesp", "", "cannot be read: "),
        ("a: b: c", "a.yaml:6", "mapping values are not allowed"),
        ("a: 1\na: 2", "a.yaml:7", "duplicate mapping key: a"),
        ("a: *nowhere", "a.yaml:6", "unknown anchor"),
        ("just text", "a.yaml:", "the text \"just text\""),
        ("- 1", "a.yaml:", "a list"),
        ("kind: Service", "a.yaml:6", "without the texts apiVersion and kind"),
        ("kind: 7\napiVersion: v1", "a.yaml:6", "without the texts apiVersion and kind"),
        ("kind: List\napiVersion: v1\nitems: 7", "a.yaml:6", "items: must be a list"),
        ("kind: Service\napiVersion: v1", "a.yaml:6", "metadata: missing"),
        ("kind: Serv\napiVersion: v1", "a.yaml:6", "v1 \"Serv\": metadata: missing"),
        ("kind: Service\napiVersion: v1\nmetadata: {name: 7}", "a.yaml:8", "metadata.name: 7: must be a name"),
        ("kind: Service\napiVersion: v1\nmetadata: {name: A/b}", "a.yaml:8", "metadata.name: \"A/b\": must be a name"),
        ("kind: Service\napiVersion: v1\nmetadata: {name: a, namespace: ''}", "a.yaml:8", "metadata.namespace"),
    ] {
        let parsed = read(format!("{}---\n{broken}\n---\n{}", service("a"), service("b")));
        assert!(parsed.broken, "{broken}");
        assert_eq!(names(&parsed), ["a", "b"], "{broken}");
        let [problem] = &parsed.problems[..] else { panic!("{broken}: {:?}", parsed.problems) };
        let text = problem.to_string();
        assert!(text.contains(place) && text.contains("(document 2)") && text.contains(about), "{text}");
        assert!(!text.contains('\n') && text.len() < 400, "{text}");
    }
}

#[test]
fn large_lists_are_read_as_kubectl_prints_them_and_as_tersely_as_can_be() {
    let kubectl = |number: usize| {
        let (high, low) = (number / 250, number % 250);
        format!(
            "  - addresses:\n    - 10.1.{high}.{low}\n    conditions:\n      ready: true\n      serving: true\n      \
             terminating: false\n    nodeName: worker-{high}\n    targetRef:\n      kind: Pod\n      name: web-{number}\n      \
             namespace: demo\n      uid: 0b5a3c1e-7c4d-4f7e-9a51-1d3f1c2b{number:04x}\n    zone: eu-1\n"
        )
    };
    let terse = |number: usize| format!("  - addresses: [10.1.{}.{}]\n", number / 250, number % 250);
    for endpoints in [(0..1000).map(kubectl).collect::<String>(), (0..1000).map(terse).collect()] {
        let item = format!(
            "- addressType: IPv4\n  apiVersion: discovery.k8s.io/v1\n  endpoints:\n{endpoints}  kind: EndpointSlice\n  \
             metadata:\n    labels:\n      kubernetes.io/service-name: web\n    name: web\n    namespace: demo\n"
        );
        let parsed = read(format!(
            "apiVersion: v1\nitems:\n{}kind: List\nmetadata:\n  resourceVersion: \"\"\n",
            item.repeat(20)
        ));
        assert_eq!((parsed.objects.len(), parsed.problems), (20, vec![]));
    }
}

#[test]
fn a_file_that_is_all_wrong_is_told_of_in_a_few_lines() {
    let parsed = read("---\na\n".repeat(100_000));
    assert_eq!(parsed.problems.len(), 21);
    assert!(parsed.problems[20].message.contains("not listed"));
    assert!(read("---\n".repeat(1_000_000)).problems.is_empty());
}

#[test]
fn what_is_no_text_is_one_problem() {
    let parsed = read(b"kind: Service\nname: \xff\xfe");
    assert_eq!(parsed.problems.len(), 1);
    let text = parsed.problems[0].to_string();
    assert!(text.contains("a.yaml:2") && text.contains("not UTF-8"), "{text}");
}

/// Ten megabytes of everything that makes parsers slow or greedy.
#[test]
fn ten_megabytes_of_garbage_end_soon_with_one_problem() {
    const SIZE: usize = 10 << 20;
    let mut noise = Vec::with_capacity(SIZE);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    while noise.len() < SIZE {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.push(b' ' + (state % 95) as u8);
        if state.is_multiple_of(61) {
            noise.push(b'\n');
        }
    }
    let repeated = |text: &str| text.repeat(SIZE / text.len()).into_bytes();
    let bomb = {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..20 {
            let alias = format!("*a{}", level - 1);
            text += &format!("a{level}: &a{level} [{}]\n", [alias.as_str(); 10].join(", "));
        }
        text.into_bytes()
    };
    for (what, bytes) in [
        ("noise", noise),
        ("letters", repeated("a")),
        ("open lists", repeated("[")),
        ("open maps", repeated("{")),
        ("nested items", repeated("- ")),
        ("short items", repeated("a,").into_iter().rev().chain(*b"[").rev().collect()),
        ("short lines", repeated("- a\n")),
        ("short items in a map", b"a: [".iter().copied().chain("a,".repeat(SIZE / 10).into_bytes()).collect()),
        ("keys", repeated("? a\n")),
        ("quotes", repeated("\"")),
        ("open text", repeated("'a ")),
        ("colons", repeated(": ")),
        ("anchors", repeated("&a ")),
        ("tags", repeated("!")),
        ("zeros", vec![0; SIZE]),
        ("high bytes", vec![0xff; SIZE]),
        ("aliases of aliases", bomb),
    ] {
        let begun = Instant::now();
        let parsed = read(&bytes);
        let took = begun.elapsed();
        println!("{what}: {took:?}: {:?}", parsed.problems.first().map(ToString::to_string));
        assert_eq!((parsed.objects.len(), parsed.problems.len()), (0, 1), "{what}");
        assert!(parsed.broken && parsed.problems[0].to_string().len() < 500, "{what}");
        // Generous: unoptimised code on a busy machine. Quadratic behaviour takes hours.
        assert!(took < Duration::from_secs(60), "{what} took {took:?}");
    }
}

fn example() -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/manifests/wrr.yaml");
    std::fs::read_to_string(path).unwrap()
}

fn modelled(parsed: Parsed) -> (Model, usize) {
    let mut model = Model::new();
    let broken = parsed.problems.len();
    model.replace(SourceId::MANIFESTS, List { objects: parsed.objects, ..List::default() });
    (model, broken)
}

#[test]
fn a_file_cut_off_anywhere_is_at_most_one_problem() {
    let text = example();
    for end in 0..text.len() {
        let (model, broken) = modelled(read(&text[..end]));
        let problems = model.problems();
        assert!(broken + problems.len() <= 1, "cut at {end}: {broken} and {problems:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        modelled(read(bytes));
    }

    /// Still mostly YAML and mostly an object, so that it gets further than noise.
    #[test]
    fn a_damaged_manifest_is_read_without_panic_and_told_of_in_single_lines(
        damage in prop::collection::vec((any::<prop::sample::Index>(), "[ -~\n\t]{0,3}", 0..4usize), 1..6),
    ) {
        let mut text = example();
        for (place, put, removed) in damage {
            let start = place.index(text.len());
            let end = (start + removed).min(text.len());
            text.replace_range(start..end, &put);
        }
        let parsed = read(&text);
        let told: Vec<String> = parsed.problems.iter().map(ToString::to_string).collect();
        let (model, _) = modelled(parsed);
        for line in told.into_iter().chain(model.problems().iter().map(ToString::to_string)) {
            prop_assert!(line.starts_with("a.yaml:") && !line.contains('\n') && line.len() < 1000, "{line}");
        }
    }
}

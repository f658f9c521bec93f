//! What `deploy/` holds: manifests that the API knows every field of, a chart that comes to the same objects, and what the
//! agent says of itself: its arguments, capabilities, ports and places.

mod capabilities;
mod chart;
mod cluster;
mod commands;
mod container;
mod manifests;
mod pod;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bpvs_tests::agent::binary;
use serde_json::Value;

/// An object is known by its kind: no kind is there twice.
type Objects = BTreeMap<String, Value>;

fn path(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(of)
}

#[track_caller]
fn read(of: &str) -> String {
    std::fs::read_to_string(path(of)).unwrap_or_else(|error| panic!("{of}: {error}"))
}

/// A YAML document; what `text` is of is named if it is none.
#[track_caller]
fn yaml(of: &str, text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{of}: {error}\n{text}"))
}

/// What `kubectl kustomize deploy/kustomize` prints: a kustomization that names files and does nothing to them.
#[track_caller]
fn kustomized() -> Objects {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    struct Kustomization {
        api_version: String,
        kind: String,
        resources: Vec<String>,
    }
    let text = read("deploy/kustomize/kustomization.yaml");
    let found: Kustomization = serde_saphyr::from_str(&text).unwrap();
    let of = (found.api_version.as_str(), found.kind.as_str());
    assert_eq!(of, ("kustomize.config.k8s.io/v1beta1", "Kustomization"));
    let mut files: Vec<String> = std::fs::read_dir(path("deploy/kustomize"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "kustomization.yaml")
        .collect();
    let mut named = found.resources.clone();
    files.sort();
    named.sort();
    assert_eq!(named, files, "kustomization.yaml names other files than there are");
    by_kind(found.resources.iter().map(|file| yaml(file, &read(&format!("deploy/kustomize/{file}")))))
}

#[track_caller]
fn by_kind(objects: impl Iterator<Item = Value>) -> Objects {
    let mut found = Objects::new();
    for object in objects {
        let kind = object["kind"].as_str().expect("an object has a kind").to_owned();
        assert!(found.insert(kind.clone(), object).is_none(), "two objects of kind {kind}");
    }
    found
}

/// The DaemonSet's only container.
#[track_caller]
fn container(objects: &Objects) -> &Value {
    let containers = objects["DaemonSet"].pointer("/spec/template/spec/containers").and_then(Value::as_array).unwrap();
    assert_eq!(containers.len(), 1);
    &containers[0]
}

/// The strings of a list.
#[track_caller]
fn strings(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect()
}

/// The entry of a list that has this name.
#[track_caller]
fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let found = list.as_array().unwrap().iter().find(|entry| entry["name"] == name);
    found.unwrap_or_else(|| panic!("nothing is called {name} in {list}"))
}

/// Asks bpvs's own parser: with `--help` at the end it reads all that stands before, and does nothing.
fn parse(arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(binary().unwrap());
    let Output { status, stdout, stderr } = command.args(arguments).arg("--help").output().unwrap();
    match status.success() {
        true => Ok(String::from_utf8(stdout).unwrap()),
        false => Err(String::from_utf8(stderr).unwrap()),
    }
}

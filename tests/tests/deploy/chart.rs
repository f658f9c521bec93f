//! The chart renders what deploy/kustomize holds.
//!
//! Helm's template language is Go's, which a library renders here, with the few functions of Helm that the chart uses:
//! another function fails the tests. What the real programs make of `deploy/` is compared by the ignored test.

use std::collections::{BTreeSet, HashMap};
use std::process::Command;

use gtmpl::{Context, FuncError, Template, Value as Go};
use serde_json::{Value, json};

use super::manifests::known;
use super::{Objects, by_kind, container, kustomized, named, path, read, strings, yaml};

const CHART: &str = "deploy/helm/bpvs";
/// Values that the reader of the chart has to give, as deploy/kustomize has them.
pub(super) const API_SERVER: &str = "https://control-plane.example:6443";

fn go(value: &Value) -> Go {
    match value {
        Value::Null => Go::Nil,
        Value::Bool(value) => Go::Bool(*value),
        Value::Number(number) => number.as_i64().expect("whole numbers alone").into(),
        Value::String(text) => Go::String(text.clone()),
        Value::Array(list) => Go::Array(list.iter().map(go).collect()),
        Value::Object(map) => Go::Map(map.iter().map(|(key, value)| (key.clone(), go(value))).collect()),
    }
}

fn json_of(value: &Go) -> Result<Value, FuncError> {
    Ok(match value {
        Go::Nil | Go::NoValue => Value::Null,
        Go::Bool(value) => json!(value),
        Go::Number(number) => json!(number.as_i64()),
        Go::String(text) => json!(text),
        Go::Array(list) => Value::Array(list.iter().map(json_of).collect::<Result<_, _>>()?),
        Go::Map(map) | Go::Object(map) => Value::Object(
            map.iter().map(|(key, value)| Ok((key.clone(), json_of(value)?))).collect::<Result<_, FuncError>>()?,
        ),
        Go::Function(_) => return Err(FuncError::UnableToConvertFromValue),
    })
}

/// The keys of a map a line each, what is below them as JSON: YAML where it is indented further than the key before it.
fn to_yaml(arguments: &[Go]) -> Result<Go, FuncError> {
    let [value] = arguments else { return Err(FuncError::ExactlyXArgs("toYaml".into(), 1)) };
    let text = match json_of(value)? {
        Value::Object(map) if !map.is_empty() => {
            map.iter().map(|(key, value)| format!("{}: {value}", json!(key))).collect::<Vec<_>>().join("\n")
        }
        value => value.to_string(),
    };
    Ok(text.into())
}

fn nindent(arguments: &[Go]) -> Result<Go, FuncError> {
    let [Go::Number(by), Go::String(text)] = arguments else {
        return Err(FuncError::ExactlyXArgs("nindent".into(), 2));
    };
    let by = by.as_i64().and_then(|by| by.try_into().ok()).ok_or(FuncError::UnableToConvertFromValue)?;
    let lines: Vec<String> = text.lines().map(|line| format!("{:by$}{line}", "")).collect();
    Ok(format!("\n{}", lines.join("\n")).into())
}

fn quote(arguments: &[Go]) -> Result<Go, FuncError> {
    to_yaml(arguments)
}

fn default(arguments: &[Go]) -> Result<Go, FuncError> {
    let [otherwise, given] = arguments else { return Err(FuncError::ExactlyXArgs("default".into(), 2)) };
    Ok(if matches!(given, Go::String(text) if text.is_empty()) { otherwise } else { given }.clone())
}

/// What `given` says over what is there, as Helm merges values.
fn merge(into: &mut Value, given: &Value) {
    match (into, given) {
        (Value::Object(into), Value::Object(given)) => {
            for (key, value) in given {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, given) => *into = given.clone(),
    }
}

fn templates() -> Vec<String> {
    let entries = std::fs::read_dir(path(&format!("{CHART}/templates"))).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[track_caller]
fn text(template: &str, values: &Value) -> String {
    let chart = yaml("Chart.yaml", &read(&format!("{CHART}/Chart.yaml")));
    let mut all = yaml("values.yaml", &read(&format!("{CHART}/values.yaml")));
    merge(&mut all, values);
    let mut parsed = Template::with_name(template);
    parsed.add_funcs(&[
        ("toYaml", to_yaml as gtmpl::Func),
        ("nindent", nindent),
        ("quote", quote),
        ("default", default),
    ]);
    parsed.parse(read(&format!("{CHART}/templates/{template}"))).unwrap_or_else(|error| panic!("{template}: {error}"));
    let context: HashMap<String, Go> = [
        ("Values", all),
        ("Chart", json!({"AppVersion": chart["appVersion"], "Name": chart["name"]})),
        ("Release", json!({"Name": "bpvs", "Namespace": "kube-system"})),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), go(&value)))
    .collect();
    parsed.render(&Context::from(Go::Map(context))).unwrap_or_else(|error| panic!("{template}: {error}"))
}

#[track_caller]
pub(super) fn rendered(values: &Value) -> Objects {
    let names = templates().into_iter().filter(|name| name.ends_with(".yaml"));
    let texts = names.map(|name| (text(&name, values), name)).filter(|(text, _)| !text.trim().is_empty());
    by_kind(texts.map(|(text, name)| yaml(&name, &text)))
}

/// The objects with each file of the ConfigMap as what it says, not as how it is written.
fn understood(mut objects: Objects) -> Objects {
    if let Some(Value::Object(data)) = objects.get_mut("ConfigMap").map(|object| &mut object["data"]) {
        for (name, text) in data {
            *text = yaml(name, text.as_str().unwrap());
        }
    }
    objects
}

#[test]
fn the_chart_renders_the_objects_of_the_kustomization() {
    let rendered = rendered(&json!({"apiServer": API_SERVER}));
    let (chart, kustomized) = (understood(rendered), understood(kustomized()));
    assert_eq!(chart.keys().collect::<Vec<_>>(), kustomized.keys().collect::<Vec<_>>());
    for (kind, object) in &kustomized {
        assert_eq!(&chart[kind], object, "{kind}: left is the chart's, right the kustomization's");
    }
}

#[test]
fn the_chart_is_of_this_version() {
    let chart = yaml("Chart.yaml", &read(&format!("{CHART}/Chart.yaml")));
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((&chart["apiVersion"], &chart["name"]), (&json!("v2"), &json!("bpvs")));
    assert_eq!((&chart["version"], &chart["appVersion"]), (&json!(version), &json!(version)));
}

#[test]
fn values_reach_the_objects_that_they_are_for() {
    let objects = rendered(&json!({
        "existingConfigMap": "kube-proxy-copy",
        "image": {"repository": "registry.example/bpvs", "tag": "v9", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "extraArgs": ["--max-services=100", "--scheduler=wlc"],
        "healthz": {"host": "::1", "port": 10300},
        "cgroupPath": "/sys/fs/cgroup/unified",
        "resources": {"limits": {"memory": "1Gi"}},
        "priorityClassName": "mine",
        "podAnnotations": {"a": "b"},
        "tolerations": [],
        "nodeSelector": {"pool": "edge"},
        "affinity": {"nodeAffinity": null},
        "updateStrategy": {"type": "OnDelete"},
    }));
    assert!(!objects.contains_key("ConfigMap"));
    for (kind, object) in &objects {
        known(object);
        assert_eq!(object["metadata"]["name"], "bpvs", "{kind}");
    }
    let (container, spec) = (container(&objects), &objects["DaemonSet"]["spec"]);
    let pod = &spec["template"]["spec"];
    assert_eq!(named(&pod["volumes"], "config")["configMap"]["name"], "kube-proxy-copy");
    assert_eq!(named(&pod["volumes"], "cgroup")["hostPath"]["path"], "/sys/fs/cgroup/unified");
    assert_eq!(
        (&container["image"], &container["imagePullPolicy"]),
        (&json!("registry.example/bpvs:v9"), &json!("Always"))
    );
    assert_eq!(objects["ServiceAccount"]["imagePullSecrets"], json!([{"name": "pull"}]));
    assert_eq!(strings(&container["args"])[4..], ["--max-services=100", "--scheduler=wlc"]);
    assert_eq!(named(&container["ports"], "healthz")["containerPort"], 10300);
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["host"], "::1", "{probe}");
    }
    assert_eq!(container["resources"]["limits"], json!({"memory": "1Gi"}));
    assert_eq!(pod["priorityClassName"], "mine");
    assert_eq!(spec["template"]["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!((&pod["tolerations"], &pod["affinity"]["nodeAffinity"]), (&Value::Null, &Value::Null));
    assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/os": "linux", "pool": "edge"}));
    assert_eq!(spec["updateStrategy"]["type"], "OnDelete");
}

/// Names of a map, and below the maps that the schema closes, `image.tag`.
fn names(values: &Value, schema: &Value, before: &str, found: &mut BTreeSet<String>) {
    let closed = schema["additionalProperties"] == false;
    for (name, value) in values.as_object().into_iter().flatten() {
        let full = format!("{before}{name}");
        match &schema["properties"][name] {
            of if of["additionalProperties"] == false && of["type"] == "object" => {
                names(value, of, &format!("{full}."), found);
            }
            Value::Null if closed => drop(found.insert(format!("{full} (unknown to the schema)"))),
            _ => drop(found.insert(full)),
        }
    }
}

#[test]
fn the_schema_knows_exactly_the_values_that_there_are() {
    let schema: Value = serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).unwrap();
    assert_eq!(schema["additionalProperties"], false, "a value that is misspelt must not be taken");
    let (mut found, mut wanted) = (BTreeSet::new(), BTreeSet::new());
    names(&yaml("values.yaml", &read(&format!("{CHART}/values.yaml"))), &schema, "", &mut found);
    let mut open: Vec<(String, &Value)> = vec![(String::new(), &schema)];
    while let Some((before, of)) = open.pop() {
        for (name, property) in of["properties"].as_object().unwrap() {
            let full = format!("{before}{name}");
            if property["additionalProperties"] == false && property["type"] == "object" {
                open.push((format!("{full}."), property));
            } else {
                wanted.insert(full);
            }
        }
    }
    // Helm gives it to every chart.
    wanted.remove("global");
    assert_eq!(found, wanted, "left are the values of values.yaml, right those of values.schema.json");
}

#[test]
fn the_chart_speaks_of_commands_that_there_are() {
    let notes = text("NOTES.txt", &json!({}));
    assert!(notes.contains("-n kube-system rollout status daemonset/bpvs"), "{notes}");
    let indented: Vec<&str> = notes.lines().filter(|line| line.starts_with(' ')).collect();
    let commands = super::commands::of(&indented.join("\n"));
    assert!(!commands.is_empty());
    super::commands::accepted("NOTES.txt", &commands);
}

/// What stands between `---` lines.
fn documents(of: &str, command: &mut Command) -> Objects {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let documents =
        text.split("\n---\n").filter(|text| text.lines().any(|line| !line.is_empty() && !line.starts_with('#')));
    by_kind(documents.map(|text| yaml(of, text)))
}

#[test]
#[ignore = "needs helm and kubectl, which setup does not install"]
fn helm_and_kustomize_themselves_come_to_the_same_objects() {
    let chart = path(CHART);
    let set = format!("apiServer={API_SERVER}");
    let mut helm = Command::new("helm");
    helm.args(["template", "bpvs"]).arg(&chart).args(["--namespace", "kube-system", "--set", &set]);
    assert_eq!(understood(documents("helm", &mut helm)), understood(kustomized()));
    let mut kubectl = Command::new("kubectl");
    kubectl.arg("kustomize").arg(path("deploy/kustomize"));
    assert_eq!(documents("kubectl", &mut kubectl), kustomized());
    // The schema is Helm's to hold.
    for wrong in ["apiServer=", "apiServer=http://a", "imgae.tag=x", "healthz.port=0", "config.kind=x"] {
        let mut helm = Command::new("helm");
        helm.args(["template", "bpvs"]).arg(&chart).args(["--set", &set, "--set", wrong]);
        assert!(!helm.output().unwrap().status.success(), "{wrong} was taken");
    }
}

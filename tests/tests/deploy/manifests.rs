//! The manifests, field by field.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use lb_userspace::cli::DEFAULT_PIN_PATH;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Objects, container, kustomized, named, parse, strings, yaml};

/// What the API's type of an object makes of it: fields that it does not know are lost.
pub(super) fn known(object: &Value) -> Value {
    fn through<T: Serialize + DeserializeOwned>(object: &Value) -> Value {
        let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
        serde_json::to_value(typed).unwrap()
    }
    match (object["apiVersion"].as_str(), object["kind"].as_str()) {
        (Some("v1"), Some("ServiceAccount")) => through::<ServiceAccount>(object),
        (Some("v1"), Some("ConfigMap")) => through::<ConfigMap>(object),
        (Some("apps/v1"), Some("DaemonSet")) => through::<DaemonSet>(object),
        (Some("rbac.authorization.k8s.io/v1"), Some("ClusterRoleBinding")) => through::<ClusterRoleBinding>(object),
        other => panic!("no type for {other:?}"),
    }
}

fn pod(objects: &Objects) -> &Value {
    &objects["DaemonSet"]["spec"]["template"]["spec"]
}

#[test]
fn the_api_knows_every_field() {
    for (kind, object) in kustomized() {
        assert_eq!(known(&object), object, "{kind}: fields that the API does not know, or writes otherwise");
    }
}

#[test]
fn a_field_that_the_api_does_not_know_is_found() {
    let mut daemon_set = kustomized()["DaemonSet"].clone();
    daemon_set["spec"]["template"]["spec"]["hostNetwrok"] = json!(true);
    assert_ne!(known(&daemon_set), daemon_set);
}

#[test]
fn the_agent_has_the_rights_of_kube_proxy_and_no_others() {
    let objects = kustomized();
    let (account, binding) = (&objects["ServiceAccount"]["metadata"], &objects["ClusterRoleBinding"]);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"});
    assert_eq!(binding["roleRef"], role);
    let subject = json!({"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]});
    assert_eq!(binding["subjects"], json!([subject]));
    assert_eq!(pod(&objects)["serviceAccountName"], account["name"]);
    let kinds: Vec<&str> = objects.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["ClusterRoleBinding", "ConfigMap", "DaemonSet", "ServiceAccount"]);
    for kind in ["ConfigMap", "DaemonSet"] {
        assert_eq!(objects[kind]["metadata"]["namespace"], account["namespace"], "{kind}");
    }
}

#[test]
fn every_linux_node_is_served_that_is_not_left_to_kube_proxy() {
    let objects = kustomized();
    let spec = &objects["DaemonSet"]["spec"];
    assert_eq!(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]);
    assert_eq!(spec["updateStrategy"]["type"], "RollingUpdate");
    let pod = pod(&objects);
    for (field, value) in [
        ("hostNetwork", json!(true)),
        ("dnsPolicy", json!("Default")),
        ("priorityClassName", json!("system-node-critical")),
        ("tolerations", json!([{"operator": "Exists"}])),
        ("nodeSelector", json!({"kubernetes.io/os": "linux"})),
    ] {
        assert_eq!(pod[field], value, "{field}");
    }
    let terms = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let left = json!([{"key": "bpvs.io/proxy", "operator": "NotIn", "values": ["kube-proxy"]}]);
    assert_eq!(terms, &json!({"nodeSelectorTerms": [{"matchExpressions": left}]}));
}

#[test]
fn pins_are_the_nodes_and_so_is_the_cgroup() {
    let objects = kustomized();
    let (container, volumes) = (container(&objects), &pod(&objects)["volumes"]);
    let bpf = named(&container["volumeMounts"], "bpf");
    assert_eq!(named(volumes, "bpf")["hostPath"]["path"], bpf["mountPath"], "pins are found under one path everywhere");
    assert!(DEFAULT_PIN_PATH.starts_with(&format!("{}/", bpf["mountPath"].as_str().unwrap())));
    // With Bidirectional the container would have to be privileged.
    assert_eq!((&bpf["mountPropagation"], &bpf["readOnly"]), (&json!("HostToContainer"), &Value::Null));
    let cgroup = named(&container["volumeMounts"], "cgroup");
    let argument = format!("--cgroup={}", cgroup["mountPath"].as_str().unwrap());
    assert!(strings(&container["args"]).contains(&argument.as_str()), "{argument}");
    assert_eq!(named(volumes, "cgroup")["hostPath"]["path"], "/sys/fs/cgroup");
    for mount in container["volumeMounts"].as_array().unwrap() {
        named(volumes, mount["name"].as_str().unwrap());
    }
}

#[test]
fn the_configuration_is_where_the_arguments_and_itself_say() {
    let objects = kustomized();
    let (container, data) = (container(&objects), &objects["ConfigMap"]["data"]);
    let mount = named(&container["volumeMounts"], "config");
    let folder = mount["mountPath"].as_str().unwrap();
    let volume = named(&pod(&objects)["volumes"], "config");
    assert_eq!(volume["configMap"]["name"], objects["ConfigMap"]["metadata"]["name"]);
    assert!(strings(&container["args"]).contains(&format!("--config={folder}/config.conf").as_str()));
    let config = yaml("config.conf", data["config.conf"].as_str().unwrap());
    assert_eq!(config["apiVersion"], "kubeproxy.config.k8s.io/v1alpha1");
    assert_eq!(config["kind"], "KubeProxyConfiguration");
    assert_eq!(config["clientConnection"]["kubeconfig"], format!("{folder}/kubeconfig.conf"));
    let kubeconfig = yaml("kubeconfig.conf", data["kubeconfig.conf"].as_str().unwrap());
    let name = &kubeconfig["current-context"];
    let context = &named(&kubeconfig["contexts"], name.as_str().unwrap())["context"];
    let cluster = &named(&kubeconfig["clusters"], context["cluster"].as_str().unwrap())["cluster"];
    let user = &named(&kubeconfig["users"], context["user"].as_str().unwrap())["user"];
    const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    assert_eq!(cluster["certificate-authority"], format!("{TOKEN}/ca.crt"));
    assert_eq!(user["tokenFile"], format!("{TOKEN}/token"));
    // Not the cluster address of the Service `kubernetes`, nor its name: bpvs is what makes them work.
    let server = cluster["server"].as_str().unwrap();
    assert!(server.starts_with("https://") && !server.contains("kubernetes"), "{server}");
}

#[test]
fn probes_ask_where_the_agent_answers() {
    let objects = kustomized();
    let container = container(&objects);
    let port = &named(&container["ports"], "healthz")["containerPort"];
    let help = parse(&["run"]).unwrap();
    assert!(help.contains(&format!("[default: 0.0.0.0:{port} with an API server")), "{help}");
    let config = yaml("config.conf", objects["ConfigMap"]["data"]["config.conf"].as_str().unwrap());
    assert_eq!(config["healthzBindAddress"], format!("0.0.0.0:{port}"));
    for (probe, path) in [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
        let get = json!({"path": path, "port": "healthz"});
        assert_eq!(container[probe]["httpGet"], get, "{probe}");
    }
}

#[test]
fn the_image_is_of_this_version() {
    let objects = kustomized();
    assert_eq!(container(&objects)["image"], concat!("bpvs:", env!("CARGO_PKG_VERSION")));
}

//! What a role allows: the answer of RBAC to a request.

use axum::http::Method;
use k8s_openapi::api::rbac::v1::PolicyRule;

/// A request as RBAC sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    /// `list`, `watch`, ...; of a path that is no resource the method, in lower case.
    pub(super) verb: &'static str,
    /// The API group of a resource, empty for the core's.
    group: Option<String>,
    /// The resource, with a subresource behind a slash, or the path.
    pub(super) resource: String,
    /// The object, if one is named.
    name: Option<String>,
}

impl Attributes {
    pub(super) fn of(method: &Method, path: &str, watching: bool) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, rest) = match &parts[..] {
            ["api", _version, rest @ ..] if !rest.is_empty() => (Some(String::new()), rest),
            ["apis", group, _version, rest @ ..] if !rest.is_empty() => (Some((*group).to_owned()), rest),
            _ => (None, &[][..]),
        };
        let rest = match rest {
            ["namespaces", _namespace, rest @ ..] if !rest.is_empty() => rest,
            rest => rest,
        };
        let name = rest.get(1).map(|name| (*name).to_owned());
        let resource = match rest {
            [] => path.to_owned(),
            [resource, _name, subresource, ..] => format!("{resource}/{subresource}"),
            [resource, ..] => (*resource).to_owned(),
        };
        let named = name.is_some();
        let verb = match (method, group.is_some()) {
            (&Method::GET, true) if watching => "watch",
            (&Method::GET, true) if !named => "list",
            (&Method::GET, _) => "get",
            (&Method::POST, true) => "create",
            (&Method::PUT, true) => "update",
            (&Method::PATCH, true) => "patch",
            (&Method::DELETE, true) if named => "delete",
            (&Method::DELETE, true) => "deletecollection",
            _ => "other",
        };
        Self { verb, group, resource, name }
    }

    /// True if one of the rules allows it. None allows what is not a resource.
    pub(super) fn are_allowed(&self, rules: &[PolicyRule]) -> bool {
        let Some(group) = &self.group else { return false };
        let has = |list: &[String], wanted: &str| list.iter().any(|entry| entry == wanted || entry == "*");
        let any = |list: &Option<Vec<String>>, wanted: &str| list.as_deref().is_some_and(|list| has(list, wanted));
        rules.iter().any(|rule| {
            let names = rule.resource_names.as_deref().unwrap_or_default();
            has(&rule.verbs, self.verb)
                && any(&rule.api_groups, group)
                && any(&rule.resources, &self.resource)
                && (names.is_empty() || self.name.as_ref().is_some_and(|name| names.contains(name)))
        })
    }

    /// What the API server says of it.
    pub(super) fn forbidden(&self) -> String {
        let Self { verb, group, resource, .. } = self;
        match group {
            Some(group) => format!("forbidden: cannot {verb} resource \"{resource}\" in API group \"{group}\""),
            None => format!("forbidden: cannot {verb} path \"{resource}\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> PolicyRule {
        let list = |of: &[&str]| of.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let (api_groups, resources) = (Some(list(groups)), Some(list(resources)));
        PolicyRule { api_groups, resources, verbs: list(verbs), ..PolicyRule::default() }
    }

    #[test]
    fn a_role_allows_what_it_names() {
        let rules = [
            rule(&[""], &["nodes"], &["get", "list", "watch"]),
            rule(&["", "events.k8s.io"], &["events"], &["create", "patch"]),
            PolicyRule { resource_names: Some(vec!["own".into()]), ..rule(&[""], &["pods"], &["get"]) },
        ];
        for (method, path, watching, verb, allowed) in [
            (Method::GET, "/api/v1/nodes", false, "list", true),
            (Method::GET, "/api/v1/nodes", true, "watch", true),
            (Method::GET, "/api/v1/nodes/n0", false, "get", true),
            (Method::GET, "/api/v1/nodes/n0/status", false, "get", false),
            (Method::PUT, "/api/v1/nodes/n0", false, "update", false),
            (Method::DELETE, "/api/v1/nodes/n0", false, "delete", false),
            (Method::DELETE, "/api/v1/nodes", false, "deletecollection", false),
            (Method::GET, "/apis/other/v1/nodes", false, "list", false),
            (Method::POST, "/api/v1/namespaces/demo/events", false, "create", true),
            (Method::POST, "/apis/events.k8s.io/v1/namespaces/demo/events", false, "create", true),
            (Method::PATCH, "/apis/events.k8s.io/v1/namespaces/demo/events/e", false, "patch", true),
            (Method::GET, "/apis/events.k8s.io/v1/events", false, "list", false),
            (Method::GET, "/api/v1/namespaces/demo/pods/own", false, "get", true),
            (Method::GET, "/api/v1/namespaces/demo/pods/other", false, "get", false),
            (Method::GET, "/api/v1/namespaces", false, "list", false),
            (Method::GET, "/version", false, "get", false),
            (Method::GET, "/apis", false, "get", false),
            (Method::POST, "/", false, "other", false),
        ] {
            let asked = Attributes::of(&method, path, watching);
            assert_eq!((asked.verb, asked.are_allowed(&rules)), (verb, allowed), "{method} {path}: {asked:?}");
        }
    }
}

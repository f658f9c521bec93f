//! Label and field selectors, as the API server reads them.

use serde_json::Value;

/// What an object must be like to be seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug)]
struct Requirement {
    place: Place,
    test: Test,
}

#[derive(Clone, Debug)]
enum Place {
    Label(String),
    Field(String),
}

#[derive(Clone, Debug)]
enum Test {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
}

impl Selector {
    /// Reads both selectors of a request; an error is what the server would answer.
    pub(super) fn parse(labels: &str, fields: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for term in terms(labels) {
            requirements.push(label_requirement(term)?);
        }
        for term in terms(fields) {
            requirements.push(field_requirement(term)?);
        }
        Ok(Self { requirements })
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = match &requirement.place {
                Place::Label(key) => object.pointer("/metadata/labels").and_then(|labels| labels.get(key)),
                Place::Field(path) => object.pointer(&format!("/{}", path.replace('.', "/"))),
            };
            let text = value.and_then(Value::as_str);
            match &requirement.test {
                Test::Exists => value.is_some(),
                Test::Missing => value.is_none(),
                // A field that is not there is empty; a label that is not there equals nothing.
                Test::In(allowed) => match (text, &requirement.place) {
                    (None, Place::Field(_)) => allowed.iter().any(String::is_empty),
                    (text, _) => text.is_some_and(|text| allowed.iter().any(|value| value == text)),
                },
                Test::NotIn(refused) => !text.is_some_and(|text| refused.iter().any(|value| value == text)),
            }
        })
    }
}

/// Terms are separated by commas, except inside of parentheses.
fn terms(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let split = text.split(move |character| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    });
    split.map(str::trim).filter(|term| !term.is_empty())
}

fn label_requirement(term: &str) -> Result<Requirement, String> {
    let requirement = |key: &str, test| Requirement { place: Place::Label(key.trim().to_owned()), test };
    let one = |value: &str| vec![value.trim().to_owned()];
    let set = |text: &str| -> Result<Vec<String>, String> {
        let inner = text.trim().strip_prefix('(').and_then(|text| text.strip_suffix(')'));
        let inner = inner.ok_or_else(|| format!("unable to parse requirement: {term}"))?;
        Ok(inner.split(',').map(|value| value.trim().to_owned()).collect())
    };
    Ok(if let Some(key) = term.strip_prefix('!') {
        requirement(key, Test::Missing)
    } else if let Some((key, values)) = term.split_once(" notin ") {
        requirement(key, Test::NotIn(set(values)?))
    } else if let Some((key, values)) = term.split_once(" in ") {
        requirement(key, Test::In(set(values)?))
    } else if let Some((key, value)) = term.split_once("!=") {
        requirement(key, Test::NotIn(one(value)))
    } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        requirement(key, Test::In(one(value)))
    } else {
        requirement(term, Test::Exists)
    })
}

fn field_requirement(term: &str) -> Result<Requirement, String> {
    const KNOWN: [&str; 4] = ["metadata.name", "metadata.namespace", "spec.clusterIP", "spec.type"];
    let (field, value, equal) = if let Some((field, value)) = term.split_once("!=") {
        (field, value, false)
    } else if let Some((field, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (field, value, true)
    } else {
        return Err(format!("invalid field selector: {term}"));
    };
    if !KNOWN.contains(&field) {
        return Err(format!("field label not supported: {field}"));
    }
    let values = vec![value.to_owned()];
    Ok(Requirement {
        place: Place::Field(field.to_owned()),
        test: if equal { Test::In(values) } else { Test::NotIn(values) },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Selector;

    #[test]
    fn selectors_select_as_the_api_server_does() {
        let object =
            json!({"metadata": {"name": "web", "labels": {"app": "web", "empty": ""}}, "spec": {"clusterIP": "None"}});
        for (labels, fields, expected) in [
            ("", "", true),
            ("app", "", true),
            ("!app", "", false),
            ("!empty", "", false),
            ("!other", "", true),
            ("app=web,empty=", "", true),
            ("app==db", "", false),
            ("app!=db", "", true),
            ("other!=db", "", true),
            ("app in (db, web),!other", "", true),
            ("app notin (db, web)", "", false),
            ("", "metadata.name=web", true),
            ("", "metadata.name=db", false),
            ("", "spec.clusterIP!=None", false),
            ("", "spec.type!=ExternalName,metadata.name=web", true),
            ("", "metadata.namespace=", true),
        ] {
            assert_eq!(Selector::parse(labels, fields).unwrap().matches(&object), expected, "{labels} {fields}");
        }
        assert!(Selector::parse("", "spec.ports=1").is_err());
        assert!(Selector::parse("a in b", "").is_err());
    }
}

//! An object as it was written, before anybody believes it.
//!
//! Objects are not decoded into the Kubernetes API types at once: one wrong field there loses the whole list, and
//! the message names neither field nor line. A [`Tree`] accepts anything, remembers lines, and lets the readers of
//! each kind judge field by field.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A value and the line it stands on.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    /// Line in its document, from 1; 0 when there are no lines (API server).
    pub line: u32,
    /// The value.
    pub value: Value,
}

/// What a [`Tree`] holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing, `null`, `~`.
    Null,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(Box<str>),
    /// A list.
    List(Vec<Tree>),
    /// Keys and values, in the order they were written.
    Map(Vec<(Box<str>, Tree)>),
}

/// Parts that no reader looks at and that can be most of an object: they are not kept.
const UNREAD: [&str; 2] = ["managedFields", "kubectl.kubernetes.io/last-applied-configuration"];

/// What is read of a status: where a Service's load balancer is, and which addresses a Node has. The rest of a Node's
/// is most of it (images), and changes all the time.
const READ_OF_STATUS: [&str; 2] = ["loadBalancer", "addresses"];

impl Tree {
    /// The value of a key, if this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Tree> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(name, _)| &**name == key).map(|(_, tree)| tree),
            _ => None,
        }
    }

    /// The value of this key as it is kept.
    fn without_unread(mut self, key: &str) -> Self {
        if let (Value::Map(entries), "status") = (&mut self.value, key) {
            entries.retain(|(name, _)| READ_OF_STATUS.contains(&&**name));
        }
        self
    }

    /// The text of a key, if it has one.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key).map(|tree| &tree.value) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }
}

impl From<serde_json::Value> for Tree {
    fn from(json: serde_json::Value) -> Self {
        use serde_json::Value as Json;
        let value = match json {
            Json::Null => Value::Null,
            Json::Bool(truth) => Value::Bool(truth),
            Json::Number(number) => match number.as_i64() {
                Some(integer) => Value::Integer(integer),
                None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::Text(text.into()),
            Json::Array(items) => Value::List(items.into_iter().map(Tree::from).collect()),
            Json::Object(entries) => Value::Map(
                entries
                    .into_iter()
                    .filter(|(key, _)| !UNREAD.contains(&key.as_str()))
                    .map(|(key, value)| {
                        let tree = Tree::from(value).without_unread(&key);
                        (key.into(), tree)
                    })
                    .collect(),
            ),
        };
        Self { line: 0, value }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { line: u32::try_from(spanned.referenced.line()).unwrap_or(u32::MAX), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

pub(crate) struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Integer(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or(Value::Float(number as f64), Value::Integer))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or(Value::Float(number as f64), Value::Integer))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or(Value::Float(number as f64), Value::Integer))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(Key(key)) = entries.next_key()? {
            if UNREAD.contains(&&*key) {
                entries.next_value::<IgnoredAny>()?;
            } else {
                let tree = entries.next_value::<Tree>()?.without_unread(&key);
                map.push((key, tree));
            }
        }
        Ok(Value::Map(map))
    }
}

/// A key. YAML allows any scalar there; what is no text is named by how it is written.
struct Key(Box<str>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of an object, keys in brackets.
    fn kept(tree: &Tree) -> String {
        match &tree.value {
            Value::Map(entries) => {
                let entries = entries.iter().map(|(key, tree)| format!("{key}[{}]", kept(tree)));
                entries.collect::<Vec<_>>().join(" ")
            }
            _ => String::new(),
        }
    }

    #[test]
    fn of_a_status_only_what_is_read_is_kept_whoever_sends_it() {
        let text = r#"{"metadata": {"name": "a", "managedFields": [1]}, "spec": {"x": 1},
                       "status": {"images": [1], "loadBalancer": {"ingress": []}, "conditions": [1], "addresses": []}}"#;
        let expected = "metadata[name[]] spec[x[]] status[loadBalancer[ingress[]] addresses[]]";
        let yaml: Tree = serde_saphyr::from_str(text).unwrap();
        assert_eq!(kept(&yaml), expected);
        assert_eq!(yaml.get("status").unwrap().line, 2);
        // serde_json sorts keys.
        let json = Tree::from(serde_json::from_str::<serde_json::Value>(text).unwrap());
        assert_eq!(kept(&json), "metadata[name[]] spec[x[]] status[addresses[] loadBalancer[ingress[]]]");
    }

    #[test]
    fn a_status_that_is_no_map_is_kept_to_be_told_of() {
        let yaml: Tree = serde_saphyr::from_str("status: 7").unwrap();
        assert_eq!(yaml.get("status").unwrap().value, Value::Integer(7));
    }
}

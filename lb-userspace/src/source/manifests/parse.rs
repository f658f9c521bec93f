//! From the bytes of a file to objects, document by document.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use tracing::debug;

use crate::model::problem::shown;
use crate::model::tree::{Tree, Value, ValueVisitor};
use crate::model::{Kind, Object, Origin, Problem};
use crate::source::yaml::{documents, options, sentence};

/// What a file holds.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) objects: Vec<Object>,
    pub(super) problems: Vec<Problem>,
    /// True if some document or object could not even be named: what it was is unknown.
    pub(super) broken: bool,
    /// True for a file of no bytes.
    pub(super) empty: bool,
}

/// A file that is all wrong is not told of document by document.
const TOLD_PER_FILE: usize = 20;

/// Reads all documents of a file. A document that is no YAML does not spoil the others.
pub(super) fn parse(file: &Arc<str>, bytes: &[u8]) -> Parsed {
    let mut parsed = Parsed::default();
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(error) => {
            let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
            let origin = Origin { file: Some(file.clone()), document: 1, first_line: 1, line: line as u32 };
            parsed.broken(&origin, format!("not UTF-8 text (byte {}): {}", error.valid_up_to(), EXPECTED));
            return parsed;
        }
    };
    for (index, (first_line, document)) in documents(text).enumerate() {
        let origin = Origin { file: Some(file.clone()), document: index as u32 + 1, first_line, line: 0 };
        match serde_saphyr::from_str_with_options::<Root>(document, options(document.len())) {
            Ok(Root(tree)) => parsed.object(tree, origin, None),
            Err(error) => {
                let line = error.location().map_or(0, |location| location.line() as u32);
                parsed.broken(&Origin { line, ..origin }, format!("cannot be read: {}", sentence(&error)));
            }
        }
    }
    parsed
}

const EXPECTED: &str = "must be Service and EndpointSlice objects as YAML or JSON";

impl Parsed {
    pub(super) fn broken(&mut self, origin: &Origin, message: String) {
        self.problem(Problem {
            object: "manifest".to_owned(),
            location: origin.location(0),
            field: String::new(),
            value: String::new(),
            message,
        });
    }

    fn problem(&mut self, mut problem: Problem) {
        self.broken = true;
        if self.problems.len() == TOLD_PER_FILE {
            problem.message.push_str("; further problems of this file are not listed");
        }
        if self.problems.len() <= TOLD_PER_FILE {
            self.problems.push(problem);
        }
    }

    /// Takes an object, or the items of a list. Items of a `ServiceList` need not say that they are Services.
    fn object(&mut self, mut tree: Tree, origin: Origin, item_of: Option<(&str, &str)>) {
        if tree.value == Value::Null {
            return;
        }
        let origin = Origin { line: tree.line, ..origin };
        let stated = (tree.text("apiVersion"), tree.text("kind"));
        let (api_version, kind) = match (stated, item_of) {
            ((Some(api_version), Some(kind)), _) | ((None, None), Some((api_version, kind))) => {
                (api_version.to_owned(), kind.to_owned())
            }
            _ => {
                let what = match &tree.value {
                    Value::Map(_) => "a map without the texts apiVersion and kind".to_owned(),
                    Value::Text(text) => format!("the text {}", shown(text)),
                    Value::List(_) => "a list".to_owned(),
                    _ => "a single value".to_owned(),
                };
                return self.broken(&origin, format!("{what}: {EXPECTED}"));
            }
        };
        if let Some(kind) = Kind::of(&api_version, &kind) {
            match Object::identify(kind, tree, origin) {
                Ok(object) => self.objects.push(object),
                Err(problem) => self.problem(problem),
            }
            return;
        }
        match (kind.strip_suffix("List"), take_items(&mut tree)) {
            (Some(item_kind), Some(items)) if item_of.is_none() => {
                for item in items {
                    self.object(item, origin.clone(), Some((&api_version, item_kind)));
                }
            }
            (Some(_), None) if kind == "List" => {
                self.broken(&origin, "items: must be a list".to_owned());
            }
            // A file that was cut off may end in `kind: Serv`. Objects of the groups that matter here have metadata.
            _ if tree.get("metadata").is_none() && Kind::ALL.iter().any(|known| known.api_version() == api_version) => {
                self.broken(&origin, format!("{api_version} {}: metadata: missing: {EXPECTED}", shown(&kind)));
            }
            _ => debug!(place = %origin.describe(), %api_version, %kind, "ignored: not a kind that services need"),
        }
    }
}

fn take_items(tree: &mut Tree) -> Option<Vec<Tree>> {
    let Value::Map(entries) = &mut tree.value else { return None };
    let items = entries.iter_mut().find(|(key, _)| &**key == "items")?;
    match std::mem::replace(&mut items.1.value, Value::Null) {
        Value::List(items) => Some(items),
        _ => None,
    }
}

/// A document: a map or nothing. Anything else is refused at its first character, however long it is.
struct Root(Tree);

struct RootValue(Value);

struct RootVisitor;

impl<'de> Deserialize<'de> for Root {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<RootValue>::deserialize(deserializer)?;
        Ok(Self(Tree { line: spanned.referenced.line() as u32, value: spanned.value.0 }))
    }
}

impl<'de> Deserialize<'de> for RootValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RootVisitor).map(Self)
    }
}

impl<'de> Visitor<'de> for RootVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Value, A::Error> {
        ValueVisitor.visit_map(entries)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Value, A::Error> {
        Err(A::Error::custom(format_args!("a list: {EXPECTED}")))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Err(E::custom(format_args!("the text {}: {EXPECTED}", shown(text))))
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<Value, E> {
        Err(E::custom(format_args!("the value {truth}: {EXPECTED}")))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Err(E::custom(format_args!("the number {number}: {EXPECTED}")))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Err(E::custom(format_args!("the number {number}: {EXPECTED}")))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Err(E::custom(format_args!("the number {number}: {EXPECTED}")))
    }
}

#[cfg(test)]
mod tests;

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
use crate::source::file::MAX_FILE_BYTES;

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

/// Splits at lines that begin with `---`, which YAML allows nowhere inside a document. Yields the number of each
/// document's first line and its text; documents of nothing but comments and directives are no documents.
fn documents(text: &str) -> impl Iterator<Item = (u32, &str)> {
    let mut starts = vec![(1, 0)];
    let mut position = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let marker =
            line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if marker && position > 0 {
            starts.push((index as u32 + 1, position));
        }
        position += line.len();
    }
    let ends: Vec<usize> = starts.iter().skip(1).map(|(_, start)| *start).chain([text.len()]).collect();
    let documents = starts.into_iter().zip(ends).map(move |((line, start), end)| (line, &text[start..end]));
    documents.filter(|(_, document)| {
        let mut lines = document.lines().map(str::trim_end);
        lines.any(|line| {
            !(line.is_empty()
                || line == "---"
                || line == "..."
                || line.trim_start().starts_with('#')
                || line.starts_with('%'))
        })
    })
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

/// What a document may cost. Real manifests have about 12 bytes per node, the tersest ones 6; input with far more nodes
/// is made to exhaust memory (a node costs some 70 bytes). Aliases may repeat a little, not multiply.
fn options(bytes: usize) -> serde_saphyr::Options {
    let nodes = (10_000 + bytes / 5).min(6_000_000);
    let alias_limits = {
        let mut limits = serde_saphyr::options::AliasLimits::default();
        limits.max_total_replayed_events = 100_000;
        limits.max_replay_stack_depth = 16;
        limits
    };
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 10_000 + 2 * nodes,
            max_nodes: nodes,
            max_depth: 32,
            flow_nesting_limit: 32,
            max_aliases: 10_000,
            max_anchors: 10_000,
            max_recorded_anchor_events: 100_000,
            max_recorded_anchor_bytes: 8 << 20,
            max_merge_keys: 1_000,
            max_documents: 1,
            max_total_scalar_bytes: MAX_FILE_BYTES as usize,
            max_total_comment_bytes: MAX_FILE_BYTES as usize,
        },
        with_snippet: false,
        emit_comments: false,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        alias_limits: alias_limits,
    }
}

/// The parser's message on one line, without its place (it counts from the document's start) and its advice to
/// programmers.
fn sentence(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("unknown error").trim();
    let line = line.find(" at line ").map_or(line, |end| &line[..end]);
    let line = line.split(", set DuplicateKeyPolicy").next().unwrap_or(line);
    let line: String = line.chars().take(200).collect();
    match line.strip_prefix("budget breached: ") {
        Some(limit) => format!("a document is too deep (more than 32 levels) or too large; split it ({limit})"),
        None => line,
    }
}

#[cfg(test)]
mod tests;

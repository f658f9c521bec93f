//! Reading a [`Tree`] field by field: a [`Field`] knows its path and line, a [`Report`] collects what is wrong.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::object::Origin;
use super::problem::{Problem, shown};
use super::tree::{Tree, Value};

/// A place in an object, present or not.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    tree: Option<&'a Tree>,
    step: Step<'a>,
    parent: Option<&'a Field<'a>>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

/// A slice may have a thousand wrong endpoints: the first few say it all.
const TOLD_PER_OBJECT: usize = 20;

/// What is wrong with one object.
pub(crate) struct Report<'a> {
    object: String,
    origin: &'a Origin,
    pub(crate) problems: Vec<Problem>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(object: String, origin: &'a Origin) -> Self {
        Self { object, origin, problems: Vec::new() }
    }

    /// True when the object stands in a file: what is missing there was forgotten, not yet to come.
    pub(crate) fn in_file(&self) -> bool {
        self.origin.file.is_some()
    }

    /// Notes that the value of this field is wrong.
    pub(crate) fn wrong(&mut self, field: &Field<'_>, message: impl Into<String>) {
        self.wrong_part(field, field.shown(), message);
    }

    /// Notes that a part of the value of this field is wrong.
    pub(crate) fn wrong_part(&mut self, field: &Field<'_>, value: String, message: impl Into<String>) {
        let mut message = message.into();
        match self.problems.len() {
            told if told > TOLD_PER_OBJECT => return,
            TOLD_PER_OBJECT => message.push_str("; further problems of this object are not listed"),
            _ => {}
        }
        self.problems.push(Problem {
            object: self.object.clone(),
            location: self.origin.location(field.line()),
            field: field.path(),
            value,
            message,
        });
    }
}

impl<'a> Field<'a> {
    pub(crate) fn root(tree: &'a Tree) -> Self {
        Self { tree: Some(tree), step: Step::Root, parent: None }
    }

    pub(crate) fn key(&'a self, key: &'a str) -> Field<'a> {
        Field { tree: self.tree.and_then(|tree| tree.get(key)), step: Step::Key(key), parent: Some(self) }
    }

    /// True if the key is there, whatever its value: an empty or null label is a label.
    pub(crate) fn stated(&self) -> bool {
        self.tree.is_some()
    }

    /// What is there, if anything is.
    pub(crate) fn value(&self) -> Option<&'a Value> {
        self.tree.map(|tree| &tree.value)
    }

    /// True if the key is there and its value says nothing.
    pub(crate) fn null(&self) -> bool {
        self.tree.is_some_and(|tree| tree.value == Value::Null)
    }

    /// True for the number 0.
    pub(crate) fn zero(&self) -> bool {
        self.tree.is_some_and(|tree| tree.value == Value::Integer(0))
    }

    /// The line of the value, or of the nearest thing around it that has one.
    fn line(&self) -> u32 {
        match (self.tree, self.parent) {
            (Some(tree), _) if tree.line != 0 => tree.line,
            (_, Some(parent)) => parent.line(),
            _ => 0,
        }
    }

    pub(crate) fn path(&self) -> String {
        let mut path = self.parent.map(Field::path).unwrap_or_default();
        match self.step {
            Step::Root => {}
            Step::Key(key) if key.contains(['.', '/']) => {
                let _ = write!(path, "[{key}]");
            }
            Step::Key(key) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
            }
            Step::Index(index) => {
                let _ = write!(path, "[{index}]");
            }
        }
        path
    }

    fn shown(&self) -> String {
        match self.tree.map(|tree| &tree.value) {
            None | Some(Value::Null) => "missing".to_owned(),
            Some(Value::Bool(truth)) => truth.to_string(),
            Some(Value::Integer(number)) => number.to_string(),
            Some(Value::Float(number)) => number.to_string(),
            Some(Value::Text(text)) => shown(text),
            Some(Value::List(items)) => format!("a list of {}", items.len()),
            Some(Value::Map(_)) => "a map".to_owned(),
        }
    }

    /// Text; missing is fine. Anything else is noted, with what is allowed. The outer `Err` says "noted".
    pub(crate) fn text(&self, report: &mut Report<'_>, allowed: &str) -> Result<Option<&'a str>, Noted> {
        match self.tree.map(|tree| &tree.value) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => {
                report.wrong(self, allowed);
                Err(Noted)
            }
        }
    }

    /// A truth value; missing is fine.
    pub(crate) fn truth(&self, report: &mut Report<'_>) -> Result<Option<bool>, Noted> {
        match self.tree.map(|tree| &tree.value) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(truth)) => Ok(Some(*truth)),
            Some(_) => {
                report.wrong(self, "must be true or false");
                Err(Noted)
            }
        }
    }

    /// A port number; missing is fine, 0 is not.
    pub(crate) fn port(&self, report: &mut Report<'_>) -> Result<Option<u16>, Noted> {
        match self.tree.map(|tree| &tree.value) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Integer(number)) => {
                if let Ok(port @ 1..) = u16::try_from(*number) {
                    return Ok(Some(port));
                }
            }
            Some(_) => {}
        }
        report.wrong(self, "must be a number from 1 to 65535");
        Err(Noted)
    }

    /// A port number; missing and 0 both say that there is none.
    pub(crate) fn optional_port(&self, report: &mut Report<'_>) -> Result<Option<u16>, Noted> {
        if self.zero() { Ok(None) } else { self.port(report) }
    }

    /// A whole number; missing is fine.
    pub(crate) fn number(&self, report: &mut Report<'_>, range: RangeInclusive<u32>) -> Result<Option<u32>, Noted> {
        match self.tree.map(|tree| &tree.value) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Integer(number)) => {
                if let Some(number) = u32::try_from(*number).ok().filter(|number| range.contains(number)) {
                    return Ok(Some(number));
                }
            }
            Some(_) => {}
        }
        report.wrong(self, format!("must be a number from {} to {}", range.start(), range.end()));
        Err(Noted)
    }

    /// The items of a list; a missing list is empty, anything else is noted and empty.
    pub(crate) fn items(&'a self, report: &mut Report<'_>) -> Result<impl Iterator<Item = Field<'a>> + use<'a>, Noted> {
        let items: &'a [Tree] = match self.tree.map(|tree| &tree.value) {
            None | Some(Value::Null) => &[],
            Some(Value::List(items)) => items,
            Some(_) => {
                report.wrong(self, "must be a list");
                return Err(Noted);
            }
        };
        Ok(items.iter().enumerate().map(move |(index, tree)| Field {
            tree: Some(tree),
            step: Step::Index(index),
            parent: Some(self),
        }))
    }

    /// True if this is a map; otherwise notes it.
    pub(crate) fn is_map(&self, report: &mut Report<'_>) -> bool {
        let map = matches!(self.tree.map(|tree| &tree.value), Some(Value::Map(_)));
        if !map {
            report.wrong(self, "must be a map of fields");
        }
        map
    }

    /// Labels or annotations: a map; missing is fine. Anything else is noted.
    pub(crate) fn entries(&self, report: &mut Report<'_>) -> Result<(), Noted> {
        self.map_or_missing(report, "must be a map of texts")
    }

    /// A map of fields; missing is fine. Anything else is noted.
    pub(crate) fn fields(&self, report: &mut Report<'_>) -> Result<(), Noted> {
        self.map_or_missing(report, "must be a map of fields")
    }

    fn map_or_missing(&self, report: &mut Report<'_>, allowed: &str) -> Result<(), Noted> {
        match self.tree.map(|tree| &tree.value) {
            None | Some(Value::Null | Value::Map(_)) => Ok(()),
            Some(_) => {
                report.wrong(self, allowed);
                Err(Noted)
            }
        }
    }
}

/// The value was wrong, and the report says so already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noted;

//! From the bytes of a file to rules, line by line.

use std::sync::Arc;

use super::command::{self, Failure};
use super::table::Table;
use super::words::{Wrong, words};
use crate::model::problem::shown;
use crate::model::{Problem, RuleService};

/// What a file holds.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) services: Vec<RuleService>,
    pub(super) problems: Vec<Problem>,
    /// True if every line could be read and done.
    pub(super) whole: bool,
}

/// A file that is all wrong is not told of line by line.
const TOLD_PER_FILE: usize = 20;

/// Does what the lines of a file say, one after another. A wrong line does not spoil the others; what `before`, an
/// earlier version of the file, held and this one lacks then stays.
pub(super) fn parse(file: &Arc<str>, bytes: &[u8], before: &[RuleService]) -> Parsed {
    let mut table = Table::default();
    let mut problems = Problems { file, list: Vec::new() };
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    for (number, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        if let Err(failure) = read(&mut table, number, line) {
            if let (true, Some(service)) = (failure.adds, failure.service) {
                table.wanted(number, service);
            }
            problems.add(number, failure);
        }
    }
    let whole = problems.list.is_empty();
    let kept = if whole { &[][..] } else { before };
    Parsed { services: table.finish(file, kept), problems: problems.list, whole }
}

fn read(table: &mut Table, number: u32, line: &[u8]) -> Result<(), Failure> {
    let failure = |wrong| Failure { wrong, service: None, adds: false };
    let text = std::str::from_utf8(line).map_err(|_| {
        let value = shown(String::from_utf8_lossy(line).trim_end());
        failure(Wrong { field: "", value, message: "is no UTF-8 text".to_owned() })
    })?;
    // Files are written in blocks, which seldom end where a line does.
    if !text.ends_with('\n') && words(text).next().is_some() {
        let message = "the last line does not end: the file may be half written; end it with a newline";
        return Err(failure(Wrong { field: "", value: shown(text), message: message.to_owned() }));
    }
    let Some(command) = command::read(text)? else { return Ok(()) };
    let service = command.service();
    table.apply(number, command).map_err(|wrong| Failure { wrong, service, adds: false })
}

struct Problems<'a> {
    file: &'a str,
    list: Vec<Problem>,
}

impl Problems<'_> {
    fn add(&mut self, line: u32, Failure { wrong, service, .. }: Failure) {
        let mut message = wrong.message;
        match self.list.len() {
            told if told > TOLD_PER_FILE => return,
            TOLD_PER_FILE => message.push_str("; further problems of this file are not listed"),
            _ => {}
        }
        self.list.push(Problem {
            object: service.map_or_else(|| "rule".to_owned(), |service| format!("rule {service}")),
            location: Some(format!("{}:{line}", self.file)),
            field: wrong.field.to_owned(),
            value: wrong.value,
            message,
        });
    }
}

#[cfg(test)]
mod tests;

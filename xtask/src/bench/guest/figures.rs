//! What `bpvs-guest cost` says, and the tables of it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

/// The least that bpvs is to be: beyond plain routing, a request, a reply and a new flow at any number of services.
const TARGETS: [i64; 3] = [900, 900, 1_800];

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    way: String,
    /// `plain`, `services`, `passing` (what is for no service) or `schedulers`.
    case: String,
    services: u64,
    servers: u64,
    scheduler: String,
    request: Option<i64>,
    reply: Option<i64>,
    new: i64,
}

impl Figure {
    fn read(value: &Value) -> Option<Self> {
        let text = |name: &str| Some(value.get(name)?.as_str()?.to_owned());
        let number = |name: &str| value.get(name)?.as_u64();
        let instructions = |name: &str| value.get(name)?.as_i64();
        Some(Self {
            way: text("way")?,
            case: text("case")?,
            services: number("services")?,
            servers: number("servers")?,
            scheduler: text("scheduler")?,
            request: instructions("request"),
            reply: instructions("reply"),
            new: instructions("new")?,
        })
    }

    /// Request, reply, new flow.
    fn costs(&self) -> [Option<i64>; 3] {
        [self.request, self.reply, Some(self.new)]
    }
}

/// What was heard of a guest.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// Every figure.
    pub(crate) figures: Vec<Figure>,
    /// The same as they were said.
    pub(crate) lines: Vec<Value>,
    /// It said that there is no more.
    pub(crate) is_complete: bool,
}

impl Heard {
    /// A line of the console; what it says, for who waits.
    pub(crate) fn hear(&mut self, line: &str) -> Option<String> {
        let said = line.strip_prefix("cost ")?;
        if said == "end" {
            self.is_complete = true;
            return None;
        }
        let Ok(value) = serde_json::from_str::<Value>(said) else { return Some(said.to_owned()) };
        let Some(figure) = Figure::read(&value) else { return Some(format!("no figure: {said}")) };
        let costs = figure.costs().map(|cost| cost.map_or_else(|| "-".to_owned(), |cost| cost.to_string()));
        let Figure { case, services, servers, scheduler, .. } = &figure;
        let told = format!("{case}, {services} services, {scheduler} of {servers}: {}", costs.join(" "));
        self.figures.push(figure);
        self.lines.push(value);
        Some(told)
    }
}

/// Both tables: by number of services, and by scheduler and number of servers.
pub(crate) fn tables(figures: &[Figure]) -> Result<String> {
    let mut plain = BTreeMap::new();
    for figure in figures.iter().filter(|figure| figure.case == "plain") {
        plain.insert(figure.way.as_str(), figure);
    }
    let mut text = "| | services | request | reply | new flow |\n|---|---|---|---|---|\n".to_owned();
    for figure in figures.iter().filter(|figure| figure.case != "schedulers") {
        let cells = if figure.case == "plain" {
            figure.costs().map(|cost| cost.map_or_else(|| "-".to_owned(), |cost| cost.to_string()))
        } else {
            beyond(figure, &plain)?.map(|cost| cost.map_or_else(|| "-".to_owned(), |cost| format!("{cost:+}")))
        };
        let (name, services) = match figure.case.as_str() {
            "plain" => (format!("plain routing, guest of {}", figure.way), "-".to_owned()),
            "passing" => (format!("{}, for no service", figure.way), figure.services.to_string()),
            _ => (figure.way.clone(), figure.services.to_string()),
        };
        text += &format!("| {name} | {services} | {} |\n", cells.join(" | "));
    }
    let [request, reply, new] = TARGETS;
    text += &format!("| target for bpvs | any | +{request} | +{reply} | +{new} |\n");
    text += &by_scheduler(figures, &plain)?;
    Ok(text)
}

/// What a figure has beyond plain routing in the same guest.
fn beyond(figure: &Figure, plain: &BTreeMap<&str, &Figure>) -> Result<[Option<i64>; 3]> {
    let plain = plain.get(figure.way.as_str());
    let plain = plain.with_context(|| format!("the guest of {} told nothing of plain routing", figure.way))?.costs();
    let mut costs = figure.costs();
    for (cost, plain) in costs.iter_mut().zip(plain) {
        *cost = cost.zip(plain).map(|(cost, plain)| cost - plain);
    }
    Ok(costs)
}

/// New flows: a row for each scheduler, a column for each way and number of servers.
fn by_scheduler(figures: &[Figure], plain: &BTreeMap<&str, &Figure>) -> Result<String> {
    let (mut rows, mut columns) = (Vec::new(), Vec::new());
    let mut cells = BTreeMap::new();
    for figure in figures.iter().filter(|figure| figure.case == "schedulers") {
        let column = (figure.way.as_str(), figure.servers);
        if !rows.contains(&figure.scheduler.as_str()) {
            rows.push(&figure.scheduler);
        }
        if !columns.contains(&column) {
            columns.push(column);
        }
        cells.insert((figure.scheduler.as_str(), column), beyond(figure, plain)?[2]);
    }
    if rows.is_empty() {
        return Ok(String::new());
    }
    let names: Vec<String> = columns.iter().map(|(way, servers)| format!("{way}, {servers}")).collect();
    let mut text = format!("\n| new flow, servers | {} |\n|---{}|\n", names.join(" | "), "|---".repeat(names.len()));
    for row in rows {
        let cell = |column: &(&str, u64)| {
            let cost = cells.get(&(row, *column)).copied().flatten();
            cost.map_or_else(|| "-".to_owned(), |cost| format!("{cost:+}"))
        };
        text += &format!("| {row} | {} |\n", columns.iter().map(cell).collect::<Vec<_>>().join(" | "));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(lines: &[&str]) -> Heard {
        let mut heard = Heard::default();
        lines.iter().for_each(|line| drop(heard.hear(line)));
        heard
    }

    const PLAIN: &str = r#"cost {"way":"bpvs","case":"plain","services":0,"servers":1,"scheduler":"none","request":9000,"reply":9100,"new":9200}"#;
    const SERVICES: &str = r#"cost {"way":"bpvs","case":"services","services":100,"servers":5,"scheduler":"rr","request":9800,"reply":9950,"new":8000}"#;
    const LC: &str = r#"cost {"way":"bpvs","case":"schedulers","services":1,"servers":100,"scheduler":"lc","request":null,"reply":null,"new":10200}"#;

    #[test]
    fn what_is_beyond_plain_routing_is_told_with_its_sign() {
        let heard = heard(&["noise", PLAIN, SERVICES, "cost wrong it broke", LC, "cost end"]);
        assert!(heard.is_complete && heard.figures.len() == 3 && heard.lines.len() == 3);
        let text = tables(&heard.figures).unwrap();
        for line in [
            "| plain routing, guest of bpvs | - | 9000 | 9100 | 9200 |",
            "| bpvs | 100 | +800 | +850 | -1200 |",
            "| new flow, servers | bpvs, 100 |",
            "| lc | +1000 |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn a_guest_that_stops_halfway_is_not_complete() {
        assert!(!heard(&[PLAIN]).is_complete);
        assert_eq!(heard(&["cost wrong: no port"]).hear("cost wrong: no port").unwrap(), "wrong: no port");
        let error = tables(&heard(&[SERVICES]).figures).unwrap_err().to_string();
        assert_eq!(error, "the guest of bpvs told nothing of plain routing");
    }
}

//! The result: a line for each step, a column for each kernel.

use super::outcome::Outcome;

/// The table.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut steps: Vec<&str> = Vec::new();
    for name in outcomes.iter().flat_map(|outcome| outcome.steps.names()) {
        if !steps.contains(&name) {
            steps.push(name);
        }
    }
    let mut rows = vec![row("", outcomes, |outcome| outcome.release.clone())];
    for step in steps {
        rows.push(row(step, outcomes, |outcome| {
            outcome.steps.right(step).map_or("-", |right| if right { "ok" } else { "WRONG" }).to_owned()
        }));
    }
    rows.push(row("all", outcomes, |outcome| if outcome.is_right() { "ok" } else { "WRONG" }.to_owned()));
    rows.push(row("seconds", outcomes, |outcome| format!("{:.0}", outcome.ended.took.as_secs_f64())));
    rows.concat()
}

fn row(name: &str, outcomes: &[Outcome], cell: impl Fn(&Outcome) -> String) -> String {
    let mut line = format!("{name:14}");
    for outcome in outcomes {
        line += &format!("{:18}", cell(outcome));
    }
    line.trim_end().to_owned() + "\n"
}

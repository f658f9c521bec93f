//! The result: a line for each step, a column for each kernel.

use super::machine::Outcome;

/// The table.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut steps: Vec<&str> = Vec::new();
    for name in outcomes.iter().flat_map(|outcome| &outcome.steps) {
        if !steps.contains(&name.as_str()) {
            steps.push(name);
        }
    }
    let mut rows = vec![row("", outcomes, |outcome| outcome.release.clone())];
    for step in steps {
        rows.push(row(step, outcomes, |outcome| {
            let done = outcome.done.iter().find(|done| done.name == step);
            done.map_or("-", |done| if done.right { "ok" } else { "WRONG" }).to_owned()
        }));
    }
    rows.push(row("all", outcomes, |outcome| if outcome.is_right() { "ok" } else { "WRONG" }.to_owned()));
    rows.push(row("seconds", outcomes, |outcome| format!("{:.0}", outcome.took.as_secs_f64())));
    rows.concat()
}

fn row(name: &str, outcomes: &[Outcome], cell: impl Fn(&Outcome) -> String) -> String {
    let mut line = format!("{name:12}");
    for outcome in outcomes {
        line += &format!("{:18}", cell(outcome));
    }
    line.trim_end().to_owned() + "\n"
}

//! YAML that anybody may write: documents one by one, at a price that follows their size, and errors in one sentence.

use super::file::MAX_FILE_BYTES;

/// Splits at lines that begin with `---`, which YAML allows nowhere inside a document. Yields the number of each
/// document's first line and its text; documents of nothing but comments and directives are no documents.
pub(crate) fn documents(text: &str) -> impl Iterator<Item = (u32, &str)> {
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

/// What a document may cost. Real manifests have about 12 bytes per node, the tersest ones 6; input with far more nodes
/// is made to exhaust memory (a node costs some 70 bytes). Aliases may repeat a little, not multiply.
pub(crate) fn options(bytes: usize) -> serde_saphyr::Options {
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
pub(crate) fn sentence(error: &serde_saphyr::Error) -> String {
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

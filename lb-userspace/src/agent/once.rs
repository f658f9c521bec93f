//! Says each thing once while it lasts.

use std::collections::BTreeSet;

/// Tells which of the messages that stand now did not stand the last time.
#[derive(Debug, Default)]
pub struct Once {
    told: BTreeSet<String>,
}

impl Once {
    /// Takes all messages that stand now and returns the new ones. What is gone meanwhile is new when it comes back.
    pub fn news(&mut self, standing: impl IntoIterator<Item = String>) -> Vec<String> {
        let standing: BTreeSet<String> = standing.into_iter().collect();
        let news = standing.difference(&self.told).cloned().collect();
        self.told = standing;
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_news_when_it_did_not_stand_before() {
        let mut once = Once::default();
        let messages = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(once.news(messages(&["a", "b", "a"])), ["a", "b"]);
        assert_eq!(once.news(messages(&["b", "c"])), ["c"]);
        assert_eq!(once.news(messages(&["a", "b"])), ["a"]);
    }
}

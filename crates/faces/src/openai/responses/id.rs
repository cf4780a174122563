//! Ids of responses.

use std::fmt;

use protocol::id::RunId;
use uuid::Uuid;

/// A response: the events of a run after a sequence, up to its end or to a question that the run waits for. Text
/// form: `resp_{run}` or `resp_{run}_{after}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseId {
    pub(super) run: RunId,
    /// 0: from the first event.
    pub(super) after: u64,
}

const PREFIX: &str = "resp_";

impl ResponseId {
    /// `None`: no id of this form.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix(PREFIX)?;
        let (run, after) = match text.split_once('_') {
            Some((run, after)) => (run, after.parse().ok().filter(|after| *after > 0)?),
            None => (text, 0),
        };
        let run = Uuid::try_parse(run)
            .ok()
            .filter(|id| id.simple().to_string() == run)?;
        let id = Self {
            run: RunId(run),
            after,
        };
        // One text for each response: no leading zeros or signs.
        (id.key() == text).then_some(id)
    }

    /// The id without its prefix, for the ids of its items.
    pub(super) fn key(self) -> String {
        let run = self.run.0.simple();
        match self.after {
            0 => run.to_string(),
            after => format!("{run}_{after}"),
        }
    }
}

impl fmt::Display for ResponseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_one_text_form() {
        let run = "01a1ffb1ba007c3a9b1e5f0c2a7d4e61";
        for after in [0, 7] {
            let id = ResponseId {
                run: RunId(Uuid::try_parse(run).unwrap()),
                after,
            };
            assert_eq!(ResponseId::parse(&id.to_string()), Some(id));
        }
        for wrong in [
            run.to_owned(),
            "resp_1".to_owned(),
            format!("resp_{run}_"),
            format!("resp_{run}_0"),
            format!("resp_{run}_07"),
            format!("resp_{run}_+7"),
            format!("resp_{}", run.to_uppercase()),
        ] {
            assert_eq!(ResponseId::parse(&wrong), None, "{wrong}");
        }
    }
}

//! Results in a complete body: a document, a list, or a sequence.

use std::borrow::Cow;

use domain::json_repair::repair_json_text;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::value::RawValue;

use super::deviation::Deviation;
use super::{ReaderItem, TooLarge, without_mark};

/// A body that is read to its end before its first result.
pub(super) struct DocumentReader {
    pub(super) body: Vec<u8>,
    /// Maximum bytes of the body.
    pub(super) max_bytes: usize,
    pub(super) max_results: u64,
}

impl DocumentReader {
    pub(super) fn push(&mut self, chunk: &[u8]) -> Result<(), TooLarge> {
        if self.body.len() + chunk.len() > self.max_bytes {
            return Err(TooLarge::Document);
        }
        self.body.extend_from_slice(chunk);
        Ok(())
    }

    /// The results of the body, and its deviations from `{"results": […]}`. An unreadable body becomes one
    /// result, whose rejection shows it.
    pub(super) fn finish(&mut self, items: &mut Vec<ReaderItem>) -> Vec<Deviation> {
        let body = without_mark(std::mem::take(&mut self.body));
        let mut deviations = Vec::new();
        let mut found = self.results(&body, &mut deviations);
        if found.is_none()
            && let Cow::Owned(repaired) = repair_json_text(&body)
        {
            found = self.results(&repaired, &mut deviations);
            deviations.push(Deviation::Text);
        }
        match found {
            Some(results) => items.extend(results),
            None => items.push(ReaderItem::Result(body)),
        }
        deviations
    }

    fn results(&self, body: &[u8], deviations: &mut Vec<Deviation>) -> Option<Vec<ReaderItem>> {
        if let Some(results) = read_batch(body, self.max_results) {
            return Some(results);
        }
        let listed = read_list(body, self.max_results);
        let results = listed.or_else(|| read_sequence(body, self.max_results))?;
        deviations.push(Deviation::OtherFraming);
        Some(results)
    }
}

/// Results of a complete answer, at most one more than a run may send.
struct ResultBatch {
    max_results: u64,
    items: Vec<ReaderItem>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum ResultBatchField {
    Results,
    #[serde(other)]
    Other,
}

impl<'de> Visitor<'de> for &mut ResultBatch {
    type Value = bool;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object with a list `results`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut found = false;
        while let Some(field) = map.next_key()? {
            match field {
                ResultBatchField::Results => {
                    map.next_value_seed(&mut *self)?;
                    found = true;
                }
                ResultBatchField::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        while (self.items.len() as u64) <= self.max_results {
            let Some(raw) = list.next_element::<&RawValue>()? else {
                return Ok(true);
            };
            self.items
                .push(ReaderItem::Result(raw.get().as_bytes().to_vec()));
        }
        // The validator ends the run at one result beyond the limit; further ones cost no memory.
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(true)
    }
}

impl<'de> DeserializeSeed<'de> for &mut ResultBatch {
    type Value = bool;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

/// The results of `{"results": […]}`; `None`: the body is something else.
pub(super) fn read_batch(body: &[u8], max_results: u64) -> Option<Vec<ReaderItem>> {
    let mut batch = ResultBatch {
        max_results,
        items: Vec::new(),
    };
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let found = deserializer.deserialize_map(&mut batch).ok()?;
    deserializer.end().ok()?;
    found.then_some(batch.items)
}

/// The results of a bare list.
fn read_list(body: &[u8], max_results: u64) -> Option<Vec<ReaderItem>> {
    let mut batch = ResultBatch {
        max_results,
        items: Vec::new(),
    };
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    deserializer.deserialize_seq(&mut batch).ok()?;
    deserializer.end().ok()?;
    Some(batch.items)
}

/// The results of a sequence of at least two documents, with optional white space between them.
fn read_sequence(body: &[u8], max_results: u64) -> Option<Vec<ReaderItem>> {
    let values = serde_json::Deserializer::from_slice(body).into_iter::<&RawValue>();
    let max_results = usize::try_from(max_results).unwrap_or(usize::MAX);
    let mut items = Vec::new();
    for value in values {
        if items.len() > max_results {
            break;
        }
        items.push(ReaderItem::Result(value.ok()?.get().as_bytes().to_vec()));
    }
    (items.len() > 1).then_some(items)
}

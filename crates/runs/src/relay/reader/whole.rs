//! A whole body: results in a document, in a list, or one behind the other.

use std::borrow::Cow;

use domain::json_repair::repair_json_text;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::value::RawValue;

use super::deviation::Deviation;
use super::{Item, TooLarge, without_mark};

/// A body that is read to its end before its first result is.
pub(super) struct Whole {
    pub(super) body: Vec<u8>,
    /// Bytes of the body.
    pub(super) most: usize,
    pub(super) most_results: u64,
}

impl Whole {
    pub(super) fn push(&mut self, chunk: &[u8]) -> Result<(), TooLarge> {
        if self.body.len() + chunk.len() > self.most {
            return Err(TooLarge::Document);
        }
        self.body.extend_from_slice(chunk);
        Ok(())
    }

    /// The results of the body, and how it departs from `{"results": […]}`. A body that is none of what is read is one
    /// result: its rejection shows it.
    pub(super) fn finish(&mut self, items: &mut Vec<Item>) -> Vec<Deviation> {
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
            None => items.push(Item::Result(body)),
        }
        deviations
    }

    fn results(&self, body: &[u8], deviations: &mut Vec<Deviation>) -> Option<Vec<Item>> {
        if let Some(results) = read_batch(body, self.most_results) {
            return Some(results);
        }
        let listed = read_list(body, self.most_results);
        let results = listed.or_else(|| read_sequence(body, self.most_results))?;
        deviations.push(Deviation::OtherFraming);
        Some(results)
    }
}

/// The results of a whole answer, no more of them than a run may send.
struct Batch {
    most: u64,
    items: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum BatchField {
    Results,
    #[serde(other)]
    Other,
}

impl<'de> Visitor<'de> for &mut Batch {
    type Value = bool;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object with a list `results`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut found = false;
        while let Some(field) = map.next_key()? {
            match field {
                BatchField::Results => {
                    map.next_value_seed(&mut *self)?;
                    found = true;
                }
                BatchField::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        while (self.items.len() as u64) <= self.most {
            let Some(raw) = list.next_element::<&RawValue>()? else {
                return Ok(true);
            };
            self.items.push(Item::Result(raw.get().as_bytes().to_vec()));
        }
        // One more than a run may send is kept: the judge ends the run at it.
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(true)
    }
}

impl<'de> DeserializeSeed<'de> for &mut Batch {
    type Value = bool;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

/// The results of `{"results": […]}`; `None` when the body is something else.
pub(super) fn read_batch(body: &[u8], most: u64) -> Option<Vec<Item>> {
    let mut batch = Batch {
        most,
        items: Vec::new(),
    };
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let found = deserializer.deserialize_map(&mut batch).ok()?;
    deserializer.end().ok()?;
    found.then_some(batch.items)
}

/// A bare list of results.
fn read_list(body: &[u8], most: u64) -> Option<Vec<Item>> {
    let mut batch = Batch {
        most,
        items: Vec::new(),
    };
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    deserializer.deserialize_seq(&mut batch).ok()?;
    deserializer.end().ok()?;
    Some(batch.items)
}

/// Results one behind the other, at least two; white space may stand between.
fn read_sequence(body: &[u8], most: u64) -> Option<Vec<Item>> {
    let values = serde_json::Deserializer::from_slice(body).into_iter::<&RawValue>();
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut items = Vec::new();
    for value in values {
        if items.len() > most {
            break;
        }
        items.push(Item::Result(value.ok()?.get().as_bytes().to_vec()));
    }
    (items.len() > 1).then_some(items)
}

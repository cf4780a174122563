//! Digests of accepted results: they distinguish a repeated call from another result with the same number.

use std::collections::HashMap;

use domain::canonical::canonical_json;
use domain::json_repair::repair_json_text;
use sea_orm::{
    ColumnTrait, DatabaseTransaction, EntityTrait, QueryFilter, QueryOrder, QuerySelect,
};
use serde_json::Value;

use super::AppendResults;
use crate::entity::run_appends;
use crate::error::{StoreError, signed, unsigned};
use secrets::digest::sha256_hex;

/// Length of a digest in hex digits, enough to avoid accidental collisions.
const DIGEST_LENGTH: usize = 16;

/// Digest of a result, equal for the same result in another serialisation. Ignores member order, white space and
/// `timestamp`.
pub fn result_digest(raw: &str) -> String {
    let text = repair_json_text(raw.as_bytes());
    let mut digest = match serde_json::from_slice::<Value>(&text) {
        Ok(mut result) => {
            if let Value::Object(members) = &mut result {
                // A runner's retry may carry a new time for the same result.
                members.remove("timestamp");
            }
            sha256_hex(canonical_json(&result).as_bytes())
        }
        // No JSON: the validation rejects it later, and its bytes identify a repeated call.
        Err(_) => sha256_hex(raw.as_bytes()),
    };
    digest.truncate(DIGEST_LENGTH);
    digest
}

impl AppendResults {
    /// The first result up to `through` that differs from the accepted one.
    pub(super) async fn conflict(
        &self,
        tx: &DatabaseTransaction,
        through: u64,
    ) -> Result<Option<u64>, StoreError> {
        let again = || {
            let results = self.results.iter().zip(&self.digests);
            results.filter(|((number, _), _)| *number <= through)
        };
        let numbers = || again().map(|((number, _), _)| *number);
        let Some((first, last)) = numbers().min().zip(numbers().max()) else {
            return Ok(None);
        };
        // A call has at most 1,000 results, so the rows between have as many; rows at the edges may hold more.
        let rows: Vec<(i64, String)> = run_appends::Entity::find()
            .select_only()
            .column(run_appends::Column::FirstSequence)
            .column(run_appends::Column::Digests)
            .filter(run_appends::Column::RunId.eq(self.run_id.to_string()))
            .filter(run_appends::Column::LastSequence.gte(signed(first)))
            .filter(run_appends::Column::FirstSequence.lte(signed(last)))
            .order_by_asc(run_appends::Column::FirstSequence)
            .into_tuple()
            .all(tx)
            .await?;
        let mut accepted = HashMap::new();
        for (begins, digests) in &rows {
            let run = self.run_id.to_string();
            let begins = unsigned("run_appends.first_sequence", &run, *begins)?;
            let digests = digests.as_bytes().chunks(DIGEST_LENGTH);
            accepted.extend((begins..).zip(digests));
        }
        let is_other = |number: u64, digest: &str| {
            let stored = accepted.get(&number);
            stored.is_some_and(|stored| *stored != digest.as_bytes())
        };
        Ok(again().find_map(|((number, _), digest)| is_other(*number, digest).then_some(*number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_results_have_equal_digests() {
        let one = r#"{"run_id":"r","type":"x","data":{"a":1,"b":"é"},"sequence":1,"timestamp":5}"#;
        let anew =
            r#"{ "sequence": 1, "type": "x", "run_id": "r", "data": {"b": "\u00e9", "a": 1} }"#;
        assert_eq!(result_digest(one), result_digest(anew));
        assert_eq!(result_digest(one).len(), DIGEST_LENGTH);
        for other in [
            one.replace("\"a\":1", "\"a\":2"),
            one.replace("\"x\"", "\"y\""),
            one.replace("\"é\"", "\"\\ud800\""),
            one.replace('}', ""),
        ] {
            assert_ne!(result_digest(one), result_digest(&other), "{other}");
        }
    }
}

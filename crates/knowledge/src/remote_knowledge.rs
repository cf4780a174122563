//! Remote knowledge bases with Dify's External Knowledge API: one `POST {base_url}/retrieval` with a bearer key.

use std::time::Duration;

use domain::json_text::check_json_text;
use domain::knowledge::filter::Filters;
use egress::Response;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, StatusCode};
use protocol::JsonObject;
use protocol::knowledge::RetrievalResultEntry;
use protocol::message::ContentElement;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use egress::Egress;
use egress::redact::Redactor;
use egress::upstream::UpstreamError;

/// Timeout of a request, including its response.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a response, and of the part read of an error response.
const MAX_BYTES: usize = 4 * 1024 * 1024;
const ERROR_BYTES: usize = 16 * 1024;

/// A remote knowledge base.
pub struct RemoteBase {
    url: Url,
    authorization: HeaderValue,
    redactor: Redactor,
    knowledge_id: String,
    score_threshold: Option<f64>,
}

/// Address of a remote base, with a validated URL.
pub struct RemoteAddress {
    pub base_url: Url,
    pub api_key: SecretString,
    pub knowledge_id: String,
    /// Minimum score of a passage, 0 to 1.
    pub score_threshold: Option<f64>,
}

/// The API key is not a valid header value.
#[derive(Debug, thiserror::Error)]
#[error("holds characters that no header may have")]
pub struct UnusableApiKey;

#[derive(Deserialize)]
struct RetrievalResponse {
    records: Vec<Record>,
}

#[derive(Deserialize)]
struct Record {
    content: String,
    score: f64,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    metadata: Option<JsonObject>,
}

impl RemoteBase {
    pub fn new(address: RemoteAddress) -> Result<Self, UnusableApiKey> {
        let mut url = address.base_url;
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("retrieval");
        }
        let bearer = format!("Bearer {}", address.api_key.expose_secret());
        let mut authorization = HeaderValue::from_str(&bearer).map_err(|_| UnusableApiKey)?;
        authorization.set_sensitive(true);
        Ok(Self {
            url,
            authorization,
            redactor: Redactor::new([address.api_key]),
            knowledge_id: address.knowledge_id,
            score_threshold: address.score_threshold,
        })
    }

    /// Returns the closest passages, best first.
    pub async fn retrieve(
        &self,
        egress: &Egress,
        query: &str,
        top: usize,
        filters: &Filters,
    ) -> Result<Vec<RetrievalResultEntry>, UpstreamError> {
        let body = self.body(query, top, filters)?;
        let sent = tokio::time::timeout(TIMEOUT, self.ask(egress, &body)).await;
        let answer = sent.map_err(|_| UpstreamError::Timeout)??;
        // Check nesting and size before parsing: a small text can expand to a large value.
        check_json_text(&answer)
            .map_err(|fault| UpstreamError::Malformed(format!("it {fault}")))?;
        // The parser quotes the response, which may echo the key.
        let answer = self.read(&answer).map_err(|error| {
            let detail = error.to_string();
            UpstreamError::Malformed(self.redactor.redact(&detail).into_owned())
        })?;
        let least = self.score_threshold.unwrap_or(f64::MIN);
        let mut records = answer.records;
        // Servers may ignore the threshold and the limit, and `NaN` has no order.
        records.retain(|record| record.score.is_finite() && record.score >= least);
        records.sort_by(|one, other| other.score.total_cmp(&one.score));
        records.truncate(top);
        Ok(records
            .into_iter()
            .map(|record| self.entry(record))
            .collect())
    }

    // Redacts the operator's key, since a base may echo it.
    fn read(&self, answer: &[u8]) -> serde_json::Result<RetrievalResponse> {
        let mut answer = serde_json::from_slice(answer)?;
        self.redactor.redact_registered_in(&mut answer);
        serde_json::from_value(answer)
    }

    fn body(&self, query: &str, top: usize, filters: &Filters) -> Result<Value, UpstreamError> {
        let mut body = json!({
            "knowledge_id": self.knowledge_id,
            "query": query,
            "retrieval_setting": {
                "top_k": top,
                "score_threshold": self.score_threshold.unwrap_or(0.0),
            },
        });
        if let Some(condition) = metadata_condition(filters)? {
            body["metadata_condition"] = condition;
        }
        Ok(body)
    }

    async fn ask(&self, egress: &Egress, body: &Value) -> Result<Vec<u8>, UpstreamError> {
        let request = egress
            .request(Method::POST, &self.url)?
            .header(AUTHORIZATION, self.authorization.clone())
            .header(ACCEPT, "application/json")
            // A compressed response could expand beyond the size limit.
            .header(ACCEPT_ENCODING, "identity")
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string());
        let mut response = egress.send(request).await?;
        let status = response.status();
        if status == StatusCode::OK {
            return read(&mut response, MAX_BYTES).await;
        }
        let headers = response.headers().clone();
        // A body that breaks off still leaves the status, which is the more important part.
        let error_body = read(&mut response, ERROR_BYTES).await.unwrap_or_default();
        let message = message_in(&error_body);
        let message = self.redactor.redact(&message);
        Err(UpstreamError::of_status(status, &headers, &message))
    }

    /// The base returns no ids. Equal passages get equal ids.
    fn entry(&self, record: Record) -> RetrievalResultEntry {
        let hash = store::sha256_hex(record.content.as_bytes());
        let mut metadata = record.metadata.unwrap_or_default();
        if let Some(title) = &record.title {
            metadata.entry("name").or_insert_with(|| json!(title));
            metadata.entry("source").or_insert_with(|| json!(title));
        }
        RetrievalResultEntry {
            id: format!(
                "{}#{}",
                self.knowledge_id,
                hash.get(..16).unwrap_or_default()
            ),
            content: vec![ContentElement::text(record.content)],
            metadata,
            distance: 1.0 - record.score,
            score: Some(record.score),
        }
    }
}

async fn read(response: &mut Response, limit: usize) -> Result<Vec<u8>, UpstreamError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(egress::EgressError::from)? {
        bytes.extend_from_slice(&chunk);
        // Check each chunk: `content-length` may be missing or wrong.
        if bytes.len() > limit {
            return Err(UpstreamError::TooLarge { max: limit });
        }
    }
    Ok(bytes)
}

/// Message of an error: `error_msg`, or the text.
fn message_in(body: &[u8]) -> String {
    // An invalid text is quoted as it is, without parsing.
    let valid = check_json_text(body).map_or(&b""[..], |()| body);
    let value: Value = serde_json::from_slice(valid).unwrap_or_default();
    let named = ["error_msg", "message", "detail"]
        .iter()
        .find_map(|name| value[*name].as_str());
    named.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned)
}

/// The API compares one value per condition and joins all conditions with one operator.
fn metadata_condition(filters: &Filters) -> Result<Option<Value>, UpstreamError> {
    let condition = |name: &str, value: &Value| {
        let (operator, value) = match value {
            Value::String(text) => ("is", text.clone()),
            Value::Number(number) => ("=", number.to_string()),
            other => ("is", other.to_string()),
        };
        json!({"name": [name], "comparison_operator": operator, "value": value})
    };
    let conditions: Vec<Value> = filters
        .0
        .iter()
        .flat_map(|(name, values)| values.iter().map(|value| condition(name, value)))
        .collect();
    let operator = match filters.0.as_slice() {
        [] => return Ok(None),
        [_] => "or",
        several if several.iter().all(|(_, values)| values.len() == 1) => "and",
        _ => {
            let message = "this knowledge base filters by one name with several values, or by several names \
                with one value each";
            return Err(UpstreamError::Unsupported(message.to_owned()));
        }
    };
    Ok(Some(
        json!({"logical_operator": operator, "conditions": conditions}),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_filters_to_conditions_or_refuses_them() {
        let filters = |list: &[(&str, &[Value])]| {
            let list = list
                .iter()
                .map(|(name, values)| ((*name).to_owned(), values.to_vec()));
            Filters(list.collect())
        };
        assert_eq!(metadata_condition(&filters(&[])).unwrap(), None);
        let one = metadata_condition(&filters(&[("lang", &[json!("de"), json!("en")])]));
        assert_eq!(
            one.unwrap().unwrap(),
            json!({"logical_operator": "or", "conditions": [
                {"name": ["lang"], "comparison_operator": "is", "value": "de"},
                {"name": ["lang"], "comparison_operator": "is", "value": "en"}]})
        );
        let two = metadata_condition(&filters(&[("a", &[json!(1)]), ("b", &[json!(true)])]));
        assert_eq!(two.unwrap().unwrap()["logical_operator"], "and");
        let mixed = filters(&[("a", &[json!(1), json!(2)]), ("b", &[json!(1)])]);
        assert!(matches!(
            metadata_condition(&mixed),
            Err(UpstreamError::Unsupported(_))
        ));
    }

    #[test]
    fn reports_error_messages_of_remote_bases() {
        assert_eq!(
            message_in(br#"{"error_code":2001,"error_msg":"no such base"}"#),
            "no such base"
        );
        assert_eq!(message_in(b"oops"), "oops");
    }
}

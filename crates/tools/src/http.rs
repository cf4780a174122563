//! HTTP tools: one request per call.

use egress::{RequestBuilder, Response};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, StatusCode};
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::peer_text::shown;
use serde_json::Value;
use url::Url;

use super::HttpToolSpec;
use super::on_behalf_of::Bearer;
use super::result_size::ANSWER_BYTES;
use egress::Egress;
use egress::FillError;
use egress::read_up_to;
use egress::redact::Redactor;
use egress::upstream::UpstreamError;

/// Maximum length of a URL with its parameters.
const URL_BYTES: usize = 16 * 1024;
/// Names the call, so that a service that receives it twice can act once.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Maximum number of bytes read of an error response.
const REFUSAL_BYTES: usize = 4 * 1024;

/// A call with validated parameters.
#[derive(Clone, Copy)]
pub(super) struct HttpToolCall<'a> {
    pub(super) spec: &'a HttpToolSpec,
    pub(super) parameters: &'a JsonObject,
    pub(super) key: Option<&'a str>,
    pub(super) bearer: Option<&'a Bearer>,
}

/// Sends one request. The caller applies the timeout.
pub(super) async fn call(
    egress: &Egress,
    redactor: &Redactor,
    call: HttpToolCall<'_>,
) -> Result<Value, UpstreamError> {
    let request = request(egress, call)?;
    let response = egress.send(request).await?;
    answer(redactor, response).await
}

fn request(egress: &Egress, call: HttpToolCall<'_>) -> Result<RequestBuilder, UpstreamError> {
    let HttpToolCall {
        spec,
        parameters,
        key,
        bearer,
    } = call;
    let (mut url, rest) =
        fill_url(spec, parameters).map_err(|error| UpstreamError::Rejected(error.to_string()))?;
    let in_body = in_body(spec);
    if !in_body && !rest.is_empty() {
        let pairs = rest.iter().map(|(name, value)| (name, plain(value)));
        url.query_pairs_mut().extend_pairs(pairs);
    }
    if url.as_str().len() > URL_BYTES {
        let message = "the parameters make the tool's URL too long (16 KiB at most)";
        return Err(UpstreamError::Rejected(message.to_owned()));
    }
    let request = egress.request(spec.method.clone(), &url)?;
    let request = request
        .headers(spec.headers.clone())
        .header(http::header::ACCEPT, "application/json, text/*;q=0.9")
        // The size limit counts received bytes, so responses must not be compressed.
        .header(http::header::ACCEPT_ENCODING, "identity");
    // A header of the operator wins.
    let key = key.filter(|_| !spec.headers.contains_key(IDEMPOTENCY_KEY));
    let request = match key {
        Some(key) => request.header(IDEMPOTENCY_KEY, key),
        None => request,
    };
    let request = match bearer {
        Some(bearer) => request.header(AUTHORIZATION, bearer.header.clone()),
        None => request,
    };
    Ok(if in_body {
        request.json(&rest)
    } else {
        request
    })
}

/// Refuses parameters that would leave their path segment or override a query parameter.
pub(super) fn check(spec: &HttpToolSpec, parameters: &JsonObject) -> Result<(), Vec<Fault>> {
    let at = |name: &str| format!("/parameters/{}", domain::form::escape_pointer(name));
    let placed = fill_url(spec, parameters);
    let (url, rest) =
        placed.map_err(|error| vec![Fault::new(at(error.name()), error.to_string())])?;
    if in_body(spec) {
        return Ok(());
    }
    // Parameters of the operator's URL, such as a tenant, must not be replaced by the model.
    let set: Vec<_> = url.query_pairs().map(|(name, _)| stem(&name)).collect();
    let faults = rest.keys().filter_map(|name| {
        let message = if !spec.names.contains(name) {
            "is not among the `properties` of the tool's parameters; leave it out"
        } else if set.contains(&stem(name)) {
            // Services differ in how they resolve duplicate parameters.
            "is set by the tool itself; leave it out"
        } else {
            return None;
        };
        // The name comes from a model and can have any length.
        let name: String = name.chars().take(100).collect();
        Some(Fault::new(at(&name), message))
    });
    let faults: Vec<_> = faults.collect();
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults)
    }
}

fn in_body(spec: &HttpToolSpec) -> bool {
    [Method::POST, Method::PUT, Method::PATCH].contains(&spec.method)
}

/// Normalizes a name as the most lenient service would: `Tenant`, `tenant[]` and `tenant[a]` are `tenant`, `a.b`
/// and `a b` are `a_b`.
fn stem(name: &str) -> String {
    let is_blank =
        |letter: char| letter.is_whitespace() || letter.is_control() || letter == '\u{200b}';
    let name = name
        .trim_matches(is_blank)
        .split('[')
        .next()
        .unwrap_or_default();
    name.to_ascii_lowercase().replace(['.', ' '], "_")
}

/// The URL with its path filled, and the remaining parameters.
fn fill_url(spec: &HttpToolSpec, parameters: &JsonObject) -> Result<(Url, JsonObject), FillError> {
    let url = &spec.url;
    let value = |name: &str| match parameters.get(name) {
        Some(value @ (Value::String(_) | Value::Number(_) | Value::Bool(_))) => Some(plain(value)),
        _ => None,
    };
    let filled = url.fill(value, |name| spec.open.contains(name))?;
    let mut rest = parameters.clone();
    for name in url.names() {
        rest.remove(name);
    }
    Ok((filled, rest))
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

async fn answer(redactor: &Redactor, response: Response) -> Result<Value, UpstreamError> {
    let status = response.status();
    if !status.is_success() {
        let headers = response.headers().clone();
        // A body that cannot be read does not hide the status.
        let body = read_up_to(response, REFUSAL_BYTES)
            .await
            .unwrap_or_default();
        let text = String::from_utf8_lossy(&body);
        return Err(UpstreamError::of_status(
            status,
            &headers,
            &redactor.redact(&text),
        ));
    }
    // Parameters such as `charset` do not matter: only UTF-8 is accepted.
    let content_type = response.headers().get(CONTENT_TYPE);
    let content_type = content_type
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let content_type = content_type.split(';').next().unwrap_or_default();
    let content_type = content_type.trim().to_ascii_lowercase();
    let body = read_up_to(response, ANSWER_BYTES + 1).await?;
    // One byte more than allowed was requested, to notice the excess.
    if body.len() > ANSWER_BYTES {
        return Err(UpstreamError::TooLarge { max: ANSWER_BYTES });
    }
    if status == StatusCode::NO_CONTENT || body.is_empty() {
        return Ok(Value::Null);
    }
    read_body(&content_type, &body)
}

fn read_body(content_type: &str, body: &[u8]) -> Result<Value, UpstreamError> {
    let malformed = |what: &str| UpstreamError::Malformed(what.to_owned());
    if content_type == "application/json" || content_type.ends_with("+json") {
        // Checks the depth before a value is built: nested arrays would overflow the stack.
        domain::json_text::check_json_text(body)
            .map_err(|fault| UpstreamError::Malformed(format!("it {fault}")))?;
        return serde_json::from_slice(body).map_err(|_| malformed("it is not JSON"));
    }
    if content_type.starts_with("text/") {
        let text = std::str::from_utf8(body).map_err(|_| malformed("it is not UTF-8"))?;
        // PostgreSQL stores no NUL in text.
        return Ok(Value::String(text.replace('\0', "")));
    }
    let content_type = shown(content_type);
    Err(malformed(&format!(
        "its type is `{content_type}`; JSON and text are taken"
    )))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use http::HeaderMap;
    use serde_json::json;

    use super::*;
    use egress::UrlTemplate;

    fn sent(method: Method, url: &str, parameters: &Value) -> (String, Option<Value>) {
        let egress = Egress::new(Vec::new(), Duration::from_secs(1)).unwrap();
        let spec = HttpToolSpec {
            url: UrlTemplate::parse(url).unwrap(),
            method,
            headers: HeaderMap::new(),
            timeout: Duration::from_secs(1),
            open: BTreeSet::new(),
            names: ["id", "n", "deep"].map(str::to_owned).into(),
            on_behalf_of: None,
        };
        let call = HttpToolCall {
            spec: &spec,
            parameters: parameters.as_object().unwrap(),
            key: None,
            bearer: None,
        };
        let request = request(&egress, call);
        let request = request.unwrap().build().unwrap();
        let body = request.body().and_then(|body| body.as_bytes());
        let body = body.map(|bytes| serde_json::from_slice(bytes).unwrap());
        (request.url().to_string(), body)
    }

    #[test]
    fn distributes_parameters_to_path_body_or_query() {
        let parameters = json!({"id": "a b", "n": 3, "deep": {"x": [1]}});
        let posted = sent(Method::POST, "https://t.example/{id}/x", &parameters);
        let body = json!({"n": 3, "deep": {"x": [1]}});
        assert_eq!(posted, ("https://t.example/a%20b/x".to_owned(), Some(body)));
        let got = sent(Method::GET, "https://t.example/{id}?k=v", &parameters);
        let url = "https://t.example/a%20b?k=v&deep=%7B%22x%22%3A%5B1%5D%7D&n=3";
        assert_eq!(got, (url.to_owned(), None));
        let deleted = sent(Method::DELETE, "https://t.example/{n}", &json!({"n": 7}));
        assert_eq!(deleted, ("https://t.example/7".to_owned(), None));
    }

    #[test]
    fn queries_contain_schema_names_only() {
        const SET: [&str; 10] = [
            "tenant",
            "Tenant",
            "tenant[]",
            " tenant",
            "tenant ",
            "tenant\t",
            "tenant\r\n",
            "tenant\u{200b}",
            "full.name",
            "full name",
        ];
        let names: Vec<_> = SET
            .into_iter()
            .chain(["q", "tenants", "full-name"])
            .collect();
        let spec = HttpToolSpec {
            url: UrlTemplate::parse("https://t.example/?tenant=a&full_name=b").unwrap(),
            method: Method::GET,
            headers: HeaderMap::new(),
            timeout: Duration::from_secs(1),
            open: BTreeSet::new(),
            // Refused even if the operator's schema names them.
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            on_behalf_of: None,
        };
        let is_sent = |name: &str| {
            let parameters = json!({"q": 1, name: "evil"});
            check(&spec, parameters.as_object().unwrap()).is_ok()
        };
        for name in SET {
            assert!(!is_sent(name), "{name:?}");
        }
        assert!(is_sent("tenants") && is_sent("full-name"));
        for name in ["Q", "q ", "q\t", "q\u{200b}", "full_names", ""] {
            assert!(!is_sent(name), "{name:?}");
        }
    }

    #[test]
    fn accepts_json_and_text_only() {
        let read = |content_type: &str, body: &[u8]| read_body(content_type, body).ok();
        assert_eq!(
            read("application/json", b"{\"a\":1}"),
            Some(json!({"a": 1}))
        );
        assert_eq!(read("application/problem+json", b"[1]"), Some(json!([1])));
        assert_eq!(
            read("text/plain", "größer".as_bytes()),
            Some(json!("größer"))
        );
        assert_eq!(read("text/html", b"<p>"), Some(json!("<p>")));
        for (content_type, body) in [
            ("application/json", &b"{"[..]),
            ("application/json", b"\"\\u0000\""),
            ("text/plain", b"\xff"),
            ("image/png", b"x"),
            ("", b"x"),
        ] {
            assert_eq!(read(content_type, body), None, "{content_type}");
        }
    }
}

//! An MCP server with two tools: the current time, and a board of notes in memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

pub(super) use axum::Router;
use chrono::{DateTime, FixedOffset, Utc};
use protocol::JsonObject;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};

use clock::Clock;

/// Name of the time tool.
pub(super) const TOOL: &str = "current_time";
/// Name of the note tool.
pub(super) const POST: &str = "post_note";
/// Maximum number of notes; the oldest is dropped.
const MAX_NOTES: usize = 100;
/// Maximum length of a note, in characters.
const MAX_CHARACTERS: usize = 2_000;
/// Minimum and maximum offset from UTC, in hours.
const MIN_OFFSET: f64 = -12.0;
const MAX_OFFSET: f64 = 14.0;

#[derive(Clone)]
struct ClockServer {
    clock: Clock,
    board: Arc<Mutex<Board>>,
}

/// Notes, oldest first, and the total number of posted notes.
#[derive(Default)]
struct Board {
    notes: VecDeque<String>,
    posted: u64,
}

impl Board {
    fn post(&mut self, arguments: &JsonObject) -> Result<String, String> {
        let member = |name: &str| arguments.get(name).and_then(Value::as_str).map(str::trim);
        let text = member("text").filter(|text| !text.is_empty());
        let text = text.ok_or("text must be a text")?;
        let note = match member("time") {
            Some(time) => format!("{text}\n({time})"),
            None => text.to_owned(),
        };
        if note.chars().count() > MAX_CHARACTERS {
            return Err(format!("a note has at most {MAX_CHARACTERS} characters"));
        }
        if self.notes.len() == MAX_NOTES {
            self.notes.pop_front();
        }
        self.posted += 1;
        // The text has the number of the note, so a model can refer to it.
        let reply = format!("Note {}:\n{note}", self.posted);
        self.notes.push_back(note);
        Ok(reply)
    }
}

/// Streamable HTTP at `/mcp`, stateless, for local programs. Requests with other host names, or with the
/// `Origin` of a web page, are refused.
pub(super) fn router(clock: Clock) -> Router {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .enforce_origin_validation();
    let sessions = Arc::new(NeverSessionManager::default());
    let server = ClockServer {
        clock,
        board: Arc::default(),
    };
    let service = StreamableHttpService::new(move || Ok(server.clone()), sessions, config);
    Router::new().route_service("/mcp", service)
}

impl ServerHandler for ClockServer {
    fn get_info(&self) -> ServerConfig {
        let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        info.server_info = Implementation::new("runnel-clock", env!("CARGO_PKG_VERSION"));
        info
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![
            time_tool(),
            note_tool(),
        ]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let outcome = match &*request.name {
            TOOL => time_text(self.clock.now_ms(), &arguments),
            POST => {
                let board = self.board.lock();
                board
                    .unwrap_or_else(PoisonError::into_inner)
                    .post(&arguments)
            }
            _ => return Err(ErrorData::invalid_params("there is no such tool", None)),
        };
        let result = match outcome {
            Ok(time) => CallToolResult::success(vec![ContentBlock::text(time)]),
            Err(why) => CallToolResult::error(vec![ContentBlock::text(why)]),
        };
        Ok(CallToolResponse::Complete(result))
    }
}

fn time_tool() -> Tool {
    let schema = json!({
        "type": "object",
        "properties": {"utc_offset": {
            "type": "number", "minimum": MIN_OFFSET, "maximum": MAX_OFFSET,
            "description": "Hours by which the wanted place is ahead of UTC, like 9 or -3.5. UTC when it is absent.",
        }},
        "additionalProperties": false,
    });
    let schema = schema.as_object().cloned().unwrap_or_default();
    Tool::new_with_raw(
        TOOL,
        Some("Returns the date and the time of day.".into()),
        Arc::new(schema),
    )
    .with_annotations(ToolAnnotations::new().read_only(true))
}

fn note_tool() -> Tool {
    let schema = json!({
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "The note."},
            "time": {"type": "string", "description": "The time that is shown below it."},
        },
        "required": ["text"],
        "additionalProperties": false,
    });
    let schema = schema.as_object().cloned().unwrap_or_default();
    Tool::new_with_raw(
        POST,
        Some("Posts a note on the board of this playground. It cannot be taken back.".into()),
        Arc::new(schema),
    )
    .with_annotations(ToolAnnotations::new().destructive(true))
}

/// The time as text. An error is a message for the model, which may retry.
fn time_text(now_ms: i64, arguments: &JsonObject) -> Result<String, String> {
    let hours = match arguments.get("utc_offset") {
        None | Some(Value::Null) => Some(0.0),
        Some(hours) => hours.as_f64(),
    };
    // NaN is in no range, so it is refused as well.
    let hours = hours.filter(|hours| (MIN_OFFSET..=MAX_OFFSET).contains(hours));
    let refused = || format!("utc_offset must be a number from {MIN_OFFSET} to {MAX_OFFSET}");
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a day has fewer seconds than an i32 holds"
    )]
    let seconds = (hours.ok_or_else(refused)? * 3600.0).round() as i32;
    let offset = FixedOffset::east_opt(seconds).ok_or_else(refused)?;
    let now = DateTime::<Utc>::from_timestamp_millis(now_ms).unwrap_or_default();
    let local = now.with_timezone(&offset);
    Ok(local.format("%H:%M on %A, %-d %B %Y (UTC%:z)").to_string())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::Request;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn refuses_requests_of_web_pages() {
        let router = router(Clock::system());
        for (origin, status) in [
            (None, 200),
            (Some("https://evil.example"), 403),
            (Some("http://127.0.0.1:8700"), 403),
            (Some("null"), 403),
        ] {
            let mut request = Request::post("/mcp")
                .header("host", "127.0.0.1:9000")
                .header("content-type", "application/json")
                .header("accept", "application/json, text/event-stream");
            if let Some(origin) = origin {
                request = request.header("origin", origin);
            }
            let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": "2025-06-18", "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            }});
            let request = request.body(Body::from(initialize.to_string())).unwrap();
            let answer = router.clone().oneshot(request).await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{origin:?}");
        }
    }

    #[test]
    fn boards_number_notes_and_refuse_long_ones() {
        let mut board = Board::default();
        let mut post = |arguments: Value| board.post(arguments.as_object().unwrap());
        assert_eq!(
            post(json!({"text": "a", "time": "9:00"})).unwrap(),
            "Note 1:\na\n(9:00)"
        );
        assert!(post(json!({"text": " "})).is_err());
        assert!(post(json!({"text": "x".repeat(2_001)})).is_err());
        for n in 2..=MAX_NOTES + 1 {
            assert!(
                post(json!({"text": "b"}))
                    .unwrap()
                    .starts_with(&format!("Note {n}:"))
            );
        }
        assert_eq!(board.notes.len(), MAX_NOTES);
    }

    fn check(arguments: &Value, expected: &str) {
        let text = time_text(1_795_353_000_000, arguments.as_object().unwrap());
        assert_eq!(text.unwrap_or_else(|why| why), expected, "{arguments}");
    }

    #[test]
    fn returns_time_at_requested_offset() {
        check(&json!({}), "13:10 on Sunday, 22 November 2026 (UTC+00:00)");
        check(
            &json!({"utc_offset": null}),
            "13:10 on Sunday, 22 November 2026 (UTC+00:00)",
        );
        check(
            &json!({"utc_offset": 9}),
            "22:10 on Sunday, 22 November 2026 (UTC+09:00)",
        );
        check(
            &json!({"utc_offset": 14}),
            "03:10 on Monday, 23 November 2026 (UTC+14:00)",
        );
        check(
            &json!({"utc_offset": -3.5}),
            "09:40 on Sunday, 22 November 2026 (UTC-03:30)",
        );
    }

    #[test]
    fn refuses_invalid_offsets_with_a_reason() {
        for offset in [json!(15), json!(-12.5), json!("9"), json!(1e300)] {
            check(
                &json!({"utc_offset": offset}),
                "utc_offset must be a number from -12 to 14",
            );
        }
    }
}

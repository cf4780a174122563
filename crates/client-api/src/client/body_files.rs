//! Extracts embedded files from event and Query bodies before the rest is parsed.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use domain::event::RAW_BYTES;
use domain::large_text::PathStep::{self, Each, Member};
use protocol::pipeline::PipelineQuery;

use runs::artifacts::BodyFiles;
use web::error::{ApiError, ApiResult};
use web::json::{json_bytes_of, parse};
use web::memory_budget::BufferedBody;
use web::state::ApiState;

/// Limit of an event document without its files and raw payload, in bytes.
pub const DOCUMENT_BYTES: usize = 1024 * 1024;

/// Body limit of an event with its raw payload, in bytes. An event without files always fits.
pub fn event_body_limit(state: &ApiState) -> usize {
    state.event_body_bytes.max(DOCUMENT_BYTES + RAW_BYTES)
}

/// Files of a body. They hold the body's memory permit.
#[derive(Clone, Default)]
pub struct ExtractedFiles {
    pub files: BodyFiles,
    _body: Option<Arc<BufferedBody>>,
}

/// A body without its files.
pub struct EventDocument {
    pub json: Bytes,
    pub files: ExtractedFiles,
    /// Size of the complete body in bytes.
    pub total_bytes: usize,
    /// Holds the body's memory permit while the document is parsed.
    pub held: Arc<BufferedBody>,
}

impl EventDocument {
    pub async fn of(body: BufferedBody, paths: &[Vec<PathStep>]) -> Self {
        let body = Arc::new(body);
        let (json, files) = BodyFiles::take_out(&body, paths).await;
        // Files are slices of the body, so its memory permit lives as long as they do.
        let retained_body = (!files.is_empty()).then(|| Arc::clone(&body));
        Self {
            json,
            files: ExtractedFiles {
                files,
                _body: retained_body,
            },
            total_bytes: body.len(),
            held: body,
        }
    }
}

/// A pipeline's Query and its files.
pub(crate) struct QueryBody {
    pub(super) query: PipelineQuery,
    pub(super) files: ExtractedFiles,
}

impl FromRequest<ApiState> for QueryBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> ApiResult<Self> {
        // The body limit of events: files make a Query that large; `pipeline` bounds the document itself.
        let body = json_bytes_of(request, state, state.event_body_bytes).await?;
        let document = EventDocument::of(body, &in_query()).await;
        Ok(Self {
            query: parse(&document.json)?,
            files: document.files,
        })
    }
}

/// Paths of files in an envelope at `top`.
pub(super) fn in_envelope(top: &[PathStep]) -> Vec<Vec<PathStep>> {
    let contents: [&[PathStep]; 4] = [
        &[Member("image_base64")],
        &[Member("file_base64")],
        &[Member("file_url")],
        &[Member("image_url"), Member("url")],
    ];
    let attachments: [&[PathStep]; 2] = [&[Member("content")], &[Member("url")]];
    let in_contents = contents.map(|path| [&[Member("contents"), Each], path].concat());
    let in_attachments = attachments.map(|path| [&[Member("attachments"), Each], path].concat());
    let paths = in_contents.into_iter().chain(in_attachments);
    paths
        .map(|path| [top, &[Member("input")], &path].concat())
        .collect()
}

/// Paths of files in a Query: the message chain, its copy in the platform event, and the preprocessed message.
fn in_query() -> Vec<Vec<PathStep>> {
    let chain = [Member("message_chain"), Each];
    let content = [Member("user_message"), Member("content"), Each];
    let base64 = [Member("base64")];
    let quoted = [Member("origin"), Each, Member("base64")];
    // The platform event repeats the message chain, so each file occurs twice.
    let in_event = [&[Member("message_event")], &chain[..]].concat();
    vec![
        [&chain[..], &base64].concat(),
        [&chain[..], &quoted].concat(),
        [&in_event[..], &base64].concat(),
        [&in_event[..], &quoted].concat(),
        [&content[..], &[Member("image_base64")]].concat(),
        [&content[..], &[Member("file_base64")]].concat(),
        [&content[..], &[Member("file_url")]].concat(),
        [&content[..], &[Member("image_url"), Member("url")]].concat(),
    ]
}

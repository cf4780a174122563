//! Artifacts as images: `artifact:ID` in place of a URL. Providers cannot fetch artifacts, so they are inlined.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use domain::artifact::{SCHEME, essence};
use futures_util::{Stream, TryStreamExt as _};
use protocol::JsonObject;
use protocol::resources::ArtifactOperation;
use serde_json::{Value, json};

use crate::artifacts::find;
use blob_store::ArtifactStoreError;
use web::auth::RunCaller;
use web::error::{ApiError, ApiResult};
use web::memory_budget::MemoryPermit;
use web::state::ApiState;

/// Supported image types.
const TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/// Maximum number of images of a request.
const MAX_IMAGES: usize = 32;
/// Maximum size of all images of a request, in bytes before base64.
const MAX_IMAGE_BYTES: u64 = 15 * 1024 * 1024;

/// Replaces artifact references by data URLs, if the run may read the artifacts. Returns their memory permits,
/// held until the provider has answered.
pub(crate) async fn with_images(
    caller: &RunCaller,
    state: &ApiState,
    body: &mut JsonObject,
) -> ApiResult<Vec<MemoryPermit>> {
    let mut images = Images::default();
    for (pointer, url) in references(body) {
        *url = images.read(caller, state, &pointer, url).await?;
    }
    Ok(images.permits)
}

/// Images of a request.
#[derive(Default)]
pub(crate) struct Images {
    bytes: u64,
    /// Memory permits, held until the provider has answered.
    pub(crate) permits: Vec<MemoryPermit>,
}

impl Images {
    /// Converts the artifact in `url` to a data URL. `pointer` locates the reference for errors.
    pub(crate) async fn read(
        &mut self,
        caller: &RunCaller,
        state: &ApiState,
        pointer: &str,
        url: &str,
    ) -> ApiResult<String> {
        let at = |refused: ApiError| refused.with("pointer", json!(pointer));
        // One permit an image, so their number is that of the images.
        if self.permits.len() == MAX_IMAGES {
            let message = format!("must be one of at most {MAX_IMAGES} artifacts of a request");
            return Err(ApiError::invalid(pointer, message));
        }
        let id = url.strip_prefix(SCHEME).unwrap_or_default();
        let left = MAX_IMAGE_BYTES - self.bytes;
        let image = Image::read(caller, state, id, left).await.map_err(at)?;
        self.bytes += image.size;
        self.permits.push(image.permit);
        Ok(image.url)
    }
}

/// Finds artifact references in chat messages.
fn references(body: &mut JsonObject) -> Vec<(String, &mut String)> {
    let messages = body.get_mut("messages").and_then(Value::as_array_mut);
    let messages = messages.into_iter().flatten().enumerate();
    let parts = messages.flat_map(|(message, value)| {
        let parts = value.get_mut("content").and_then(Value::as_array_mut);
        let parts = parts.into_iter().flatten().enumerate();
        parts.map(move |(part, value)| (message, part, value))
    });
    let urls = parts.filter_map(|(message, part, value)| {
        let Value::String(url) = value.pointer_mut("/image_url/url")? else {
            return None;
        };
        let pointer = format!("/messages/{message}/content/{part}/image_url/url");
        url.starts_with(SCHEME).then_some((pointer, url))
    });
    urls.collect()
}

/// An artifact in the provider's form.
struct Image {
    size: u64,
    /// A data URL.
    url: String,
    permit: MemoryPermit,
}

impl Image {
    /// Reads a granted and visible artifact of at most `max_bytes` bytes. Checks and audit are those of `GET
    /// /artifacts/{id}/content`.
    async fn read(
        caller: &RunCaller,
        state: &ApiState,
        id: &str,
        max_bytes: u64,
    ) -> ApiResult<Self> {
        let (mut call, found) = find(caller, state, ArtifactOperation::Read, id).await?;
        let (mime_type, size) = (essence(&found.metadata.mime_type), found.metadata.size);
        // The size is known from the metadata, so the permit is taken before a byte is read.
        let permit = check(&mime_type, size, max_bytes).and_then(|bytes| {
            // Base64 needs a third more.
            let budget = state.model_memory();
            budget.take(caller.sender(), bytes.div_ceil(3) * 4)
        });
        let permit = match permit {
            Ok(permit) => permit,
            Err(refused) => return call.end(Err(refused)),
        };
        let reading = async {
            let bytes = state.runs.artifacts.read_artifact(&found, 0..size).await?;
            read_exactly(bytes, size).await
        };
        let bytes = match call.within(reading).await {
            Ok(bytes) => bytes,
            Err(failed) => return call.end(Err(failed)),
        };
        call.add_bytes(bytes.len());
        let url = format!("data:{mime_type};base64,{}", STANDARD.encode(&bytes));
        call.end(Ok(Self { size, url, permit }))
    }
}

/// Reads exactly `size` bytes of an artifact.
async fn read_exactly(
    bytes: impl Stream<Item = Result<Bytes, ArtifactStoreError>>,
    size: u64,
) -> Result<Vec<u8>, ArtifactStoreError> {
    let mut all = Vec::new();
    let mut bytes = std::pin::pin!(bytes);
    while let Some(part) = bytes.try_next().await? {
        // More bytes than in the metadata: the stored file is not the recorded one.
        if (all.len() + part.len()) as u64 > size {
            return Err(ArtifactStoreError::Gone);
        }
        all.extend_from_slice(&part);
    }
    if (all.len() as u64) < size {
        return Err(ArtifactStoreError::Gone);
    }
    Ok(all)
}

/// Checks type and size of an image.
fn check(mime_type: &str, size: u64, max_bytes: u64) -> ApiResult<usize> {
    if !TYPES.contains(&mime_type) {
        let types = TYPES.join(", ");
        let message = format!("must be an image ({types}), and this artifact is {mime_type}");
        return Err(ApiError::invalid_argument(message));
    }
    if size > max_bytes {
        let message = format!(
            "the images of a request must have at most {MAX_IMAGE_BYTES} bytes together; send smaller ones"
        );
        return Err(ApiError::too_large(message));
    }
    Ok(usize::try_from(size).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn rejects_artifact_content_of_other_size() {
        let parts = |count| stream::iter((0..count).map(|_| Ok(Bytes::from_static(b"abcd"))));
        let exact = read_exactly(parts(2), 8).await;
        assert_eq!(exact.unwrap(), b"abcdabcd");
        assert!(read_exactly(parts(1), 8).await.is_err());
        let endless = stream::repeat_with(|| Ok(Bytes::from_static(b"abcd")));
        assert!(read_exactly(endless, 8).await.is_err());
    }

    #[test]
    fn finds_artifact_references_only_in_image_parts() {
        let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let body = json!({"messages": [
            {"role": "user", "content": "artifact:text"},
            {"role": "user", "content": [
                {"type": "text", "text": "artifact:text"}, image("https://a.b/artifact:c"), image("artifact:one"),
            ]},
            {"role": "tool", "content": [image("artifact:two"), {"type": "image_url"}, 7]},
            7,
        ]});
        let mut body = body.as_object().unwrap().clone();
        let found = references(&mut body).into_iter();
        let found: Vec<_> = found.map(|(pointer, url)| (pointer, url.clone())).collect();
        let expected = [
            ("/messages/1/content/2/image_url/url", "artifact:one"),
            ("/messages/2/content/0/image_url/url", "artifact:two"),
        ];
        assert_eq!(
            found,
            expected.map(|(at, url)| (at.to_owned(), url.to_owned()))
        );
        assert!(references(&mut JsonObject::new()).is_empty());
    }
}

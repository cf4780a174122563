//! Text extraction. Untrusted documents are parsed in a child process with limits on time and memory, so a
//! parser crash is contained.

mod charset;
mod pdf;
mod read;
mod words;

use std::process::Stdio;
use std::time::Duration;

use domain::knowledge::chunk::Heading;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdout, Command};
use uuid::Uuid;

pub use read::{DocumentFormat, Extracted, media_type_of, read};
use read::{decoded, decoded_html};

/// Timeout of extraction for one document.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum size of extracted text.
const MAX_TEXT_BYTES: usize = 32 * 1024 * 1024;
/// Name of the CLI command that runs the extraction.
pub const COMMAND: &str = "extract-text";

/// Extracts the text of a document. An error describes the fault of the document.
pub async fn extract(kind: DocumentFormat, bytes: &[u8]) -> Result<Extracted, String> {
    match kind {
        DocumentFormat::Text(_) => read(kind, bytes),
        DocumentFormat::Markdown(encoding) => {
            read_outside(kind, decoded(encoding, bytes)?.as_bytes()).await
        }
        DocumentFormat::Html(encoding) => {
            read_outside(kind, decoded_html(encoding, bytes)?.as_bytes()).await
        }
        DocumentFormat::Pdf => read_outside(kind, bytes).await,
    }
}

/// Extracts in a child process. Input is UTF-8, or a binary format.
async fn read_outside(kind: DocumentFormat, bytes: &[u8]) -> Result<Extracted, String> {
    // The mark is random, so that no document can forge a response.
    let mark = Uuid::new_v4().to_string();
    let reading = async {
        let program =
            std::env::current_exe().map_err(|_| "could not be read: no program does it")?;
        let mut child = Command::new(program)
            .args([COMMAND, kind.as_str(), "--mark", &mark])
            // The child gets no secrets. The allocator must not commit reserved memory, which would count
            // against the limit.
            .env_clear()
            .env("MIMALLOC_ARENA_EAGER_COMMIT", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("could not be read: {error}"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
            return Err("could not be read".to_owned());
        };
        let sending = async {
            // If the child stops reading, its response holds the cause.
            let _ = stdin.write_all(bytes).await;
            drop(stdin);
        };
        let ((), response) = tokio::join!(sending, read_answer(stdout));
        let response = response?;
        // Reap the child; its response decides, not its exit status.
        let _ = child.wait().await;
        answer_in(&response, &mark)
    };
    let read = tokio::time::timeout(TIMEOUT, reading).await;
    read.unwrap_or_else(|_| Err("takes too long to be read; send it as text".to_owned()))
}

async fn read_answer(stdout: ChildStdout) -> Result<Vec<u8>, String> {
    let mut response = Vec::new();
    // JSON escapes can double the text.
    let limit = MAX_TEXT_BYTES as u64 * 2;
    let read = stdout.take(limit).read_to_end(&mut response).await;
    read.map_err(|error| format!("could not be read: {error}"))?;
    Ok(response)
}

/// The response follows the mark; output of parsers precedes it.
fn answer_in(output: &[u8], mark: &str) -> Result<Extracted, String> {
    let position = output
        .windows(mark.len())
        // The last mark counts, because a parser may print the document.
        .rposition(|window| window == mark.as_bytes());
    let answer = position.and_then(|position| output.get(position + mark.len()..));
    let Some(answer) = answer else {
        return Err("cannot be read; it is damaged, or expands far beyond its size".to_owned());
    };
    // A response cut at the limit does not parse.
    let answer: ExtractionResponse = serde_json::from_slice(answer)
        .map_err(|_| "holds more text than the gateway takes; cut it into several".to_owned())?;
    match answer.error {
        Some(error) => Err(error),
        None => Ok(Extracted {
            text: answer.text,
            headings: answer.headings.into_iter().map(Heading::from).collect(),
            missing: answer.missing,
        }),
    }
}

/// Response of the child process.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct ExtractionResponse {
    error: Option<String>,
    text: String,
    headings: Vec<WireHeading>,
    missing: Option<String>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct WireHeading(usize, u8, String);

impl From<WireHeading> for Heading {
    fn from(WireHeading(at, level, title): WireHeading) -> Self {
        Self { at, level, title }
    }
}

/// The response that the child prints after its mark.
pub fn response_text(read: Result<Extracted, String>) -> String {
    let answer = match read {
        Ok(read) if read.text.len() > MAX_TEXT_BYTES => ExtractionResponse {
            error: Some("holds more text than 32 MiB; cut it into several".to_owned()),
            ..ExtractionResponse::default()
        },
        Ok(read) => ExtractionResponse {
            error: None,
            text: read.text,
            headings: read
                .headings
                .into_iter()
                .map(|heading| WireHeading(heading.at, heading.level, heading.title))
                .collect(),
            missing: read.missing,
        },
        Err(error) => ExtractionResponse {
            error: Some(error),
            ..ExtractionResponse::default()
        },
    };
    serde_json::to_string(&answer).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_follows_the_last_mark() {
        let read = Extracted {
            text: "# A\nb".to_owned(),
            headings: vec![Heading {
                at: 0,
                level: 1,
                title: "A".to_owned(),
            }],
            missing: Some("page 2".to_owned()),
        };
        let response_text = response_text(Ok(read.clone()));
        let answer = answer_in(
            format!("noise MARK{{}} more MARK{response_text}").as_bytes(),
            "MARK",
        );
        assert_eq!(answer.unwrap(), read);
        let refused = super::response_text(Err("is no PDF".to_owned()));
        let answer = answer_in(format!("MARK{refused}").as_bytes(), "MARK");
        assert_eq!(answer.unwrap_err(), "is no PDF");
        assert!(
            answer_in(b"thread main panicked", "MARK")
                .unwrap_err()
                .contains("damaged")
        );
        let cut = format!(
            "MARK{}",
            response_text.get(..response_text.len() - 3).unwrap()
        );
        assert!(
            answer_in(cut.as_bytes(), "MARK")
                .unwrap_err()
                .contains("more text")
        );
    }
}

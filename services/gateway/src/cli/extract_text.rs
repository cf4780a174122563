//! `runnel extract-text`: extracts one document from standard input, with limits on time and memory. The gateway
//! starts a process per document, so that a parser crash is contained.

use std::io::Read as _;
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, setrlimit};

use cli::output;
use knowledge::extract::{DocumentFormat, read, response_text};

/// Limits per document: CPU seconds and bytes of memory.
const SECONDS: u64 = 60;
const MEMORY: u64 = 1024 * 1024 * 1024;

#[derive(clap::Args)]
pub(super) struct ExtractArguments {
    /// Media type of the document.
    media_type: String,
    /// Prefix of the response.
    #[arg(long)]
    mark: String,
}

/// Prints the mark and the extracted text as JSON.
pub(super) fn extract_text(arguments: &ExtractArguments) -> anyhow::Result<ExitCode> {
    // Limits are set before the document is read: everything after is untrusted input.
    for (resource, bound) in [
        (Resource::Cpu, SECONDS),
        (Resource::Data, MEMORY),
        // A core dump would write the document to disk.
        (Resource::Core, 0),
    ] {
        let limit = Rlimit {
            current: Some(bound),
            maximum: Some(bound),
        };
        setrlimit(resource, limit)?;
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes)?;
    let read =
        DocumentFormat::of_media_type(&arguments.media_type).and_then(|kind| read(kind, &bytes));
    // The mark lets the gateway distinguish the result from output of a library.
    output::piece(&arguments.mark);
    output::piece(&response_text(read));
    Ok(ExitCode::SUCCESS)
}

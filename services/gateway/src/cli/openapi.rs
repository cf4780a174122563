//! `runnel openapi`.

use std::process::ExitCode;

use clap::ValueEnum;

use crate::api::openapi::{gateway_document, runner_document};
use cli::output;

#[derive(clap::Args)]
pub(super) struct OpenapiArguments {
    /// The document to print.
    #[arg(value_enum, default_value_t = Document::Gateway)]
    document: Document,
}

#[derive(Clone, Copy, ValueEnum)]
enum Document {
    /// The API of the gateway.
    Gateway,
    /// The API of a runner endpoint.
    Runner,
}

/// Prints a document, always as JSON.
pub(super) fn openapi(arguments: &OpenapiArguments) -> anyhow::Result<ExitCode> {
    let document = match arguments.document {
        Document::Gateway => gateway_document(),
        Document::Runner => runner_document(),
    };
    output::line(&document.to_pretty_json()?);
    Ok(ExitCode::SUCCESS)
}

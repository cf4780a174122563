//! PDF extraction page by page. A parser failure affects one page only.

mod cmaps;
mod fields;
mod replacements;
mod structure;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use domain::knowledge::chunk::Heading;
use pdf_extract::{Document, Object, ObjectId, decode_text_string, output_doc_page};

use super::read::{Extracted, tidy};
use replacements::{PageText, Replacements, ReplacingOutput};

/// Maximum number of pages whose faults are reported.
const MAX_REPORTED_FAULTS: usize = 8;
/// Maximum length of one fault, in characters.
const FAULT_CHARACTERS: usize = 120;

/// Extracts page by page. Headings are page numbers.
pub(super) fn pdf(bytes: &[u8]) -> Result<Extracted, String> {
    let document = guarded(|| opened(bytes)).unwrap_or_else(Err);
    let mut document = document.map_err(|error| format!("is no PDF that can be read: {error}"))?;
    // Without replacements the glyphs are still readable.
    let replacements = guarded(|| Replacements::embed(&mut document)).unwrap_or_default();
    let (mut text, mut headings) = (String::new(), Vec::new());
    let mut faults = Vec::new();
    for (number, id) in document.get_pages() {
        // A broken page must not lose the other pages.
        let (page, fault) = page_of(&document, &replacements, number, id);
        let page = tidy(&page);
        let page = page.trim();
        if let Some(fault) = fault {
            let extent = if page.is_empty() {
                "not read"
            } else {
                "read in part"
            };
            faults.push(format!("page {number} is {extent}: {fault}"));
        }
        headings.push(Heading {
            at: text.len(),
            level: 1,
            title: format!("Page {number}"),
        });
        text.push_str(page);
        text.push_str("\n\n");
    }
    let missing = (!faults.is_empty()).then(|| fault_summary(&faults));
    match (text.trim().is_empty(), missing) {
        (true, Some(missing)) => Err(format!("is a PDF of which no page can be read: {missing}")),
        (true, None) => {
            Err("is a PDF without text: scanned pages must be recognised first".to_owned())
        }
        (false, missing) => Ok(Extracted {
            text,
            headings,
            missing,
        }),
    }
}

fn opened(bytes: &[u8]) -> Result<Document, String> {
    let mut document = Document::load_mem(bytes).map_err(|error| error.to_string())?;
    // Many PDFs are encrypted with an empty user password.
    if document.is_encrypted() {
        document
            .decrypt("")
            .map_err(|_| "it is encrypted with a password".to_owned())?;
    }
    cmaps::embed(&mut document);
    Ok(document)
}

/// The text of a page up to a fault, and the fault.
fn page_of(
    document: &Document,
    replacements: &Replacements,
    number: u32,
    id: ObjectId,
) -> (String, Option<String>) {
    let page = PageText::default();
    let read = guarded(|| {
        let mut output = ReplacingOutput::new(&page, replacements);
        output_doc_page(document, &mut output, number).map_err(|error| error.to_string())
    });
    let mut text = page.take();
    let fault = match read {
        // An empty page without a fault may have glyphs without a map to Unicode.
        Ok(Ok(())) if text.trim().is_empty() => cmaps::without_unicode(document, id),
        Ok(Ok(())) => None,
        Ok(Err(fault)) | Err(fault) => Some(fault),
    };
    for value in guarded(|| fields::values(document, id)).unwrap_or_default() {
        text.push('\n');
        text.push_str(&value);
    }
    (text, fault)
}

/// A text string in any of its encodings. The library keeps the mark of UTF-8.
fn text_string(object: &Object) -> Option<String> {
    let text = decode_text_string(object).ok()?;
    Some(match text.strip_prefix('\u{feff}') {
        Some(text) => text.to_owned(),
        None => text,
    })
}

/// Converts a panic of the parser into an error.
fn guarded<T>(read: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(read)).map_err(|panic| message_of(panic.as_ref()))
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    let message = message.unwrap_or("it is damaged");
    // The message is shown to users and may quote the document.
    let plain = message.chars().filter(|letter| !letter.is_control());
    plain.take(FAULT_CHARACTERS).collect()
}

fn fault_summary(faults: &[String]) -> String {
    let mut summary = faults
        .iter()
        .take(MAX_REPORTED_FAULTS)
        .cloned()
        .collect::<Vec<_>>()
        .join("; ");
    if let Some(more) = faults
        .len()
        .checked_sub(MAX_REPORTED_FAULTS)
        .filter(|more| *more > 0)
    {
        summary = format!("{summary}; and {more} more pages");
    }
    summary
}

#[cfg(test)]
mod tests;

//! Artifacts: names, media types, range requests and access rules.

use std::ops::Range;

use protocol::context::{AgentInput, InputAttachment};
use protocol::message::{ContentElement, MessageContent};
use uuid::Uuid;

/// URL prefix of an artifact id.
pub const SCHEME: &str = "artifact:";
/// Prefix of the SHA-256 of a file that was moved out of its event's request body.
pub const FILE_MARK: &str = "runnel-file:";
/// Maximum bytes of a file that stays inline in its event. Larger files become artifacts.
pub const INLINE_BYTES: usize = 64 * 1024;
/// Maximum bytes of a name.
pub const NAME_BYTES: usize = 255;
/// Media type of unrecognized bytes.
pub const ANY_TYPE: &str = "application/octet-stream";
const TEXT_TYPE: &str = "text/plain";

/// Executables. They are rejected unless the operator allows their type.
const EXECUTABLES: [&str; 3] = [
    "application/x-executable",
    "application/vnd.microsoft.portable-executable",
    "application/x-mach-binary",
];

/// Returns true for a valid artifact name. Names become file names, so they contain no path.
pub fn is_name(name: &str) -> bool {
    // A path separator or `..` would let the name escape a download directory.
    let is_bad = |letter: char| letter.is_control() || matches!(letter, '/' | '\\');
    (1..=NAME_BYTES).contains(&name.len()) && !name.contains(is_bad) && name != "." && name != ".."
}

/// Returns `artifact:ID`. It replaces a URL, but is never fetched.
pub fn url_of(id: &str) -> String {
    format!("{SCHEME}{id}")
}

/// Returns the id of an `artifact:ID` URL. Only the canonical form of an id names an artifact.
pub fn id_of_url(url: &str) -> Option<Uuid> {
    id_of(url.strip_prefix(SCHEME)?)
}

/// Returns the id if a text is its canonical form.
pub fn id_of(text: &str) -> Option<Uuid> {
    // `parse_str` also takes braces, upper case and no hyphens, which would give one artifact several names.
    let parsed = Uuid::parse_str(text).ok()?;
    (parsed.to_string() == text).then_some(parsed)
}

/// Returns true for an artifact URL with anything but an id.
pub fn is_false_reference(url: &str) -> bool {
    // Readers would build the path of another route from the rest of such a URL.
    let head = url.trim_start().get(..SCHEME.len());
    head.is_some_and(|head| head.eq_ignore_ascii_case(SCHEME)) && id_of_url(url).is_none()
}

/// Returns the first false reference of message parts: its index and member.
pub fn false_reference(parts: &[ContentElement]) -> Option<(usize, &'static str)> {
    parts.iter().enumerate().find_map(|(at, part)| {
        let image = part.image_url.as_ref().map(|image| image.url.as_str());
        let members = [
            ("image_url/url", image),
            ("file_url", part.file_url.as_deref()),
        ];
        let is_false = |url: Option<&str>| url.is_some_and(is_false_reference);
        let found = members.into_iter().find(|(_, url)| is_false(*url));
        found.map(|(member, _)| (at, member))
    })
}

/// Returns true if a message's content has a false reference.
pub fn has_false_reference(content: Option<&MessageContent>) -> bool {
    matches!(content, Some(MessageContent::Parts(parts)) if false_reference(parts).is_some())
}

/// Returns true if a base64 text may decode to more than [`INLINE_BYTES`].
pub fn is_large(base64: &str) -> bool {
    // Padding may decode to two bytes less: an upper bound, since the exact size needs the text.
    base64.len() / 4 * 3 > INLINE_BYTES
}

/// Returns true if an input has files that are artifacts, or become artifacts when the event is stored.
pub fn has_artifacts(input: &AgentInput) -> bool {
    let is_named = |url: &String| url.starts_with(SCHEME);
    let is_held = |text: &str| is_large(text) || text.contains(FILE_MARK);
    let in_contents = input.contents.iter().any(|part| {
        let image_url = part.image_url.as_ref().map(|image| &image.url);
        image_url.is_some_and(is_named)
            || part.file_url.as_ref().is_some_and(is_named)
            || base64_of(part).is_some_and(is_held)
    });
    in_contents
        || input.attachments.iter().any(|one| {
            one.url.as_ref().is_some_and(is_named) || base64_of_attachment(one).is_some_and(is_held)
        })
}

/// Returns the base64 text of a content element, bare or as a data URL.
pub fn base64_of(element: &ContentElement) -> Option<&str> {
    let text = element.image_base64.as_ref();
    let text = text.or(element.file_base64.as_ref());
    let image_url = element.image_url.as_ref();
    let url = image_url.and_then(|image| data_url(&image.url));
    let url = url.or_else(|| data_url(element.file_url.as_deref()?));
    text.map(String::as_str).or(url)
}

/// Returns the base64 text of an attachment, bare or as a data URL.
pub fn base64_of_attachment(attachment: &InputAttachment) -> Option<&str> {
    let text = attachment.content.as_deref();
    text.or_else(|| data_url(attachment.url.as_deref()?))
}

/// Returns the URL if it is a data URL with base64.
pub fn data_url(url: &str) -> Option<&str> {
    // The header of a data URL is short; a limit avoids a search through megabytes of base64.
    let head = url.get(..url.len().min(256))?;
    (url.starts_with("data:") && head.contains(";base64,")).then_some(url)
}

/// Media type detected from the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectedType<'a> {
    /// A signature of this type.
    Type(&'a str),
    /// UTF-8 text, or empty.
    Text,
    Unknown,
}

/// Returns the media type of a content. The declared type is kept unless the content contradicts it.
/// `has_signature`: contents of a type begin with a known signature.
pub fn media_type(
    declared: Option<&str>,
    shown: DetectedType<'_>,
    has_signature: impl Fn(&str) -> bool,
) -> String {
    let declared = declared.map(essence);
    // `application/octet-stream` declares nothing: detection decides.
    let declared = declared.filter(|kind| is_media_type(kind) && kind != ANY_TYPE);
    match (declared, shown) {
        (Some(declared), DetectedType::Type(found)) if fits(&declared, found) => declared,
        (_, DetectedType::Type(found)) => found.to_owned(),
        // Text has no signature. A declared type with one, such as `image/png`, contradicts it.
        (Some(declared), DetectedType::Text)
            if declared.starts_with("text/") || !has_signature(&declared) =>
        {
            declared
        }
        (_, DetectedType::Text) => TEXT_TYPE.to_owned(),
        (Some(declared), DetectedType::Unknown)
            if !has_signature(&declared) && !declared.starts_with("text/") =>
        {
            declared
        }
        (_, DetectedType::Unknown) => ANY_TYPE.to_owned(),
    }
}

/// Returns the media type without parameters, in lower case: `text/plain` for `Text/Plain; charset=utf-8`.
pub fn essence(header: &str) -> String {
    let essence = header.split(';').next().unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}

/// Returns true for a text of the form `type/subtype`.
pub fn is_media_type(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
        !part.is_empty() && part.bytes().all(is_token)
    };
    text.len() <= 127
        && text
            .split_once('/')
            .is_some_and(|(kind, subtype)| is_part(kind) && is_part(subtype))
}

/// Many formats are ZIP, gzip, XML or text inside, and their signature shows only the container.
fn fits(declared: &str, found: &str) -> bool {
    let is_container = match found {
        // OOXML, EPUB and JAR are ZIP archives.
        "application/zip" => declared.starts_with("application/"),
        "text/xml" => declared.ends_with("xml"),
        "application/gzip" => declared.ends_with("gzip") || declared.ends_with("gz"),
        _ => false,
    };
    // A container's signature must not confirm a declared executable type.
    declared == found || is_container && !is_executable(declared)
}

fn is_executable(kind: &str) -> bool {
    EXECUTABLES.contains(&kind)
}

/// Returns true if the operator allows this type. `allowed`: exact types, `image/*`, or `*/*` for all types
/// except executables.
pub fn is_allowed(kind: &str, allowed: &[String]) -> bool {
    allowed.iter().any(|rule| match rule.strip_suffix("/*") {
        None => rule == kind,
        // A wildcard never opens executables; only their exact type does.
        Some(_) if is_executable(kind) => false,
        Some("*") => true,
        Some(family) => kind.split_once('/').is_some_and(|(of, _)| of == family),
    })
}

/// Requested range of a content, from a `Range` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestedRange {
    /// Everything: no range, several ranges, another unit, or an invalid header, which is ignored.
    Full,
    /// A range, never empty.
    Part(Range<u64>),
    /// A range outside the content.
    Nothing,
}

/// Parses a `Range` header for a content of `size` bytes.
pub fn requested_range(header: Option<&str>, size: u64) -> RequestedRange {
    let spec = header.and_then(|header| header.trim().strip_prefix("bytes="));
    let Some((first, last)) = spec.and_then(|spec| spec.split_once('-')) else {
        return RequestedRange::Full;
    };
    let number = |text: &str| {
        let text = text.trim();
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // Numbers that overflow are larger than every content.
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let range = match (number(first), number(last), first.trim().is_empty()) {
        // RFC 9110: a range with last before first is invalid, and an invalid header is ignored.
        (Some(first), Some(last), _) if first > last => return RequestedRange::Full,
        (Some(first), Some(last), _) => first..last.saturating_add(1).min(size),
        (Some(first), None, _) if last.trim().is_empty() => first..size,
        (None, Some(count), true) => size.saturating_sub(count)..size,
        _ => return RequestedRange::Full,
    };
    if range.start < range.end {
        RequestedRange::Part(range)
    } else {
        RequestedRange::Nothing
    }
}

/// Owner of an artifact or identity of its reader.
#[derive(Clone, Copy, Debug, Default)]
pub struct Provenance<'a> {
    pub run_id: Option<&'a str>,
    pub runner_id: Option<&'a str>,
    pub conversation_key: Option<&'a str>,
    pub event_id: Option<&'a str>,
}

/// Access of a run to an artifact of its workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArtifactAccess {
    Open,
    /// An event file: open if the run, or an earlier run of its runner and conversation, received the event.
    IfEventReceived,
    Closed,
}

/// Decides the access of `reader`. A run can access its own artifacts and event files, and those of earlier runs
/// of its runner and conversation.
pub fn artifact_access(reader: Provenance<'_>, artifact: Provenance<'_>) -> ArtifactAccess {
    // Absent values are never equal: two runs without a conversation share nothing.
    let same = |ours: Option<&str>, theirs: Option<&str>| ours.is_some() && ours == theirs;
    // Uploads of clients belong to an event; without one, no run may read them.
    if artifact.run_id.is_none() {
        return match artifact.event_id {
            None => ArtifactAccess::Closed,
            event if same(reader.event_id, event) => ArtifactAccess::Open,
            _ => ArtifactAccess::IfEventReceived,
        };
    }
    let is_own = same(reader.run_id, artifact.run_id);
    let is_of_conversation = same(reader.conversation_key, artifact.conversation_key)
        && same(reader.runner_id, artifact.runner_id);
    if is_own || is_of_conversation {
        ArtifactAccess::Open
    } else {
        ArtifactAccess::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_paths_as_artifact_names() {
        for name in ["a.txt", "größer.png", "a b", "..a", "x"] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a\\b",
            "a\nb",
            "a\0",
            &"x".repeat(256),
        ] {
            assert!(!is_name(name), "{name:?}");
        }
    }

    #[test]
    fn keeps_declared_media_type_unless_content_contradicts() {
        let check = |declared, shown, has_signature, expected: &str| {
            let found = media_type(declared, shown, |_| has_signature);
            assert_eq!(found, expected, "{declared:?} {shown:?}");
        };
        let png = DetectedType::Type("image/png");
        check(Some("image/png"), png, true, "image/png");
        check(Some("Image/PNG; x=1"), png, true, "image/png");
        check(Some("image/jpeg"), png, true, "image/png");
        check(Some("text/html"), png, false, "image/png");
        check(None, png, false, "image/png");
        let zip = DetectedType::Type("application/zip");
        check(
            Some("application/epub+zip"),
            zip,
            true,
            "application/epub+zip",
        );
        check(Some("image/png"), zip, true, "application/zip");
        check(
            Some("application/x-executable"),
            zip,
            true,
            "application/zip",
        );
        check(Some("text/csv"), DetectedType::Text, false, "text/csv");
        check(
            Some("application/json"),
            DetectedType::Text,
            false,
            "application/json",
        );
        check(
            Some("application/pdf"),
            DetectedType::Text,
            true,
            "text/plain",
        );
        check(None, DetectedType::Text, false, "text/plain");
        check(
            Some("application/x-mine"),
            DetectedType::Unknown,
            false,
            "application/x-mine",
        );
        check(Some("text/plain"), DetectedType::Unknown, false, ANY_TYPE);
        check(Some("image/png"), DetectedType::Unknown, true, ANY_TYPE);
        check(Some("nonsense"), DetectedType::Unknown, false, ANY_TYPE);
        check(Some("a/b\r\nx: y"), DetectedType::Unknown, false, ANY_TYPE);
    }

    #[test]
    fn allows_executables_only_by_exact_type() {
        let rules = |rules: &[&str]| {
            rules
                .iter()
                .map(|&rule| rule.to_owned())
                .collect::<Vec<_>>()
        };
        let all = rules(&["*/*"]);
        assert!(is_allowed("image/png", &all) && is_allowed(ANY_TYPE, &all));
        assert!(!is_allowed("application/x-executable", &all));
        assert!(!is_allowed(
            "application/x-executable",
            &rules(&["application/*"])
        ));
        assert!(is_allowed(
            "application/x-executable",
            &rules(&["application/x-executable"])
        ));
        let images = rules(&["image/*", "text/csv"]);
        assert!(is_allowed("image/gif", &images) && is_allowed("text/csv", &images));
        assert!(!is_allowed("text/plain", &images) && !is_allowed("imagex/gif", &images));
    }

    #[test]
    fn parses_valid_ranges_and_ignores_invalid_ones() {
        let check = |header, size, expected| {
            assert_eq!(
                requested_range(Some(header), size),
                expected,
                "{header} of {size}"
            );
        };
        check("bytes=0-0", 10, RequestedRange::Part(0..1));
        check("bytes=2-4", 10, RequestedRange::Part(2..5));
        check("bytes=2-", 10, RequestedRange::Part(2..10));
        check("bytes=-3", 10, RequestedRange::Part(7..10));
        check("bytes=-30", 10, RequestedRange::Part(0..10));
        check("bytes=9-99", 10, RequestedRange::Part(9..10));
        check(
            "bytes=0-18446744073709551615",
            10,
            RequestedRange::Part(0..10),
        );
        check(
            "bytes=0-99999999999999999999999",
            10,
            RequestedRange::Part(0..10),
        );
        check("bytes=10-", 10, RequestedRange::Nothing);
        check(
            "bytes=99999999999999999999999-",
            10,
            RequestedRange::Nothing,
        );
        check("bytes=-0", 10, RequestedRange::Nothing);
        check("bytes=0-0", 0, RequestedRange::Nothing);
        for header in [
            "bytes=4-2",
            "bytes=-",
            "bytes=a-b",
            "bytes=1-2,4-5",
            "items=0-1",
            "0-1",
            "bytes=+1-2",
            "bytes=--1",
            "",
        ] {
            check(header, 10, RequestedRange::Full);
        }
        assert_eq!(requested_range(None, 10), RequestedRange::Full);
    }

    #[test]
    fn limits_artifact_access_to_runner_and_conversation() {
        let of = |run, runner, talk, event| Provenance {
            run_id: run,
            runner_id: runner,
            conversation_key: talk,
            event_id: event,
        };
        let reader = of(Some("r2"), Some("p"), Some("c"), Some("e2"));
        let check = |artifact, expected| assert_eq!(artifact_access(reader, artifact), expected);
        check(
            of(Some("r2"), Some("p"), Some("c"), Some("e2")),
            ArtifactAccess::Open,
        );
        check(
            of(Some("r1"), Some("p"), Some("c"), Some("e1")),
            ArtifactAccess::Open,
        );
        check(
            of(Some("r1"), Some("q"), Some("c"), Some("e1")),
            ArtifactAccess::Closed,
        );
        check(
            of(Some("r1"), Some("p"), Some("d"), Some("e1")),
            ArtifactAccess::Closed,
        );
        check(
            of(Some("r1"), Some("p"), None, Some("e2")),
            ArtifactAccess::Closed,
        );
        check(of(None, None, None, Some("e2")), ArtifactAccess::Open);
        check(
            of(None, None, None, Some("e1")),
            ArtifactAccess::IfEventReceived,
        );
        check(of(None, None, None, None), ArtifactAccess::Closed);
        let alone = of(Some("r2"), Some("p"), None, Some("e2"));
        let of_another = of(Some("r1"), Some("p"), None, Some("e1"));
        assert_eq!(artifact_access(alone, of_another), ArtifactAccess::Closed);
    }
}

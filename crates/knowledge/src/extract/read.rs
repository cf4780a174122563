//! Parsers of document formats: bytes in, text and headings out. They run in the child process.

use domain::knowledge::chunk::Heading;
use encoding_rs::{Encoding, UTF_8};
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::charset::{declared, undeclared};
use super::pdf::pdf;
use super::words::PlainMarkdown;

/// Format of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentFormat {
    /// `None`: detected from the bytes.
    Text(Option<&'static Encoding>),
    Markdown(Option<&'static Encoding>),
    /// `None`: the page declares its encoding.
    Html(Option<&'static Encoding>),
    Pdf,
}

/// Extracted text and its headings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extracted {
    pub text: String,
    pub headings: Vec<Heading>,
    /// The parts of the document that could not be read.
    pub missing: Option<String>,
}

const SUPPORTED: &str = "text/plain, text/markdown, text/html or application/pdf";

impl DocumentFormat {
    /// The format of a media type. Text may be in any web encoding.
    pub fn of_media_type(media_type: &str) -> Result<Self, String> {
        let mut parts = media_type.split(';').map(str::trim);
        let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
        let charset = parts.find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            let value = value.trim().trim_matches('"');
            name.trim().eq_ignore_ascii_case("charset").then_some(value)
        });
        let encoding = match charset {
            None => None,
            Some(label) => Some(
                Encoding::for_label(label.as_bytes())
                    .ok_or("has a charset that is not known; send it as UTF-8")?,
            ),
        };
        match essence.as_str() {
            "text/markdown" | "text/x-markdown" => Ok(Self::Markdown(encoding)),
            "text/html" | "application/xhtml+xml" => Ok(Self::Html(encoding)),
            "application/pdf" => Ok(Self::Pdf),
            "application/json" => Ok(Self::Text(encoding)),
            text if text.starts_with("text/") => Ok(Self::Text(encoding)),
            _ => Err(format!("is of a kind that is not read; send {SUPPORTED}")),
        }
    }

    /// The format of a file name's extension.
    pub fn of_name(name: &str) -> Result<Self, String> {
        let unsaid = || format!("has a name without a supported extension; send it as {SUPPORTED}");
        media_type_of(name)
            .ok_or_else(unsaid)
            .and_then(Self::of_media_type)
    }

    /// Media type for the child process, which receives text as UTF-8.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text(_) => "text/plain",
            Self::Markdown(_) => "text/markdown",
            Self::Html(_) => "text/html; charset=utf-8",
            Self::Pdf => "application/pdf",
        }
    }
}

/// The media type of a supported file name extension.
pub fn media_type_of(name: &str) -> Option<&'static str> {
    let (_, ending) = name.rsplit_once('.')?;
    match ending.to_ascii_lowercase().as_str() {
        "md" | "markdown" => Some("text/markdown"),
        "html" | "htm" | "xhtml" => Some("text/html"),
        "pdf" => Some("application/pdf"),
        "txt" | "text" | "rst" | "csv" | "log" => Some("text/plain"),
        _ => None,
    }
}

/// Extracts the text of a document.
pub fn read(kind: DocumentFormat, bytes: &[u8]) -> Result<Extracted, String> {
    match kind {
        DocumentFormat::Text(encoding) => {
            let text = decoded(encoding, bytes)?;
            Ok(Extracted {
                text,
                headings: Vec::new(),
                missing: None,
            })
        }
        DocumentFormat::Markdown(encoding) => Ok(markdown(decoded(encoding, bytes)?)),
        DocumentFormat::Html(encoding) => html(&decoded_html(encoding, bytes)?),
        DocumentFormat::Pdf => pdf(bytes),
    }
}

/// Decodes text, normalizes line ends, and replaces NUL, which databases treat differently.
pub(super) fn decoded(charset: Option<&'static Encoding>, bytes: &[u8]) -> Result<String, String> {
    // A byte order mark takes precedence over a header.
    let (encoding, bytes) = match Encoding::for_bom(bytes) {
        Some((encoding, length)) => (encoding, bytes.get(length..).unwrap_or_default()),
        None => (charset.unwrap_or_else(|| undeclared(bytes)), bytes),
    };
    let text = encoding.decode_without_bom_handling_and_without_replacement(bytes);
    let text = text.ok_or_else(|| {
        let name = encoding.name();
        format!(
            "is not in {name}; name its charset in `Content-Type` or by `kb add --charset`, or send it as UTF-8"
        )
    })?;
    Ok(tidy(&text))
}

/// Decodes a page: by the header's encoding, else by its `<meta>`, else by its bytes.
pub(super) fn decoded_html(
    charset: Option<&'static Encoding>,
    bytes: &[u8],
) -> Result<String, String> {
    let meta = match charset {
        Some(_) => None,
        None => declared(bytes),
    };
    match (charset, meta) {
        (Some(_), _) | (None, None) => decoded(charset, bytes),
        // An editor may have converted the page to UTF-8 without updating `<meta>`.
        (None, Some(encoding)) => {
            let as_declared = decoded(Some(encoding), bytes);
            as_declared.or_else(|fault| decoded(Some(UTF_8), bytes).map_err(|_| fault))
        }
    }
}

pub(super) fn tidy(text: &str) -> String {
    text.replace("\r\n", "\n")
        .replace('\r', "\n")
        .replace('\0', "\u{fffd}")
}

fn markdown(text: String) -> Extracted {
    let mut headings = Vec::new();
    let mut open: Option<Heading> = None;
    // Without this option the metadata block would become a heading.
    let options = Options::ENABLE_TABLES | Options::ENABLE_YAML_STYLE_METADATA_BLOCKS;
    for (event, range) in Parser::new_ext(&text, options).into_offset_iter() {
        match event {
            Event::Start(Tag::Heading { level, .. }) => {
                open = Some(Heading {
                    at: range.start,
                    level: depth(level),
                    title: String::new(),
                });
            }
            Event::Text(words) | Event::Code(words) => {
                if let Some(heading) = &mut open {
                    heading.title.push_str(&words);
                }
            }
            Event::SoftBreak | Event::HardBreak => {
                if let Some(heading) = &mut open {
                    heading.title.push(' ');
                }
            }
            Event::End(TagEnd::Heading(_)) => headings.extend(open.take().map(shortened)),
            _ => {}
        }
    }
    Extracted {
        text,
        headings,
        missing: None,
    }
}

fn depth(level: HeadingLevel) -> u8 {
    match level {
        HeadingLevel::H1 => 1,
        HeadingLevel::H2 => 2,
        HeadingLevel::H3 => 3,
        HeadingLevel::H4 => 4,
        HeadingLevel::H5 => 5,
        HeadingLevel::H6 => 6,
    }
}

/// The title is repeated with each chunk below it, so it is truncated.
fn shortened(mut heading: Heading) -> Heading {
    const MAX_CHARACTERS: usize = 120;
    heading.title = heading.title.trim().chars().take(MAX_CHARACTERS).collect();
    heading
}

/// Converts HTML to Markdown: keeps headings and lists, drops scripts, styles and URLs.
fn html(source: &str) -> Result<Extracted, String> {
    // Disables line wrapping.
    const WIDTH: usize = 100_000;
    let rendered = html2text::config::with_decorator(PlainMarkdown)
        .no_table_borders()
        .no_link_wrapping()
        .raw_mode(true)
        .allow_width_overflow()
        .string_from_read(source.as_bytes(), WIDTH)
        .map_err(|error| format!("is no HTML that can be read: {error}"))?;
    Ok(markdown(tidy(&rendered)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(media_type: &str, bytes: &[u8]) -> Result<Extracted, String> {
        read(DocumentFormat::of_media_type(media_type)?, bytes)
    }

    fn titles(read: &Extracted) -> Vec<(&str, &str)> {
        let line = |heading: &Heading| read.text[heading.at..].lines().next().unwrap();
        let headings = read.headings.iter();
        headings
            .map(|heading| (heading.title.as_str(), line(heading)))
            .collect()
    }

    #[test]
    fn decodes_text_by_declared_charset() {
        for (media_type, bytes, text) in [
            ("text/plain", "größer\r\n天气".as_bytes(), "größer\n天气"),
            ("text/plain; charset=\"utf-8\"", b"\xef\xbb\xbfa\rb", "a\nb"),
            ("text/plain;charset=gbk", b"\xcc\xec\xc6\xf8", "天气"),
            ("text/csv; charset=Shift_JIS", b"\x93V\x8bC", "天気"),
            ("TEXT/PLAIN", b"\xff\xfea\0", "a"),
            ("application/json", b"{\"a\":1}", "{\"a\":1}"),
            ("text/html", b"<meta charset=gbk>\xcc\xec\xc6\xf8", "天气"),
            (
                "text/html",
                b"<meta http-equiv=Content-Type content='text/html; charset=Big5'><p>\xa4\xd1\xae\xf0",
                "天氣",
            ),
            ("text/html", "<meta charset=gbk>€".as_bytes(), "€"),
            ("text/html;charset=utf-8", "<meta charset=gbk>天".as_bytes(), "天"),
            ("text/html", "\u{feff}<meta charset=gbk>天".as_bytes(), "天"),
            ("text/plain", b"a\0b", "a\u{fffd}b"),
            ("text/csv", b"\xc3\xfb\xb3\xc6,\xca\xfd\xc1\xbf\r\n", "名称,数量\n"),
            ("text/html", b"<p>\xcc\xec\xc6\xf8", "天气"),
        ] {
            let read = text_of(media_type, bytes).unwrap().text;
            let read = if media_type.starts_with("text/html") {
                read.trim()
            } else {
                &read
            };
            assert_eq!(read, text, "{media_type}");
        }
        for (media_type, bytes) in [
            ("text/plain", b"\xff\xff".as_slice()),
            ("text/plain; charset=klingon", b"a"),
            ("application/zip", b"PK"),
            ("", b"a"),
        ] {
            assert!(text_of(media_type, bytes).is_err(), "{media_type}");
        }
    }

    #[test]
    fn markdown_keeps_text_and_yields_headings() {
        let source = "intro\n\n# One `x`\n\n```\n# no heading\n```\n\nTwo\n---\n\ntext\n";
        let read = text_of("text/markdown", source.as_bytes()).unwrap();
        assert_eq!(read.text, source);
        assert_eq!(titles(&read), [("One x", "# One `x`"), ("Two", "Two")]);
        assert_eq!(read.headings[1].level, 2);
    }

    #[test]
    fn html_drops_scripts_styles_and_urls() {
        let source = "<html><head><title>T</title><style>p{color:red}</style><script>alert(1)</script></head>\
            <body><h1>Guide &amp; more</h1><p>Run <b>it</b> at <a href='https://x.example/'>home</a>.</p>\
            <script>evil()</script><h2>List</h2><ul><li>one</li><li>二つ</li></ul>\
            <table><tr><td>a</td><td>b</td></tr></table></body></html>";
        let read = text_of("text/html", source.as_bytes()).unwrap();
        for gone in ["evil", "alert", "color", "x.example", "<"] {
            assert!(!read.text.contains(gone), "{gone}: {}", read.text);
        }
        assert!(read.text.contains("Run it at home."), "{}", read.text);
        assert!(read.text.contains("二つ"), "{}", read.text);
        let found: Vec<_> = titles(&read).iter().map(|(title, _)| *title).collect();
        assert_eq!(found, ["Guide & more", "List"], "{}", read.text);
        let deep = "<div>".repeat(5_000) + "deep";
        assert!(
            text_of("text/html", deep.as_bytes())
                .unwrap()
                .text
                .contains("deep")
        );
    }

    #[test]
    fn reports_invalid_pdf() {
        for bytes in [b"%PDF-1.4 nothing".as_slice(), b"", b"hello"] {
            let error = text_of("application/pdf", bytes).unwrap_err();
            assert!(error.contains("PDF"), "{error}");
        }
    }
}

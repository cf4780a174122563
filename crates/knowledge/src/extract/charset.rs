//! Encoding of a text: declared by an HTML page (WHATWG prescan of its first 1024 bytes), or found from the bytes.

use encoding_rs::{Encoding, GB18030, UTF_8, WINDOWS_1252};

/// Number of bytes to scan.
const PRESCAN: usize = 1024;

/// From this number of characters on, a Chinese text has a common one that EUC-KR lacks.
const TELLING: usize = 16;

/// The encoding of a text without a declaration: UTF-8, or GB18030 as office programs for Chinese write it.
pub(super) fn undeclared(bytes: &[u8]) -> &'static Encoding {
    if std::str::from_utf8(bytes).is_err() && is_chinese(bytes) {
        GB18030
    } else {
        UTF_8
    }
}

/// True if all bytes are valid GB18030 and most characters are common in Chinese. Letters of other encodings decode to
/// rare characters.
fn is_chinese(bytes: &[u8]) -> bool {
    let text = GB18030.decode_without_bom_handling_and_without_replacement(bytes);
    if text.is_none() {
        return false;
    }
    let (mut all, mut common, mut beyond_hangul) = (0_usize, 0_usize, false);
    let mut rest = bytes;
    while let Some((&lead, behind)) = rest.split_first() {
        rest = behind;
        if lead <= 0x80 {
            continue;
        }
        let trail = behind.first().copied().unwrap_or_default();
        if trail.is_ascii_digit() {
            // Four bytes: a character outside of GBK.
            rest = behind.get(3..).unwrap_or_default();
            continue;
        }
        rest = behind.get(1..).unwrap_or_default();
        all += 1;
        // Punctuation, and level 1 of GB 2312 in the order of pronunciation.
        let is_common = matches!(lead, 0xA1..=0xA3 | 0xB0..=0xD7) && trail >= 0xA1;
        common += usize::from(is_common);
        // Hangul of EUC-KR ends at 0xC8.
        beyond_hangul |= is_common && lead > 0xC8;
    }
    // Three quarters: names and terms of a Chinese text may be rare characters.
    common.saturating_mul(4) >= all.saturating_mul(3)
        && common > 0
        && (beyond_hangul || all < TELLING)
}

/// The encoding of `<meta charset>`, `<meta http-equiv>` or an XML declaration, if it is known.
pub(super) fn declared(bytes: &[u8]) -> Option<&'static Encoding> {
    let bytes = bytes.get(..PRESCAN).unwrap_or(bytes);
    if bytes.starts_with(b"<?xml") {
        let end = bytes.iter().position(|byte| *byte == b'>')?;
        let mut rest = bytes.get(..end)?;
        while let Some((attribute, behind)) = attribute(rest) {
            if attribute.name == b"encoding" {
                return encoding_for(&attribute.value);
            }
            rest = behind;
        }
    }
    let mut rest = bytes;
    while let Some(position) = rest.iter().position(|byte| *byte == b'<') {
        rest = rest.get(position..)?;
        rest = if let Some(comment) = rest.strip_prefix(b"<!--") {
            behind(comment, b"-->")?
        } else if is_tag(rest, b"<meta") {
            let (found, after) = meta(rest.get(5..)?);
            if found.is_some() {
                return found;
            }
            after
        } else if matches!(rest.get(1), Some(b'!' | b'?')) {
            behind(rest, b">")?
        } else {
            // A `>` inside an attribute does not end the tag.
            let mut inside = rest.get(1..)?;
            if matches!(rest.get(1..3), Some([letter, _] | [b'/', letter]) if letter.is_ascii_alphabetic())
            {
                let is_end = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'>';
                inside = inside.get(inside.iter().position(is_end)?..)?;
                while let Some((_, after)) = attribute(inside) {
                    inside = after;
                }
            }
            inside
        };
    }
    None
}

fn is_tag(bytes: &[u8], tag: &[u8]) -> bool {
    let begins = bytes
        .get(..tag.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(tag));
    let next = bytes.get(tag.len());
    begins && next.is_some_and(|next| next.is_ascii_whitespace() || *next == b'/')
}

fn behind<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<&'a [u8]> {
    let position = bytes
        .windows(mark.len())
        .position(|window| window == mark)?;
    bytes.get(position + mark.len()..)
}

/// The charset of a `<meta>` tag, and the bytes after its attributes.
fn meta(mut rest: &[u8]) -> (Option<&'static Encoding>, &[u8]) {
    let (mut charset, mut content, mut is_content_type) = (None, None, false);
    while let Some((attribute, after)) = attribute(rest) {
        rest = after;
        match attribute.name.as_slice() {
            b"charset" => charset = charset.or(Some(attribute.value)),
            b"content" => content = content.or_else(|| in_content(&attribute.value)),
            b"http-equiv" => is_content_type |= attribute.value == b"content-type",
            _ => {}
        }
    }
    let content = content.filter(|_| is_content_type);
    let label = charset.or(content);
    (label.and_then(|label| encoding_for(&label)), rest)
}

/// The label after `charset=` in a content type.
fn in_content(value: &[u8]) -> Option<Vec<u8>> {
    let mut rest = value;
    loop {
        rest = behind(rest, b"charset")?.trim_ascii_start();
        if let Some(label) = rest.strip_prefix(b"=") {
            let label = label.trim_ascii_start();
            let label = match label.first() {
                Some(quote @ (b'"' | b'\'')) => {
                    label.get(1..)?.split(|byte| byte == quote).next()?
                }
                _ => label
                    .split(|byte| byte.is_ascii_whitespace() || *byte == b';')
                    .next()?,
            };
            return Some(label.to_vec());
        }
    }
}

fn encoding_for(label: &[u8]) -> Option<&'static Encoding> {
    if label.eq_ignore_ascii_case(b"x-user-defined") {
        return Some(WINDOWS_1252);
    }
    // Tags that are readable as ASCII rule out UTF-16.
    let encoding = Encoding::for_label(label)?;
    Some(if encoding.is_ascii_compatible() {
        encoding
    } else {
        UTF_8
    })
}

struct TagAttribute {
    /// Both in lower case.
    name: Vec<u8>,
    value: Vec<u8>,
}

/// The next attribute of a tag and the rest. `None`: the end of the tag.
fn attribute(bytes: &[u8]) -> Option<(TagAttribute, &[u8])> {
    let skipped = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'?');
    let start = bytes.iter().position(|byte| !skipped(byte))?;
    let bytes = bytes.get(start..)?;
    if bytes.first() == Some(&b'>') {
        return None;
    }
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'=' | b'/' | b'>');
    let end = bytes
        .iter()
        .skip(1)
        .position(is_end)
        .map_or(bytes.len(), |end| end + 1);
    let (name, rest) = bytes.split_at(end);
    let name = name.to_ascii_lowercase();
    let Some(value) = rest.trim_ascii_start().strip_prefix(b"=") else {
        let value = Vec::new();
        return Some((TagAttribute { name, value }, rest));
    };
    let value = value.trim_ascii_start();
    let (value, rest) = if let Some(quote @ (b'"' | b'\'')) = value.first() {
        let value = value.get(1..)?;
        let end = value.iter().position(|byte| byte == quote)?;
        (value.get(..end)?, value.get(end + 1..)?)
    } else {
        let is_end = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'>';
        value.split_at(value.iter().position(is_end).unwrap_or(value.len()))
    };
    let value = value.to_ascii_lowercase();
    Some((TagAttribute { name, value }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_undeclared_chinese() {
        let encoded = |label: &str, text: &str| {
            let encoding = Encoding::for_label(label.as_bytes()).unwrap();
            encoding.encode(text).0.into_owned()
        };
        let table = "名称,数量,备注\r\n苹果,3,新鲜\r\n";
        let prose = "今天天气很好，我们一起去公园散步吧。朱镕基说：“价格是€5。”";
        let korean = "안녕하세요, 저는 학생입니다. 오늘 날씨가 좋습니다.";
        for (label, text, expected) in [
            ("utf-8", table, UTF_8),
            ("utf-8", "plain", UTF_8),
            ("gbk", table, GB18030),
            ("gb18030", prose, GB18030),
            ("gb18030", "表情😀", GB18030),
            ("windows-1252", "für größere Häuser", UTF_8),
            ("windows-1252", "café à la crème", UTF_8),
            ("windows-1251", "Привет, как дела", UTF_8),
            ("koi8-r", "Привет, как дела", UTF_8),
            (
                "shift_jis",
                "今日は天気がいいです。散歩に行きましょう。",
                UTF_8,
            ),
            ("euc-kr", korean, UTF_8),
            ("big5", "今天天氣很好，我們一起去公園散步吧。", UTF_8),
        ] {
            let found = undeclared(&encoded(label, text));
            assert_eq!(found, expected, "{label} {text}");
        }
        assert_eq!(undeclared(b"\xcc\xec\xc6\xf8\xff"), UTF_8, "invalid");
    }

    #[test]
    fn finds_the_declared_encoding() {
        for (page, name) in [
            ("<meta charset=\"gbk\">", Some("GBK")),
            (
                "<html><head><META CharSet = 'shift_jis' />",
                Some("Shift_JIS"),
            ),
            ("<p title='a>b'><meta charset=big5>", Some("Big5")),
            (
                "<meta http-equiv=\"Content-Type\" content=\"text/html; charset=gb2312\">",
                Some("GBK"),
            ),
            (
                "<meta content='text/html;charset=\"euc-kr\"' http-equiv=content-type>",
                Some("EUC-KR"),
            ),
            (
                "<?xml version=\"1.0\" encoding=\"koi8-r\"?><html>",
                Some("KOI8-R"),
            ),
            (
                "<!-- <meta charset=gbk> --><meta charset=utf-16>",
                Some("UTF-8"),
            ),
            ("<meta charset=klingon><meta charset=gbk>", Some("GBK")),
            ("<meta name=x content='charset=gbk'>", None),
            ("<metal charset=gbk>", None),
            ("<meta charset=", None),
            ("<", None),
            ("", None),
        ] {
            let found = declared(page.as_bytes()).map(Encoding::name);
            assert_eq!(found, name, "{page}");
        }
        let late = format!("{}<meta charset=gbk>", " ".repeat(PRESCAN));
        assert_eq!(declared(late.as_bytes()), None);
    }
}

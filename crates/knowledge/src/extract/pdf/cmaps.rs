//! Predefined `CMap`s of CJK fonts, which the parser does not support. Such a font gets an embedded `CMap` that
//! defines the bytes of each character, and a map to Unicode that web decoders produce.
//!
//! Codes of these `CMap`s are characters of a charset (GBK, Shift JIS, UTF-16 …), so no glyph table is needed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use encoding_rs::{BIG5, EUC_JP, EUC_KR, Encoding, GB18030, SHIFT_JIS, UTF_16BE};
use pdf_extract::content::Content;
use pdf_extract::{Dictionary, Document, Object, ObjectId, Stream};

/// Maximum number of mapped codes per charset.
const MAX_CODES: usize = 70_000;
/// Maximum nesting of objects.
const MAX_DEPTH: usize = 16;
/// Encodings of simple fonts that the parser supports.
const SIMPLE: [&[u8]; 3] = [
    b"MacRomanEncoding",
    b"MacExpertEncoding",
    b"WinAnsiEncoding",
];

/// Encoding of the codes of a `CMap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Codes {
    Gb,
    Big5,
    ShiftJis,
    EucJp,
    /// Two bytes of seven bits each.
    Jis,
    Korean,
    Utf16,
}

impl Codes {
    /// The encoding of a predefined `CMap`. `None` for others.
    fn of(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?;
        let stem = match name {
            "H" | "V" => return Some(Self::Jis),
            _ => name.strip_suffix("-H").or(name.strip_suffix("-V"))?,
        };
        let stem = stem.strip_suffix("-HW").unwrap_or(stem);
        match stem {
            "GB-EUC" | "GBpc-EUC" | "GBK-EUC" | "GBKp-EUC" | "GBK2K" => Some(Self::Gb),
            "B5pc" | "HKscs-B5" | "ETen-B5" | "ETenms-B5" => Some(Self::Big5),
            "EUC" => Some(Self::EucJp),
            "KSC-EUC" | "KSCms-UHC" | "KSCpc-EUC" => Some(Self::Korean),
            _ if stem.ends_with("-RKSJ") => Some(Self::ShiftJis),
            _ if stem.starts_with("Uni") && stem.ends_with("-UCS2") => Some(Self::Utf16),
            _ if stem.starts_with("Uni") && stem.ends_with("-UTF16") => Some(Self::Utf16),
            _ => None,
        }
    }

    fn encoding(self) -> &'static Encoding {
        match self {
            Self::Gb => GB18030,
            Self::Big5 => BIG5,
            Self::ShiftJis => SHIFT_JIS,
            Self::EucJp | Self::Jis => EUC_JP,
            Self::Korean => EUC_KR,
            Self::Utf16 => UTF_16BE,
        }
    }

    /// Code ranges with their width in bytes. The first byte of a code determines its range.
    fn ranges(self) -> Vec<(u32, u32, usize)> {
        let pairs = |firsts: std::ops::RangeInclusive<u32>, low: u32, high: u32| {
            firsts.map(move |first| (first << 8 | low, first << 8 | high, 2))
        };
        match self {
            Self::Gb => {
                let long = |first: u32| (first << 24 | 0x30_8130, first << 24 | 0x39_FE39, 4);
                let singles = std::iter::once((0, 0x80, 1));
                let two = pairs(0x81..=0xFE, 0x40, 0xFE);
                singles.chain(two).chain((0x81..=0xFE).map(long)).collect()
            }
            Self::Big5 | Self::Korean => std::iter::once((0, 0x80, 1))
                .chain(pairs(0x81..=0xFE, 0x40, 0xFE))
                .collect(),
            Self::ShiftJis => [(0, 0x80, 1), (0xA0, 0xDF, 1), (0xFD, 0xFF, 1)]
                .into_iter()
                .chain(pairs(0x81..=0x9F, 0x40, 0xFC))
                .chain(pairs(0xE0..=0xFC, 0x40, 0xFC))
                .collect(),
            Self::EucJp => std::iter::once((0, 0x80, 1))
                .chain(pairs(0x8E..=0x8E, 0xA0, 0xDF))
                .chain(pairs(0xA1..=0xFE, 0xA1, 0xFE))
                .collect(),
            Self::Jis => pairs(0x21..=0x7E, 0x21, 0x7E).collect(),
            Self::Utf16 => vec![
                (0, 0xD7FF, 2),
                (0xD800_DC00, 0xDBFF_DFFF, 4),
                (0xE000, 0xFFFF, 2),
            ],
        }
    }

    /// The codes of a string, up to the first invalid one.
    fn walk(self, text: &[u8], found: &mut BTreeSet<(usize, u32)>) {
        let ranges = self.ranges();
        let mut rest = text;
        while !rest.is_empty() && found.len() < MAX_CODES {
            // The shortest width wins, as the first byte determines the range.
            let code = [1, 2, 4].into_iter().find_map(|width| {
                let bytes = rest.get(..width)?;
                let code = bytes
                    .iter()
                    .fold(0, |code, byte| code << 8 | u32::from(*byte));
                let is_code = |(low, high, wide): &(u32, u32, usize)| {
                    *wide == width && (*low..=*high).contains(&code)
                };
                ranges.iter().any(is_code).then_some((width, code))
            });
            let Some((width, code)) = code else { return };
            found.insert((width, code));
            rest = rest.get(width..).unwrap_or_default();
        }
    }

    /// A code as UTF-16.
    fn decoded(self, width: usize, code: u32) -> Option<Vec<u16>> {
        let code = if self == Self::Jis {
            // EUC-JP is JIS X 0208 with the high bits set.
            code | 0x8080
        } else {
            code
        };
        let bytes = code.to_be_bytes();
        let bytes = bytes.get(4 - width..)?;
        let text = self
            .encoding()
            .decode_without_bom_handling_and_without_replacement(bytes)?;
        Some(text.encode_utf16().collect())
    }

    /// An identity `CMap`. The parser halves the number of digits to get the width, so codes are written with
    /// twice as many.
    fn own(self) -> String {
        let ranges = self.ranges();
        let mut cmap = format!("{} begincodespacerange\n", ranges.len());
        for (low, high, width) in ranges {
            let digits = width * 4;
            let _ = writeln!(cmap, "<{low:0digits$X}> <{high:0digits$X}>");
        }
        cmap + "endcodespacerange\n1 begincidrange\n<00000000> <FFFFFFFF> 0\nendcidrange\n"
    }

    /// The map of these codes to Unicode.
    fn to_unicode(self, codes: &BTreeSet<(usize, u32)>) -> String {
        let mapped: Vec<_> = codes
            .iter()
            .filter_map(|(width, code)| Some((*width, *code, self.decoded(*width, *code)?)))
            .collect();
        let mut cmap = format!("{} beginbfchar\n", mapped.len());
        for (width, code, units) in mapped {
            let digits = width * 2;
            let _ = write!(cmap, "<{code:0digits$X}> <");
            for unit in units {
                let _ = write!(cmap, "{unit:04X}");
            }
            cmap.push_str(">\n");
        }
        cmap + "endbfchar\n"
    }
}

/// Replaces unsupported encodings: predefined `CMap`s by embedded ones, and encodings of simple fonts.
pub(super) fn embed(document: &mut Document) {
    let names: HashMap<ObjectId, Vec<u8>> = document
        .objects
        .iter()
        .filter_map(|(id, object)| Some((*id, object.as_name().ok()?.to_vec())))
        .collect();
    let mut used = BTreeSet::new();
    for object in document.objects.values() {
        each_dictionary(object, 0, &mut |font| {
            used.extend(
                encoding_name(font, &names)
                    .filter(|_| is(font, b"Type0"))
                    .and_then(Codes::of),
            );
        });
    }
    // Reading all contents is expensive, so do it only if a font needs it.
    let strings = if used.is_empty() {
        Vec::new()
    } else {
        shown_strings(document)
    };
    let mut maps = BTreeMap::new();
    for codes in used {
        let mut found = BTreeSet::new();
        // Map only codes in use: the map of a full charset would be large.
        for text in &strings {
            codes.walk(text, &mut found);
        }
        let mut stream = |text: String| {
            let stream = Stream::new(Dictionary::new(), text.into_bytes());
            Object::Reference(document.add_object(stream))
        };
        let own = stream(codes.own());
        maps.insert(codes, (own, stream(codes.to_unicode(&found))));
    }
    for object in document.objects.values_mut() {
        each_dictionary_mut(object, 0, &mut |font| adapt(font, &names, &maps));
    }
}

type Maps = BTreeMap<Codes, (Object, Object)>;

fn adapt(font: &mut Dictionary, names: &HashMap<ObjectId, Vec<u8>>, maps: &Maps) {
    if is(font, b"CIDFontType0") || is(font, b"CIDFontType2") {
        // The parser requires a descriptor but does not use it.
        if !font.has(b"FontDescriptor") {
            font.set("FontDescriptor", Dictionary::new());
        }
    } else if is(font, b"Type0") {
        let codes = encoding_name(font, names).and_then(Codes::of);
        if let Some((own, to_unicode)) = codes.and_then(|codes| maps.get(&codes)) {
            font.set("Encoding", own.clone());
            // A `ToUnicode` entry by name is unsupported.
            if named(font, b"ToUnicode", names).is_some() || !font.has(b"ToUnicode") {
                font.set("ToUnicode", to_unicode.clone());
            }
        } else if named(font, b"ToUnicode", names).is_some_and(|name| name != b"Identity-H") {
            font.remove(b"ToUnicode");
        }
    } else if is(font, b"Type1") || is(font, b"TrueType") || is(font, b"MMType1") {
        let is_unknown = |name: &[u8]| !SIMPLE.contains(&name);
        if encoding_name(font, names).is_some_and(is_unknown) {
            // The parser's default is PDFDocEncoding, a superset of ASCII.
            font.set("Encoding", Dictionary::new());
        }
    } else if named(font, b"BaseEncoding", names).is_some_and(|name| !SIMPLE.contains(&name)) {
        font.remove(b"BaseEncoding");
    }
}

/// A font of the page without a map to Unicode.
pub(super) fn without_unicode(document: &Document, page: ObjectId) -> Option<String> {
    let fonts = document.get_page_fonts(page).ok()?;
    let names = HashMap::new();
    let found = fonts.values().find_map(|font| {
        let is_bare = is(font, b"Type0") && !font.has(b"ToUnicode");
        encoding_name(font, &names).filter(|_| is_bare)
    })?;
    // The name is untrusted and shown to users.
    let found = String::from_utf8_lossy(found.get(..40).unwrap_or(found)).into_owned();
    Some(format!(
        "its font has the encoding {found} and no map to Unicode"
    ))
}

fn is(font: &Dictionary, subtype: &[u8]) -> bool {
    let own = font.get(b"Subtype").and_then(Object::as_name);
    own.is_ok_and(|own| own == subtype)
}

fn encoding_name<'a>(
    font: &'a Dictionary,
    names: &'a HashMap<ObjectId, Vec<u8>>,
) -> Option<&'a [u8]> {
    named(font, b"Encoding", names)
}

/// A name value, also by reference.
fn named<'a>(
    font: &'a Dictionary,
    key: &[u8],
    names: &'a HashMap<ObjectId, Vec<u8>>,
) -> Option<&'a [u8]> {
    match font.get(key).ok()? {
        Object::Name(name) => Some(name),
        Object::Reference(id) => names.get(id).map(Vec::as_slice),
        _ => None,
    }
}

/// All strings that pages and forms show, in any font.
fn shown_strings(document: &Document) -> Vec<Vec<u8>> {
    let pages = document.page_iter();
    let pages = pages.filter_map(|page| document.get_page_content(page).ok());
    let forms = document.objects.values().filter_map(|object| {
        let stream = object
            .as_stream()
            .ok()
            .filter(|stream| is(&stream.dict, b"Form"))?;
        let plain = stream.decompressed_content();
        Some(plain.unwrap_or_else(|_| stream.content.clone()))
    });
    let mut strings = Vec::new();
    for content in pages.chain(forms) {
        let Ok(content) = Content::decode(&content) else {
            continue;
        };
        for operation in content.operations {
            if ["Tj", "TJ", "'", "\""].contains(&operation.operator.as_str()) {
                operation
                    .operands
                    .into_iter()
                    .for_each(|one| strings_of(one, &mut strings));
            }
        }
    }
    strings
}

fn strings_of(operand: Object, strings: &mut Vec<Vec<u8>>) {
    match operand {
        Object::String(text, _) => strings.push(text),
        Object::Array(items) => items.into_iter().for_each(|one| {
            if let Object::String(text, _) = one {
                strings.push(text);
            }
        }),
        _ => {}
    }
}

fn each_dictionary<'a>(object: &'a Object, depth: usize, act: &mut impl FnMut(&'a Dictionary)) {
    let dictionary = match object {
        _ if depth > MAX_DEPTH => return,
        Object::Array(items) => {
            return items
                .iter()
                .for_each(|item| each_dictionary(item, depth + 1, act));
        }
        Object::Dictionary(dictionary) => dictionary,
        Object::Stream(stream) => &stream.dict,
        _ => return,
    };
    act(dictionary);
    for (_, value) in dictionary {
        each_dictionary(value, depth + 1, act);
    }
}

fn each_dictionary_mut(object: &mut Object, depth: usize, act: &mut impl FnMut(&mut Dictionary)) {
    let dictionary = match object {
        _ if depth > MAX_DEPTH => return,
        Object::Array(items) => {
            return items
                .iter_mut()
                .for_each(|item| each_dictionary_mut(item, depth + 1, act));
        }
        Object::Dictionary(dictionary) => dictionary,
        Object::Stream(stream) => &mut stream.dict,
        _ => return,
    };
    act(dictionary);
    for (_, value) in dictionary.iter_mut() {
        each_dictionary_mut(value, depth + 1, act);
    }
}

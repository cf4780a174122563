//! Replacement text of marked content (`/ActualText`), which the parser ignores. Rectangles mark its begin and end
//! in the content, since the parser passes them to its output.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use pdf_extract::content::{Content, Operation};
use pdf_extract::{
    ColorSpace, ConvertToFmt, Dictionary, Document, MediaBox, Object, ObjectId, OutputDev,
    OutputError, Path, PathOp, PlainTextOutput, Stream, Transform,
};

use super::structure::{ContentId, structured};
use super::text_string;

/// Maximum bytes of all replacement texts of a document. Beyond it glyphs stay.
const MAX_TEXT_BYTES: usize = 4 * 1024 * 1024;
/// First number of a rectangle that is a mark.
const MARK: i64 = 5_395_534;
const BEGIN: i64 = 1;
const END: i64 = 2;
const ACTUAL_TEXT: &[u8] = b"ActualText";

/// The replacement texts of a document, by the number in their mark.
#[derive(Default)]
pub(super) struct Replacements {
    texts: Vec<String>,
    bytes: usize,
}

impl Replacements {
    /// Marks the replacements of all pages and forms.
    pub(super) fn embed(document: &mut Document) -> Self {
        let mut found = Self::default();
        let structured = structured(document);
        // Collect the ids first, because the loop changes the document.
        let pages: Vec<_> = document.page_iter().collect();
        for page in pages {
            let Ok(content) = document.get_page_content(page) else {
                continue;
            };
            let properties = Properties::of_page(document, page, &structured);
            if let Some(marked) = found.marked(&content, &properties) {
                let stream = Stream::new(Dictionary::new(), marked);
                let id = document.add_object(stream);
                if let Ok(page) = document.get_dictionary_mut(page) {
                    page.set("Contents", Object::Reference(id));
                }
            }
        }
        let is_form = |object: &Object| object.as_stream().is_ok_and(|form| is_form(&form.dict));
        let forms = document
            .objects
            .iter()
            .filter(|(_, object)| is_form(object));
        let forms: Vec<_> = forms.map(|(id, _)| *id).collect();
        for id in forms {
            let Ok(form) = document.get_object(id).and_then(Object::as_stream) else {
                continue;
            };
            let content = form.decompressed_content();
            let content = content.unwrap_or_else(|_| form.content.clone());
            let properties = Properties::of_form(document, &form.dict);
            if let Some(marked) = found.marked(&content, &properties)
                && let Ok(Object::Stream(form)) = document.get_object_mut(id)
            {
                form.set_plain_content(marked);
            }
        }
        found
    }

    /// The content with marks. `None`: it has no replacement.
    fn marked(&mut self, content: &[u8], properties: &Properties<'_>) -> Option<Vec<u8>> {
        if properties.are_empty() && !contains(content, ACTUAL_TEXT) {
            return None;
        }
        let content = Content::decode(content).ok()?;
        let before = self.texts.len();
        let mut operations = Vec::with_capacity(content.operations.len());
        // For each open sequence, true if it is replaced. The outermost replacement counts.
        let mut open = Vec::new();
        let mut is_replaced = false;
        for operation in content.operations {
            match operation.operator.as_str() {
                "BMC" | "BDC" => {
                    let text = properties.text_of(&operation).filter(|_| !is_replaced);
                    let number = text.and_then(|text| self.add(text));
                    operations.push(operation);
                    operations.extend(number.into_iter().flat_map(|text| mark(BEGIN, text)));
                    is_replaced |= number.is_some();
                    open.push(number.is_some());
                }
                "EMC" => {
                    if open.pop() == Some(true) {
                        operations.extend(mark(END, 0));
                        is_replaced = false;
                    }
                    operations.push(operation);
                }
                // Inline images have no text, and cannot be written back.
                "BI" => {}
                _ => operations.push(operation),
            }
        }
        // Sequences may be left open at the end of the content.
        if is_replaced {
            operations.extend(mark(END, 0));
        }
        if self.texts.len() == before {
            return None;
        }
        Content { operations }.encode().ok()
    }

    fn add(&mut self, text: String) -> Option<i64> {
        let bytes = self.bytes + text.len();
        if bytes > MAX_TEXT_BYTES {
            return None;
        }
        self.bytes = bytes;
        self.texts.push(text);
        i64::try_from(self.texts.len() - 1).ok()
    }

    /// The text of a mark.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number that is no mark is out of range"
    )]
    fn text(&self, number: f64) -> Option<&str> {
        self.texts.get(number as usize).map(String::as_str)
    }
}

fn mark(kind: i64, text: i64) -> [Operation; 2] {
    let numbers = [MARK, kind, text, 0].map(Object::Integer);
    [
        Operation::new("re", numbers.to_vec()),
        Operation::new("f", Vec::new()),
    ]
}

fn contains(content: &[u8], word: &[u8]) -> bool {
    content.windows(word.len()).any(|window| window == word)
}

fn is_form(stream: &Dictionary) -> bool {
    let kind = stream.get(b"Subtype").and_then(Object::as_name);
    kind.is_ok_and(|kind| kind == b"Form")
}

pub(super) fn text_in(dictionary: &Dictionary, document: &Document) -> Option<String> {
    text_string(dictionary.get_deref(ACTUAL_TEXT, document).ok()?)
}

/// Property lists of the marked content of one stream.
struct Properties<'a> {
    document: &'a Document,
    named: HashMap<&'a [u8], &'a Dictionary>,
    structured: HashMap<i64, &'a str>,
}

impl<'a> Properties<'a> {
    fn of_page(
        document: &'a Document,
        page: ObjectId,
        structured: &'a HashMap<ContentId, String>,
    ) -> Self {
        let (own, inherited) = document.get_page_resources(page).unwrap_or_default();
        let inherited = inherited
            .into_iter()
            .filter_map(|id| document.get_dictionary(id).ok());
        let structured = structured.iter().filter(|((of, _), _)| *of == page);
        Self {
            document,
            named: named(document, own.into_iter().chain(inherited)),
            structured: structured
                .map(|((_, number), text)| (*number, text.as_str()))
                .collect(),
        }
    }

    fn of_form(document: &'a Document, form: &'a Dictionary) -> Self {
        let resources = form.get_deref(b"Resources", document);
        let resources = resources.and_then(Object::as_dict).ok();
        Self {
            document,
            named: named(document, resources.into_iter()),
            structured: HashMap::new(),
        }
    }

    fn are_empty(&self) -> bool {
        self.named.is_empty() && self.structured.is_empty()
    }

    /// The replacement text of an operation that begins marked content.
    fn text_of(&self, begin: &Operation) -> Option<String> {
        let list = match begin.operands.get(1)? {
            Object::Dictionary(list) => list,
            Object::Name(name) => self.named.get(name.as_slice())?,
            _ => return None,
        };
        text_in(list, self.document).or_else(|| {
            let number = list.get(b"MCID").and_then(Object::as_i64).ok()?;
            self.structured.get(&number).map(|text| (*text).to_owned())
        })
    }
}

/// Property lists by name. The first resources that have a name count.
fn named<'a>(
    document: &'a Document,
    resources: impl Iterator<Item = &'a Dictionary>,
) -> HashMap<&'a [u8], &'a Dictionary> {
    let mut named = HashMap::new();
    for resources in resources {
        let lists = resources.get_deref(b"Properties", document);
        let Ok(lists) = lists.and_then(Object::as_dict) else {
            continue;
        };
        for (name, list) in lists {
            let list = document.dereference(list);
            if let Ok(list) = list.and_then(|(_, list)| list.as_dict()) {
                named.entry(name.as_slice()).or_insert(list);
            }
        }
    }
    named
}

/// The text of one page while it is written.
#[derive(Clone, Default)]
pub(super) struct PageText {
    text: Rc<RefCell<String>>,
    is_muted: Rc<Cell<bool>>,
}

impl PageText {
    pub(super) fn take(&self) -> String {
        self.text.take()
    }
}

impl fmt::Write for PageText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if !self.is_muted.get() {
            self.text.borrow_mut().push_str(text);
        }
        Ok(())
    }
}

impl ConvertToFmt for PageText {
    type Writer = Self;

    fn convert(self) -> Self {
        self
    }
}

/// The parser's text output, with replacements in the position of their glyphs.
pub(super) struct ReplacingOutput<'a> {
    plain: PlainTextOutput<PageText>,
    page: PageText,
    replacements: &'a Replacements,
    /// The text of the open replacement. It is empty after its first glyph.
    open: Option<&'a str>,
}

impl<'a> ReplacingOutput<'a> {
    pub(super) fn new(page: &PageText, replacements: &'a Replacements) -> Self {
        Self {
            plain: PlainTextOutput::new(page.clone()),
            page: page.clone(),
            replacements,
            open: None,
        }
    }

    fn begin(&mut self, text: Option<&'a str>) {
        self.open = text;
    }

    /// Ends a replacement. One without a glyph, such as that of a picture, is surrounded by spaces.
    fn end(&mut self) {
        self.page.is_muted.set(false);
        if let Some(text) = self.open.take().filter(|text| !text.is_empty()) {
            let mut page = self.page.text.borrow_mut();
            page.push(' ');
            page.push_str(text);
            page.push(' ');
        }
    }
}

impl OutputDev for ReplacingOutput<'_> {
    fn begin_page(
        &mut self,
        number: u32,
        media_box: &MediaBox,
        art_box: Option<(f64, f64, f64, f64)>,
    ) -> Result<(), OutputError> {
        self.plain.begin_page(number, media_box, art_box)
    }

    fn end_page(&mut self) -> Result<(), OutputError> {
        self.end();
        self.plain.end_page()
    }

    fn output_character(
        &mut self,
        transform: &Transform,
        width: f64,
        spacing: f64,
        font_size: f64,
        glyph: &str,
    ) -> Result<(), OutputError> {
        let text = match &mut self.open {
            Some(text) => std::mem::take(text),
            None => glyph,
        };
        // Muted glyphs still move the position.
        let is_muted = self.open.is_some() && text.is_empty();
        self.page.is_muted.set(is_muted);
        self.plain
            .output_character(transform, width, spacing, font_size, text)
    }

    fn begin_word(&mut self) -> Result<(), OutputError> {
        self.plain.begin_word()
    }

    fn end_word(&mut self) -> Result<(), OutputError> {
        self.plain.end_word()
    }

    fn end_line(&mut self) -> Result<(), OutputError> {
        self.plain.end_line()
    }

    fn fill(
        &mut self,
        _transform: &Transform,
        _colors: &ColorSpace,
        _color: &[f64],
        path: &Path,
    ) -> Result<(), OutputError> {
        #[expect(clippy::cast_precision_loss, reason = "marks are small numbers")]
        let [mark, begin, end] = [MARK, BEGIN, END].map(|number| number as f64);
        if let Some(&PathOp::Rect(first, kind, text, _)) = path.ops.last()
            && is_equal(first, mark)
        {
            if is_equal(kind, begin) {
                self.begin(self.replacements.text(text));
            } else if is_equal(kind, end) {
                self.end();
            }
        }
        Ok(())
    }
}

/// True for equal integers. The parser passes the numbers of a mark as floats, unchanged.
fn is_equal(left: f64, right: f64) -> bool {
    (left - right).abs() < 0.5
}

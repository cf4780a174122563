//! Values of form fields. Viewers draw them from annotations, which the parser does not read.

use std::collections::HashSet;

use pdf_extract::{Dictionary, Document, Object, ObjectId};

use super::text_string;

/// Maximum depth of a field below the root of its form.
const MAX_DEPTH: usize = 16;
/// Maximum number of annotations of one page that are read.
const MAX_ANNOTATIONS: usize = 10_000;
/// Flag of an annotation that is not shown.
const HIDDEN: i64 = 1 << 1;
/// Flag of a text field whose value must not be shown.
const PASSWORD: i64 = 1 << 13;

/// The values of a page's form fields with their labels, and the texts that were typed onto it.
pub(super) fn values(document: &Document, page: ObjectId) -> Vec<String> {
    let page = document.get_dictionary(page);
    let annotations = page.and_then(|page| page.get_deref(b"Annots", document));
    let Ok(annotations) = annotations.and_then(Object::as_array) else {
        return Vec::new();
    };
    let mut fields = HashSet::new();
    let mut values = Vec::new();
    for annotation in annotations.iter().take(MAX_ANNOTATIONS) {
        let Ok((id, Object::Dictionary(annotation))) = document.dereference(annotation) else {
            continue;
        };
        if number(document, annotation, b"F").is_some_and(|flags| flags & HIDDEN != 0) {
            continue;
        }
        match name(document, annotation, b"Subtype") {
            Some(b"Widget") => {
                let field = Field::of_widget(document, id, annotation);
                // Several widgets may show one field, such as buttons of a choice.
                if field.id.is_none_or(|id| fields.insert(id)) {
                    values.extend(field.line());
                }
            }
            Some(b"FreeText") => values.extend(text(document, annotation, b"Contents")),
            _ => {}
        }
    }
    values.retain(|value| !value.trim().is_empty());
    values
}

/// A field with its ancestors. An attribute may be on any of them; the nearest one counts.
struct Field<'a> {
    document: &'a Document,
    id: Option<ObjectId>,
    nodes: Vec<&'a Dictionary>,
}

impl<'a> Field<'a> {
    fn of_widget(document: &'a Document, id: Option<ObjectId>, widget: &'a Dictionary) -> Self {
        let mut nodes = vec![widget];
        let mut own = id;
        let mut node = widget;
        // The depth limit also ends cycles of parents.
        while nodes.len() < MAX_DEPTH
            && let Ok(parent) = node.get(b"Parent")
            && let Ok((parent_id, Object::Dictionary(parent))) = document.dereference(parent)
        {
            // A widget without a name shows the field above it.
            if nodes.len() == 1 && !widget.has(b"T") {
                own = parent_id;
            }
            nodes.push(parent);
            node = parent;
        }
        Self {
            document,
            id: own,
            nodes,
        }
    }

    fn attribute(&self, key: &[u8]) -> Option<&'a Object> {
        let mut found = self.nodes.iter();
        found.find_map(|node| node.get_deref(key, self.document).ok())
    }

    /// Label and value.
    fn line(&self) -> Option<String> {
        let value = self.value()?;
        let value = value.trim();
        match self.label() {
            _ if value.is_empty() => None,
            Some(label) => Some(format!("{label}: {value}")),
            None => Some(value.to_owned()),
        }
    }

    fn label(&self) -> Option<String> {
        let label = self.attribute(b"TU").and_then(text_string);
        let label = label.filter(|label| !label.trim().is_empty());
        label.or_else(|| {
            let names = self.nodes.iter().rev();
            let names: Vec<_> = names
                .filter_map(|node| text(self.document, node, b"T"))
                .collect();
            Some(names.join(".")).filter(|name| !name.is_empty())
        })
    }

    fn value(&self) -> Option<String> {
        let flags = self.attribute(b"Ff").and_then(|flags| flags.as_i64().ok());
        let value = self.attribute(b"V")?;
        match self.attribute(b"FT")?.as_name().ok()? {
            b"Tx" if flags.unwrap_or_default() & PASSWORD != 0 => None,
            b"Tx" => match value {
                Object::Stream(value) => {
                    let value = Object::string_literal(value.decompressed_content().ok()?);
                    text_string(&value)
                }
                value => text_string(value),
            },
            b"Ch" => Some(self.choices(value).join(", ")),
            b"Btn" => {
                let state = value.as_name().ok().filter(|state| *state != b"Off")?;
                Some(String::from_utf8_lossy(state).into_owned())
            }
            _ => None,
        }
    }

    /// Selected options as they are shown.
    fn choices(&self, value: &Object) -> Vec<String> {
        let selected = match value {
            Object::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        let options = self.attribute(b"Opt");
        let options = options
            .and_then(|options| options.as_array().ok())
            .map_or(&[][..], Vec::as_slice);
        let shown = |value: &Object| -> Option<String> {
            let (_, value) = self.document.dereference(value).ok()?;
            let value = text_string(value)?;
            let shown = options.iter().find_map(|option| {
                let (_, option) = self.document.dereference(option).ok()?;
                let [export, shown] = option.as_array().ok()?.as_slice() else {
                    return None;
                };
                let is_it = text_string(export).is_some_and(|export| export == value);
                text_string(shown).filter(|_| is_it)
            });
            Some(shown.unwrap_or(value))
        };
        selected.iter().filter_map(shown).collect()
    }
}

fn text(document: &Document, dictionary: &Dictionary, key: &[u8]) -> Option<String> {
    text_string(dictionary.get_deref(key, document).ok()?)
}

fn name<'a>(document: &'a Document, dictionary: &'a Dictionary, key: &[u8]) -> Option<&'a [u8]> {
    dictionary.get_deref(key, document).ok()?.as_name().ok()
}

fn number(document: &Document, dictionary: &Dictionary, key: &[u8]) -> Option<i64> {
    dictionary.get_deref(key, document).ok()?.as_i64().ok()
}

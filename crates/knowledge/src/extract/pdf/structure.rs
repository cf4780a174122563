//! Replacement texts of the structure tree, by the marked content that they replace.

use std::collections::HashMap;

use pdf_extract::{Dictionary, Document, Object, ObjectId};

use super::replacements::text_in;

/// Maximum number of visited objects of the structure tree.
const MAX_KIDS: usize = 200_000;
/// Maximum nesting of the structure tree below an element with a replacement.
const MAX_DEPTH: usize = 16;

/// Marked content of a page: the page and its number there.
pub(super) type ContentId = (ObjectId, i64);

/// Replacements of the structure tree. The first content of an element gets its text, the rest is empty.
pub(super) fn structured(document: &Document) -> HashMap<ContentId, String> {
    let mut found = HashMap::new();
    // One budget for all elements: shared subtrees would otherwise be visited exponentially often.
    let mut visits = MAX_KIDS;
    for object in document.objects.values() {
        let Ok(element) = object.as_dict() else {
            continue;
        };
        let Some(text) = text_in(element, document) else {
            continue;
        };
        let mut contents = Vec::new();
        let mut walk = StructureWalk {
            document,
            visits: &mut visits,
            contents: &mut contents,
        };
        walk.element(element, None, 0);
        let mut text = Some(text);
        for content in contents {
            let text = text.take().unwrap_or_default();
            // The first element that replaces a content counts.
            found.entry(content).or_insert(text);
        }
    }
    found
}

struct StructureWalk<'a> {
    document: &'a Document,
    visits: &'a mut usize,
    contents: &'a mut Vec<ContentId>,
}

impl StructureWalk<'_> {
    fn element(&mut self, element: &Dictionary, page: Option<ObjectId>, depth: usize) {
        let own = element.get(b"Pg").and_then(Object::as_reference);
        let page = own.ok().or(page);
        if let (Ok(number), Some(page)) = (element.get(b"MCID").and_then(Object::as_i64), page) {
            self.contents.push((page, number));
        } else if let Ok(kids) = element.get(b"K") {
            self.kid(kids, page, depth + 1);
        }
    }

    fn kid(&mut self, kid: &Object, page: Option<ObjectId>, depth: usize) {
        let Some(visits) = self.visits.checked_sub(1).filter(|_| depth <= MAX_DEPTH) else {
            return;
        };
        *self.visits = visits;
        let Ok((_, kid)) = self.document.dereference(kid) else {
            return;
        };
        match (kid, page) {
            (Object::Integer(number), Some(page)) => self.contents.push((page, *number)),
            (Object::Array(kids), _) => {
                for kid in kids {
                    self.kid(kid, page, depth + 1);
                }
            }
            (Object::Dictionary(element), _) => self.element(element, page, depth),
            _ => {}
        }
    }
}

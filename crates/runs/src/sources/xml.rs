//! XML of `WeCom` as JSON: elements are members, repeated ones lists, and others texts.

use quick_xml::events::Event;
use quick_xml::{Reader, XmlVersion};
use serde_json::{Map, Value};

/// Maximum depth of elements.
const MAX_LEVELS: usize = 16;

/// An element that is being read.
#[derive(Default)]
struct Element {
    name: String,
    members: Map<String, Value>,
    text: String,
}

impl Element {
    fn value(self) -> Value {
        if self.members.is_empty() {
            Value::String(self.text)
        } else {
            Value::Object(self.members)
        }
    }

    fn add(&mut self, name: String, value: Value) {
        match self.members.get_mut(&name) {
            Some(Value::Array(items)) => items.push(value),
            Some(first) => {
                let first = first.take();
                self.members.insert(name, Value::Array(vec![first, value]));
            }
            None => {
                self.members.insert(name, value);
            }
        }
    }
}

/// The content of the root element; `None`: the text is no XML, or nested too deep. Entities of the document are not
/// resolved: a document type is refused.
pub(super) fn read_xml(text: &str) -> Option<Value> {
    let mut reader = Reader::from_str(text);
    let mut open: Vec<Element> = Vec::new();
    loop {
        match reader.read_event().ok()? {
            Event::Start(start) => {
                let name = start.name();
                let name = str::from_utf8(name.as_ref()).ok()?.to_owned();
                if open.len() == MAX_LEVELS {
                    return None;
                }
                open.push(Element {
                    name,
                    ..Element::default()
                });
            }
            Event::Empty(empty) => {
                let name = empty.name();
                let name = str::from_utf8(name.as_ref()).ok()?.to_owned();
                open.last_mut()?.add(name, Value::String(String::new()));
            }
            Event::Text(text) => {
                let text = text.xml_content(XmlVersion::Implicit1_0).ok()?;
                // Spaces between elements are none of their content; those within a text are.
                if let Some(element) = open.last_mut()
                    && !(text.trim().is_empty() && element.text.is_empty())
                {
                    element.text.push_str(&text);
                }
            }
            Event::CData(text) => {
                let text = text.xml_content(XmlVersion::Implicit1_0).ok()?;
                open.last_mut()?.text.push_str(&text);
            }
            Event::GeneralRef(reference) => {
                let letter = match reference.resolve_char_ref().ok()? {
                    Some(letter) => letter,
                    None => predefined(&reference.decode().ok()?)?,
                };
                open.last_mut()?.text.push(letter);
            }
            Event::End(_) => {
                let mut element = open.pop()?;
                let name = std::mem::take(&mut element.name);
                match open.last_mut() {
                    Some(parent) => parent.add(name, element.value()),
                    None => return Some(element.value()),
                }
            }
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            Event::DocType(_) | Event::Eof => return None,
        }
    }
}

fn predefined(name: &str) -> Option<char> {
    Some(match name {
        "lt" => '<',
        "gt" => '>',
        "amp" => '&',
        "quot" => '"',
        "apos" => '\'',
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_elements_lists_and_references() {
        let text = "<xml>\n <A><![CDATA[a<b]]></A> <N>7</N><L><I>1</I><I>2</I><I>3</I></L><E/><T>x &amp; &#x41;</T></xml>";
        let expected =
            json!({"A": "a<b", "N": "7", "L": {"I": ["1", "2", "3"]}, "E": "", "T": "x & A"});
        assert_eq!(read_xml(text), Some(expected));
    }

    #[test]
    fn refuses_types_deep_and_broken_documents() {
        let deep = format!("{}{}", "<a>".repeat(17), "</a>".repeat(17));
        for text in [
            "",
            "no xml",
            "<xml>",
            "<a></b>",
            "<!DOCTYPE x [<!ENTITY e \"e\">]><x>&e;</x>",
            "<x>&e;</x>",
            &deep,
        ] {
            assert_eq!(read_xml(text), None, "{text}");
        }
    }
}

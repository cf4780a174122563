//! Canonical JSON, for hashes and comparisons: sorted keys, no spaces.

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::ops::Range;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

/// Serializes a value as canonical JSON.
pub fn canonical_json<T: Serialize>(value: &T) -> String {
    let buffer = OutputBuffer::default();
    let mut serializer = Serializer::with_formatter(&buffer, SortedFormatter::on(&buffer));
    let written = value.serialize(&mut serializer);
    written.expect("our own types have string keys only");
    let mut text = if buffer.needs_fallback.get() {
        canonical_by_value(value)
    } else {
        buffer.text.into_inner()
    };
    // Runs keep some of these texts for their lifetime.
    text.shrink_to_fit();
    String::from_utf8(text).expect("JSON is UTF-8")
}

/// Output buffer, shared by the serializer and the sorter.
struct OutputBuffer {
    text: RefCell<Vec<u8>>,
    /// True if the output has a case that the sorter does not handle; [`canonical_by_value`] handles it.
    needs_fallback: Cell<bool>,
}

/// Initial capacity. Most documents have a few kilobytes.
const INITIAL_CAPACITY: usize = 2048;

impl Default for OutputBuffer {
    fn default() -> Self {
        Self {
            text: RefCell::new(Vec::with_capacity(INITIAL_CAPACITY)),
            needs_fallback: Cell::default(),
        }
    }
}

impl OutputBuffer {
    fn len(&self) -> usize {
        self.text.borrow().len()
    }
}

impl Write for &OutputBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sorts the members of each object at its end.
struct SortedFormatter<'a> {
    buffer: &'a OutputBuffer,
    /// Members of the open objects.
    members: Vec<Member>,
    /// Start of each open object, in the text and in `members`.
    open: Vec<(usize, usize)>,
}

/// Byte offsets of an object member: its start, the end of its key, and its end.
#[derive(Clone, Copy)]
struct Member {
    from: usize,
    key_to: usize,
    to: usize,
}

impl Member {
    /// Returns the range of the key without quotes.
    fn key(self) -> Range<usize> {
        self.from + 1..self.key_to - 1
    }
}

impl<'a> SortedFormatter<'a> {
    fn on(buffer: &'a OutputBuffer) -> Self {
        Self {
            buffer,
            members: Vec::new(),
            open: Vec::new(),
        }
    }

    fn is_escaped(&self, member: Member) -> bool {
        self.buffer.text.borrow()[member.key()].contains(&b'\\')
    }

    /// Sorts the members of the object at `begin`. Its members start at index `outer`.
    fn sort(&mut self, begin: usize, outer: usize) {
        let mut text = self.buffer.text.borrow_mut();
        let members = &mut self.members[outer..];
        let is_sorted = |text: &[u8], members: &[Member]| {
            let rises = |pair: &[Member]| text[pair[0].key()] < text[pair[1].key()];
            members.windows(2).all(rises)
        };
        if !is_sorted(&text, members) {
            members.sort_unstable_by(|a, b| text[a.key()].cmp(&text[b.key()]));
            // Equal neighbours are a duplicate key: the last one wins, which only a map resolves.
            if !is_sorted(&text, members) {
                self.buffer.needs_fallback.set(true);
            }
            let end = text.len();
            for (index, member) in members.iter().enumerate() {
                if index > 0 {
                    text.push(b',');
                }
                text.extend_from_within(member.from..member.to);
            }
            // The sorted copy was appended after the object; move it over the unsorted original.
            text.copy_within(end.., begin);
            text.truncate(end);
        }
        self.members.truncate(outer);
    }
}

impl Formatter for SortedFormatter<'_> {
    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b"{")?;
        self.open.push((self.buffer.len(), self.members.len()));
        Ok(())
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        let from = self.buffer.len();
        // The end of the key and of the value are unknown yet; `end_object_key` and `end_object_value` set them.
        let (key_to, to) = (from, from);
        self.members.push(Member { from, key_to, to });
        Ok(())
    }

    fn end_object_key<W: ?Sized + Write>(&mut self, _writer: &mut W) -> io::Result<()> {
        let key_to = self.buffer.len();
        if let Some(member) = self.members.last_mut() {
            member.key_to = key_to;
            // The order is by characters, not by escapes.
            // A copy of the offsets ends the mutable borrow of `members`.
            let member = *member;
            if self.is_escaped(member) {
                self.buffer.needs_fallback.set(true);
            }
        }
        Ok(())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _writer: &mut W) -> io::Result<()> {
        // Members of nested objects are already removed.
        if let Some(member) = self.members.last_mut() {
            member.to = self.buffer.len();
        }
        Ok(())
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        if let Some((begin, outer)) = self.open.pop() {
            self.sort(begin, outer);
        }
        writer.write_all(b"}")
    }

    /// Raw JSON of unknown order.
    fn write_raw_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        // Raw JSON passes the formatter unparsed: its members were never recorded.
        self.buffer.needs_fallback.set(true);
        writer.write_all(fragment.as_bytes())
    }
}

/// Canonical JSON by way of a `Value`, for keys with escapes, duplicate keys and raw JSON.
fn canonical_by_value<T: Serialize>(value: &T) -> Vec<u8> {
    let value = serde_json::to_value(value).expect("our own types have string keys only");
    let mut text = Vec::with_capacity(256);
    write(&value, &mut text);
    text
}

fn write(value: &Value, text: &mut Vec<u8>) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            text.push(b'{');
            for (index, (key, value)) in entries.into_iter().enumerate() {
                if index > 0 {
                    text.push(b',');
                }
                write_plain(key, text);
                text.push(b':');
                write(value, text);
            }
            text.push(b'}');
        }
        Value::Array(items) => {
            text.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(b',');
                }
                write(item, text);
            }
            text.push(b']');
        }
        other => write_plain(other, text),
    }
}

fn write_plain<T: Serialize + ?Sized>(value: &T, text: &mut Vec<u8>) {
    serde_json::to_writer(text, value).expect("texts and numbers always serialise");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn sorts_keys_at_every_depth_without_spaces() {
        let value = json!({"b": [{"z": 1, "a": "\n"}], "a": null});
        assert_eq!(
            canonical_json(&value),
            r#"{"a":null,"b":[{"a":"\n","z":1}]}"#
        );
    }

    #[test]
    fn canonical_text_has_no_spare_capacity() {
        let text = canonical_json(&json!({"scope": "global"}));
        assert_eq!(text.capacity(), text.len());
    }

    /// A struct serializes its fields in declaration order.
    #[derive(Serialize)]
    struct Unsorted {
        zebra: Value,
        #[serde(rename = "ant")]
        second: Value,
        bee: f64,
        #[serde(flatten)]
        more: serde_json::Map<String, Value>,
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            let key = prop_oneof!["[ !a-c]{0,3}", any::<String>()];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::vec((key, inner), 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn sorts_raw_json_fragments() {
        let raw = RawValue::from_string(r#"{ "b": 1, "a": 2 }"#.to_owned()).unwrap();
        assert_eq!(canonical_json(&[raw]), r#"[{"a":2,"b":1}]"#);
    }

    proptest! {
        #[test]
        fn matches_serialization_of_sorted_value(
            zebra in any_json(), second in any_json(), bee in any::<f64>(), more in any_json(),
        ) {
            let more = more.as_object().cloned().unwrap_or_default();
            let value = Unsorted { zebra, second, bee, more };
            let slow = String::from_utf8(canonical_by_value(&value)).unwrap();
            prop_assert_eq!(canonical_json(&value), slow);
        }
    }
}

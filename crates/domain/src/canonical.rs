//! Canonical JSON: sorted keys, no spaces. What is hashed or compared is written this way.

use memchr::memchr2;
use serde::Serialize;
use serde_json::Value;

/// The canonical text of a value.
pub fn canonical_json<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_vec(value).expect("our own types have string keys only");
    let mut sorting = Sorting::new(&text);
    let sorted = sorting.value().and_then(|()| sorting.finish());
    String::from_utf8(sorted.unwrap_or_else(|| slowly(value))).expect("JSON is UTF-8")
}

/// Text as it was just written, whose objects are brought into order. Nothing is built of it; what looks
/// otherwise than our own serializer writes is left to [`slowly`].
struct Sorting<'a> {
    text: &'a [u8],
    at: usize,
    sorted: Vec<u8>,
    /// The members of the objects that are open.
    members: Vec<Member<'a>>,
    depth: usize,
}

/// A member of an object: its key as it is written, and where it stands in what is sorted.
#[derive(Clone, Copy)]
struct Member<'a> {
    key: &'a [u8],
    from: usize,
    to: usize,
}

/// Deeper values are left to [`slowly`].
const MOST_DEPTH: usize = 128;

impl<'a> Sorting<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self {
            text,
            at: 0,
            sorted: Vec::with_capacity(text.len()),
            members: Vec::new(),
            depth: 0,
        }
    }

    fn finish(self) -> Option<Vec<u8>> {
        (self.at == self.text.len()).then_some(self.sorted)
    }

    fn value(&mut self) -> Option<()> {
        match self.text.get(self.at)? {
            b'{' => self.deeper(Self::object),
            b'[' => self.deeper(Self::array),
            b'"' => self.string().map(drop),
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => self.plain(),
            _ => None,
        }
    }

    fn deeper(&mut self, read: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return None;
        }
        read(self)?;
        self.depth -= 1;
        Some(())
    }

    /// Takes a byte over.
    fn take(&mut self, byte: u8) -> Option<()> {
        if *self.text.get(self.at)? != byte {
            return None;
        }
        self.sorted.push(byte);
        self.at += 1;
        Some(())
    }

    fn next_is(&self, byte: u8) -> bool {
        self.text.get(self.at) == Some(&byte)
    }

    fn array(&mut self) -> Option<()> {
        self.take(b'[')?;
        while !self.next_is(b']') {
            self.value()?;
            if !self.next_is(b']') {
                self.take(b',')?;
            }
        }
        self.take(b']')
    }

    fn object(&mut self) -> Option<()> {
        self.take(b'{')?;
        let (begin, outer) = (self.sorted.len(), self.members.len());
        while !self.next_is(b'}') {
            let from = self.sorted.len();
            let key = self.string()?;
            // In order are the characters, not their escapes.
            if key.contains(&b'\\') {
                return None;
            }
            self.take(b':')?;
            self.value()?;
            let to = self.sorted.len();
            self.members.push(Member { key, from, to });
            if !self.next_is(b'}') {
                self.take(b',')?;
            }
        }
        self.sort(begin, outer)?;
        self.members.truncate(outer);
        self.take(b'}')
    }

    /// Brings the members behind `outer` into order, which stand behind `begin`.
    fn sort(&mut self, begin: usize, outer: usize) -> Option<()> {
        let members = self.members.get_mut(outer..)?;
        if members.windows(2).all(|pair| pair[0].key < pair[1].key) {
            return Some(());
        }
        members.sort_unstable_by_key(|member| member.key);
        if members.windows(2).any(|pair| pair[0].key == pair[1].key) {
            return None;
        }
        let end = self.sorted.len();
        for (place, member) in members.iter().enumerate() {
            if place > 0 {
                self.sorted.push(b',');
            }
            self.sorted.extend_from_within(member.from..member.to);
        }
        self.sorted.copy_within(end.., begin);
        self.sorted.truncate(end);
        Some(())
    }

    /// Takes a string over; gives what is between its quotes.
    fn string(&mut self) -> Option<&'a [u8]> {
        if !self.next_is(b'"') {
            return None;
        }
        let from = self.at;
        self.at += 1;
        let inner = loop {
            self.at += memchr2(b'"', b'\\', self.text.get(self.at..)?)?;
            if self.next_is(b'"') {
                break &self.text[from + 1..self.at];
            }
            self.at += 2;
        };
        self.at += 1;
        self.sorted.extend_from_slice(&self.text[from..self.at]);
        Some(inner)
    }

    /// Takes a number or a word over.
    fn plain(&mut self) -> Option<()> {
        let rest = &self.text[self.at..];
        let is_end = |byte: &u8| matches!(byte, b',' | b']' | b'}');
        let length = rest.iter().position(is_end).unwrap_or(rest.len());
        let plain = &rest[..length];
        self.sorted.extend_from_slice(plain);
        self.at += length;
        (!plain.iter().any(u8::is_ascii_whitespace)).then_some(())
    }
}

/// The same by way of a value, for what has keys with escapes or the same key twice.
fn slowly<T: Serialize>(value: &T) -> Vec<u8> {
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

    use super::*;

    #[test]
    fn keys_are_sorted_at_every_depth_and_nothing_is_spaced() {
        let value = json!({"b": [{"z": 1, "a": "\n"}], "a": null});
        assert_eq!(
            canonical_json(&value),
            r#"{"a":null,"b":[{"a":"\n","z":1}]}"#
        );
    }

    /// A struct writes its fields in the order of its own.
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
            let key = prop_oneof!["[a-c]{0,2}", any::<String>()];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::vec((key, inner), 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn text_that_is_sorted_is_what_a_value_would_be(
            zebra in any_json(), second in any_json(), bee in any::<f64>(), more in any_json(),
        ) {
            let more = more.as_object().cloned().unwrap_or_default();
            let value = Unsorted { zebra, second, bee, more };
            let slow = String::from_utf8(slowly(&value)).unwrap();
            prop_assert_eq!(canonical_json(&value), slow);
        }
    }
}

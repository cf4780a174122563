//! A cursor decodes to the position it was made from, for its own list only. No other text decodes.

use std::sync::LazyLock;

use crate::keys_cursor::{Cursors, CursorKind};

static CURSORS: LazyLock<Cursors> =
    LazyLock::new(|| Cursors::new(&[vec![1; 32], vec![2; 32]]).expect("two keys"));
static OTHERS: LazyLock<Cursors> = LazyLock::new(|| Cursors::new(&[vec![3; 32]]).expect("a key"));

const KINDS: [CursorKind; 4] = [CursorKind::History, CursorKind::Runs, CursorKind::Names, CursorKind::Storage];

pub fn check(data: &[u8]) {
    let (choice, rest) = crate::split(data);
    let (at, rest) = crate::split(rest);
    let kind = KINDS[usize::from(choice) % KINDS.len()];
    let (list, position) = rest.split_at(usize::from(at) % (rest.len() + 1));
    let list = String::from_utf8_lossy(list);
    // A text that decodes is exactly the encoding of its position. (libFuzzer traces comparisons, so it finds
    // cursors that were encoded here.)
    if let Ok(text) = std::str::from_utf8(rest)
        && let Ok(position) = CURSORS.decode(kind, &list, text)
    {
        assert_eq!(CURSORS.encode(kind, &list, &position), text, "never made");
    }
    let made = CURSORS.encode(kind, &list, position);
    let opened = CURSORS.decode(kind, &list, &made);
    if made.len() <= 1024 {
        assert_eq!(opened.as_deref(), Ok(position));
    } else {
        assert!(opened.is_err(), "larger than any cursor");
    }
    assert!(OTHERS.decode(kind, &list, &made).is_err(), "opened by another key");
    assert!(CURSORS.decode(kind, &format!("{list}x"), &made).is_err(), "opened in another list");
    for other in KINDS.into_iter().filter(|other| *other != kind) {
        assert!(CURSORS.decode(other, &list, &made).is_err(), "opened as {other:?}");
    }
    // Replace one byte, chosen by the input.
    let mut tampered = made.clone().into_bytes();
    let index = usize::from(at) % tampered.len();
    tampered[index] = b"ABCabc019-_+/=. "[usize::from(choice) % 16];
    let tampered = String::from_utf8(tampered).expect("ASCII");
    assert_eq!(CURSORS.decode(kind, &list, &tampered).is_ok(), tampered == made && made.len() <= 1024);
    assert!(CURSORS.decode(kind, &list, &format!("{made}=")).is_err());
}

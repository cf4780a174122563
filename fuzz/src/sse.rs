//! Chunks with any boundaries give the same events as a simple reference parser.

use protocol::sse::{Decoder, SseError, SseEvent, SseItem, SseLimits};

const LIMITS: SseLimits = SseLimits {
    line_bytes: 64,
    event_bytes: 96,
};

type Read = (Vec<SseItem>, Result<(), SseError>);

pub fn check(data: &[u8]) {
    let (size, stream) = crate::split(data);
    let complete = read(stream.chunks(stream.len().max(1)));
    let cut = read(stream.chunks(usize::from(size % 16) + 1));
    assert_eq!(
        complete,
        cut,
        "in one chunk and in chunks of {}",
        size % 16 + 1
    );
    assert_eq!(
        complete,
        reference(stream),
        "the decoder and the reference parser"
    );
    let decoded_bytes: usize = complete
        .0
        .iter()
        .map(|item| match item {
            SseItem::Event(event) => event.data.len(),
            SseItem::Comment => 0,
        })
        .sum();
    assert!(
        decoded_bytes <= stream.len(),
        "data is longer than its input"
    );
}

fn read<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Read {
    let mut decoder = Decoder::new(LIMITS);
    let mut items = Vec::new();
    for chunk in chunks {
        if let Err(error) = decoder.push(chunk, &mut items) {
            return (items, Err(error));
        }
    }
    (items, Ok(()))
}

/// Lines of a stream, and the unterminated rest.
fn lines(stream: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let (mut lines, mut rest) = (Vec::new(), stream);
    while let Some(at) = rest.iter().position(|byte| b"\r\n".contains(byte)) {
        let end = if rest[at..].starts_with(b"\r\n") {
            2
        } else {
            1
        };
        lines.push(&rest[..at]);
        rest = &rest[at + end..];
    }
    (lines, rest)
}

fn reference(stream: &[u8]) -> Read {
    let mut items = Vec::new();
    let (lines, open) = lines(stream);
    let (mut event, mut data): (SseEvent, Vec<&[u8]>) = (SseEvent::default(), Vec::new());
    for (index, line) in lines.into_iter().enumerate() {
        if line.len() > LIMITS.line_bytes {
            return (items, Err(SseError::LineTooLong));
        }
        let line = match line.strip_prefix("\u{feff}".as_bytes()) {
            Some(rest) if index == 0 => rest,
            _ => line,
        };
        if line.is_empty() {
            let mut done = std::mem::take(&mut event);
            let data = std::mem::take(&mut data);
            if !data.is_empty() {
                done.data = data.join(&b'\n');
                items.push(SseItem::Event(done));
            }
            continue;
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().unwrap_or_default();
        let value = parts.next();
        if name.is_empty() && value.is_some() {
            items.push(SseItem::Comment);
            continue;
        }
        let value = value.unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                let joined = data.join(&b'\n').len();
                if joined + value.len() + 1 > LIMITS.event_bytes {
                    return (items, Err(SseError::EventTooLarge));
                }
                data.push(value);
            }
            b"event" => event.event = String::from_utf8(value.to_vec()).ok(),
            b"id" if !value.contains(&0) => event.id = String::from_utf8(value.to_vec()).ok(),
            _ => {}
        }
    }
    if open.len() > LIMITS.line_bytes {
        return (items, Err(SseError::LineTooLong));
    }
    (items, Ok(()))
}

//! `for_each` and `repeat`.

use crate::action::{ForEach, Repeat, Rest};
use crate::code::Code;
use crate::limits::{FOR_EACH_MAX, REPEAT_DELAY_MAX, REPEAT_MAX};
use crate::reader::FieldReader;

use super::{read_condition, read_reference};

pub(super) fn read_for_each(reader: &mut FieldReader<'_>) -> Option<ForEach> {
    let object = reader.object("for_each", Code::WrongJsonType)?;
    let at = reader.at("for_each");
    let mut inner = FieldReader::new(object, &at, reader.found());
    if !inner.has("items") {
        inner.add(Code::MissingField, "items", "`items` is missing");
    }
    let items = read_reference(&mut inner, "items");
    if !inner.has("max") {
        inner.add(Code::LoopUnbounded, "max", "`for_each` has no `max`");
    }
    // Read with the full range, so that a too large number gets its own code.
    let max: Option<u32> = inner.number("max", 1, u64::from(u32::MAX));
    if max.is_some_and(|max| max > u32::from(FOR_EACH_MAX)) {
        inner.add(
            Code::FanOutTooLarge,
            "max",
            format!("`max` exceeds {FOR_EACH_MAX}"),
        );
    }
    // Other formats name the item; here it is always `item`.
    let _ = inner.text("as", 64);
    let failures = inner.number("max_failures", 0, u64::from(FOR_EACH_MAX));
    let from = inner.number("from", 0, u64::from(u32::MAX));
    let rests = [Rest::Refuse, Rest::Leave].map(|rest| (rest.as_str(), rest));
    let rest = inner.word("rest", Code::BadEnum, &rests);
    inner.rest();
    Some(ForEach {
        items: items?,
        // Reported above; the bound keeps later sums small.
        max: u16::try_from(max?)
            .unwrap_or(FOR_EACH_MAX)
            .min(FOR_EACH_MAX),
        max_failures: failures.unwrap_or_default(),
        from: from.unwrap_or_default(),
        rest: rest.unwrap_or_default(),
    })
}

pub(super) fn read_repeat(reader: &mut FieldReader<'_>) -> Option<Repeat> {
    let object = reader.object("repeat", Code::WrongJsonType)?;
    let at = reader.at("repeat");
    let mut inner = FieldReader::new(object, &at, reader.found());
    for key in ["max", "until"] {
        if !inner.has(key) {
            inner.add(Code::LoopUnbounded, key, format!("`repeat` has no `{key}`"));
        }
    }
    let max: Option<u32> = inner.number("max", 1, u64::from(u32::MAX));
    if max.is_some_and(|max| max > u32::from(REPEAT_MAX)) {
        inner.add(
            Code::LoopUnbounded,
            "max",
            format!("`max` exceeds {REPEAT_MAX}"),
        );
    }
    let until = read_condition(&mut inner, "until");
    let delay = inner.number("delay_ms", 0, u64::from(REPEAT_DELAY_MAX));
    inner.rest();
    Some(Repeat {
        // Reported above; the bound keeps the repetition finite.
        max: u8::try_from(max?).unwrap_or(REPEAT_MAX).min(REPEAT_MAX),
        until: until?,
        delay_ms: delay.unwrap_or_default(),
    })
}

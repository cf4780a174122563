//! Token counts: the caller's function, or an estimate.

/// Counts the tokens of a text.
pub type TokenCounter<'a> = &'a dyn Fn(&str) -> usize;

/// Bytes that are counted exactly; the rest of a longer text is extrapolated.
const COUNTED: usize = 64 << 10;
/// Bytes that one token has at most, for cutting a text before it is counted.
pub(crate) const TOKEN_BYTES: usize = 16;

/// Estimates tokens: four ASCII characters, or one other character, are a token.
pub fn estimate(text: &str) -> usize {
    let (mut ascii, mut others) = (0_usize, 0_usize);
    for letter in text.chars() {
        if letter.is_ascii() {
            ascii += 1;
        } else {
            others += 1;
        }
    }
    ascii.div_ceil(4) + others
}

/// Tokens of a text; beyond 64 KiB extrapolated from its beginning.
pub fn count_long(text: &str, count: TokenCounter<'_>) -> usize {
    if text.len() <= COUNTED {
        return count(text);
    }
    let head = head_bytes(text, COUNTED);
    // Multiplied before the division, which would lose the fraction.
    count(head).saturating_mul(text.len()) / head.len().max(1)
}

/// The first `most` bytes at most, at a character.
pub(crate) fn head_bytes(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

/// The last `most` bytes at most, at a character.
pub(crate) fn tail_bytes(text: &str, max_bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(max_bytes))..]
}

/// The longest beginning within `most` tokens, at a line where one ends early enough.
pub fn clip_head<'a>(text: &'a str, max_tokens: usize, count: TokenCounter<'_>) -> &'a str {
    // Cut by bytes before the first count, which may be expensive.
    let text = head_bytes(text, max_tokens.saturating_mul(TOKEN_BYTES));
    if count(text) <= max_tokens {
        return text;
    }
    // Assumes that counts grow with the text, as tokenizers nearly do.
    let fitting = bisect(text.len(), |end| count(head_bytes(text, end)) <= max_tokens);
    let clipped = head_bytes(text, fitting);
    match clipped.rfind('\n') {
        // A line break in the first half would waste too much of the budget.
        Some(line) if line > clipped.len() / 2 => &clipped[..line],
        _ => clipped,
    }
}

/// The longest end within `most` tokens, at a line where one begins late enough.
pub fn clip_tail<'a>(text: &'a str, max_tokens: usize, count: TokenCounter<'_>) -> &'a str {
    let text = tail_bytes(text, max_tokens.saturating_mul(TOKEN_BYTES));
    if count(text) <= max_tokens {
        return text;
    }
    let fitting = bisect(text.len(), |end| count(tail_bytes(text, end)) <= max_tokens);
    let clipped = tail_bytes(text, fitting);
    match clipped.find('\n') {
        Some(line) if line < clipped.len() / 2 => &clipped[line + 1..],
        _ => clipped,
    }
}

/// The largest size below `most` that fits.
fn bisect(max: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, max);
    while low < high {
        // Rounded up, or the loop would not end with two candidates left.
        let middle = (low + high).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clips_at_lines_within_the_bound() {
        let text = "one line\ntwo line\nthree line\n".repeat(40);
        for max in [0, 1, 5, 20, 100] {
            let head = clip_head(&text, max, &estimate);
            let tail = clip_tail(&text, max, &estimate);
            assert!(estimate(head) <= max && text.starts_with(head));
            assert!(estimate(tail) <= max && text.ends_with(tail));
        }
        assert_eq!(estimate("工具栏"), 3);
    }
}

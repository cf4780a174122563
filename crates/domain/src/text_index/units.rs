//! Splits a text into units: words of scripts with spaces, single signs of other scripts.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Maximum units of a text. The rest is not searchable.
const MAX_UNITS: usize = 8000;

/// One word or sign, folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) text: String,
    /// True if a gap separates this sign from the previous one.
    pub(super) follows_gap: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharKind {
    /// A part of a word.
    Letter,
    /// A unit of its own.
    Sign,
    /// Combines with the previous character.
    Mark,
    /// Separates units.
    Gap,
}

pub(super) fn units(text: &str) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut before = CharKind::Gap;
    let mut last = CharKind::Gap;
    for letter in fold(text).chars() {
        let kind = kind_of(letter);
        let continues = match kind {
            // A gap ends a word, but does not reset `last`: signs compare across it.
            CharKind::Gap => {
                before = CharKind::Gap;
                continue;
            }
            // A mark without a base character is not searchable.
            CharKind::Mark if before == CharKind::Gap => continue,
            CharKind::Mark => true,
            CharKind::Letter => before == CharKind::Letter,
            CharKind::Sign => false,
        };
        if continues {
            if let Some(unit) = units.last_mut() {
                unit.text.push(letter);
            }
            continue;
        }
        // Each unit costs two terms of the index: a bound for huge texts.
        if units.len() == MAX_UNITS {
            break;
        }
        let signs = kind == CharKind::Sign && last == CharKind::Sign;
        units.push(Unit {
            text: letter.to_string(),
            follows_gap: signs && before == CharKind::Gap,
        });
        last = kind;
        before = kind;
    }
    units
}

/// Returns true for a sign of a script without spaces, or a picture.
pub(super) fn is_sign(unit: &Unit) -> bool {
    let first = unit.text.chars().next();
    first.is_some_and(|letter| kind_of(letter) == CharKind::Sign)
}

/// Folds look-alikes: width, case, ligatures, and accents of Latin and Greek. Marks of other scripts change the
/// word and stay.
fn fold(text: &str) -> String {
    // The normalization of long ASCII texts costs more than all other steps.
    if text.is_ascii() {
        text.to_ascii_lowercase()
    } else {
        fold_any(text)
    }
}

fn fold_any(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    let mut has_loose_marks = false;
    // NFKD separates accents from letters and folds width and ligatures.
    for letter in text.nfkd().filter(|letter| !is_invisible(*letter)) {
        if is_combining_mark(letter) {
            // Users search `cafe` for `café`; a mark of Hindi or Thai changes the word.
            if has_loose_marks {
                continue;
            }
        } else {
            has_loose_marks = is_latin_or_greek(letter);
        }
        // A final sigma and `ß` have several spellings that `to_lowercase` does not unify.
        for letter in letter.to_lowercase() {
            match letter {
                'ς' => folded.push('σ'),
                'ß' => folded.push_str("ss"),
                letter => folded.push(letter),
            }
        }
    }
    // Composes the remaining marks, so that equal texts have equal units.
    folded.nfc().collect()
}

fn kind_of(letter: char) -> CharKind {
    if letter.is_ascii() {
        return if letter.is_ascii_alphanumeric() {
            CharKind::Letter
        } else {
            CharKind::Gap
        };
    }
    let is_mark = is_combining_mark(letter);
    // Before the check for marks: Thai vowels are marks, but signs of their script.
    if is_picture(letter) || is_unspaced(letter) && (letter.is_alphanumeric() || is_mark) {
        CharKind::Sign
    } else if is_mark {
        CharKind::Mark
    } else if letter.is_alphanumeric() {
        CharKind::Letter
    } else {
        CharKind::Gap
    }
}

/// Scripts without spaces between words, and Hangul, whose words carry particles.
fn is_unspaced(letter: char) -> bool {
    matches!(u32::from(letter),
        0x0e00..=0x0eff // Thai, Lao
        | 0x1000..=0x109f // Myanmar
        | 0x1100..=0x11ff | 0xa960..=0xa97f | 0xac00..=0xd7ff // Hangul
        | 0x1780..=0x17ff // Khmer
        | 0x2e80..=0x2fdf | 0x3005..=0x3007 | 0x3021..=0x303b // Han radicals and numbers
        | 0x3041..=0x3098 | 0x309b..=0x318f // Kana, Bopomofo, Hangul letters
        | 0x31a0..=0x31ff | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff // Han
        | 0x1aff0..=0x1b16f | 0x20000..=0x3ffff)
}

/// Emoji and symbols.
fn is_picture(letter: char) -> bool {
    matches!(u32::from(letter), 0x2600..=0x27bf | 0x1f000..=0x1faff)
}

fn is_latin_or_greek(letter: char) -> bool {
    letter.is_ascii_alphabetic()
        || matches!(u32::from(letter), 0xc0..=0x24f | 0x370..=0x3ff | 0x1e00..=0x1fff)
}

/// Joiners, variation selectors and direction marks: they affect only the rendering.
fn is_invisible(letter: char) -> bool {
    matches!(u32::from(letter),
        0xad | 0x34f | 0x61c | 0x180b..=0x180f | 0x200b..=0x200f | 0x202a..=0x202e
        | 0x2060..=0x206f | 0x20d0..=0x20ff | 0xfe00..=0xfe0f | 0xfeff | 0xe0000..=0xe0fff)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ascii_fast_path_folds_like_general_path(text in "[\\x00-\\x7f]{0,40}") {
            prop_assert_eq!(fold(&text), fold_any(&text));
        }
    }
}

use proptest::prelude::*;

use super::*;

fn joined_units(text: &str) -> String {
    let mut joined_units = String::new();
    for unit in units(text) {
        let follows_gap = if unit.follows_gap { "/" } else { " " };
        joined_units.push_str(if joined_units.is_empty() {
            ""
        } else {
            follows_gap
        });
        joined_units.push_str(&unit.text);
    }
    joined_units
}

#[test]
fn splits_text_into_words_and_signs() {
    for (text, expected) in [
        ("Hello, big World!", "hello big world"),
        (
            "don't well-known foo_bar v1.2",
            "don t well known foo bar v1 2",
        ),
        ("今天天气不错", "今 天 天 气 不 错"),
        ("今天，天气 不错", "今 天/天 气/不 错"),
        ("タワー ﾀﾜｰ", "タ ワ ー/タ ワ ー"),
        ("ﾊﾟﾝ パン パン", "パ ン/パ ン/パ ン"),
        ("東京タワーはtallです", "東 京 タ ワ ー は tall で す"),
        ("학교에서 학교", "학 교 에 서/학 교"),
        ("ＡＢＣ１２３　ａｂｃ", "abc123 abc"),
        ("Café CAFÉ café", "cafe cafe cafe"),
        ("Straße STRASSE ẞ", "strasse strasse ss"),
        ("Σίσυφος ΣΊΣΥΦΟΣ", "σισυφοσ σισυφοσ"),
        ("İstanbul ISTANBUL", "istanbul istanbul"),
        ("ёлка Ёлка", "ёлка ёлка"),
        ("ﬁn fin", "fin fin"),
        ("हिन्दी में", "हिन्दी में"),
        ("ที่นี่", "ท ี ่ น ี ่"),
        ("ok 👍🏽 ❤️", "ok 👍 🏽/❤"),
        ("co\u{ad}op\u{200d}er", "cooper"),
        ("\u{301}a \u{3099}", "a"),
        ("… !?。、", ""),
        ("a\0b", "a b"),
    ] {
        assert_eq!(joined_units(text), expected, "{text}");
    }
}

#[test]
fn query_matches_texts_with_all_phrases() {
    for (query, text, found) in [
        ("world hello", "Hello big world", true),
        ("\"hello world\"", "Hello big world", false),
        ("\"big  WORLD\"", "Hello (big) world", true),
        ("wor", "Hello big world", false),
        ("hello nobody", "Hello big world", false),
        ("天气", "今天天气不错", true),
        ("气", "今天天气不错", true),
        ("天气", "今天，气温", false),
        ("天不", "今天天气不错", false),
        ("不错 今天", "今天天气不错", true),
        ("天气，今天", "今天天气不错", true),
        ("\"今天 天气\"", "今天天气不错", true),
        ("\"今天 天气\"", "今天。天气不错", true),
        ("\"今天 不错\"", "今天天气不错", false),
        ("タワー", "東京ﾀﾜｰ", true),
        ("京タ", "東京タワー", true),
        ("학교", "학교에서", true),
        ("resume", "Mein Résumé", true),
        ("ＧＰＴ", "gpt と話す", true),
        ("gpt手机", "GPT 手机", true),
        ("👍", "gut 👍🏽", true),
        ("foo-bar", "foo bar", true),
        ("foo-bar", "bar foo", false),
        ("5\" screen", "a screen of 5 inches", true),
        ("“big world”", "big small world", false),
        ("OR", "this and that", false),
        ("NOT big*", "not big", true),
        ("!?", "!?", false),
    ] {
        let parsed = TextQuery::parse(query).unwrap();
        assert_eq!(parsed.matches(text), found, "{query} in {text}");
    }
}

#[test]
fn limits_query_length() {
    let check = |query: &str, fault| assert_eq!(TextQuery::parse(query).err(), fault);
    check("", Some(QueryFault::Empty));
    check(" \u{3000}\n", Some(QueryFault::Empty));
    check("\"\"", None);
    check(&"x".repeat(MAX_CHARACTERS), None);
    check(&"x".repeat(MAX_CHARACTERS + 1), Some(QueryFault::TooLong));
    check(&"天".repeat(MAX_WORDS), None);
    check(&"天".repeat(MAX_WORDS + 1), Some(QueryFault::TooManyWords));
    check(&"x ".repeat(MAX_WORDS + 1), Some(QueryFault::TooManyWords));
    check(&"\"".repeat(MAX_CHARACTERS), None);
}

/// Databases store terms: another alphabet or hash would break all searches.
#[test]
fn terms_are_stable_twelve_letter_codes() {
    assert_eq!(index_terms("c", "Big 天"), GOLDEN);
    let other = index_terms("d", "Big 天");
    assert!(other.iter().all(|term| !GOLDEN.contains(&term.as_str())));
    let long = "x".repeat(100_000);
    for term in index_terms("c", &format!("{long} it's 天气 👍 \0 a:b* ' \" -")) {
        assert_eq!(term.len(), 12);
        let is_safe = |byte: u8| byte.is_ascii_lowercase() || (b'2'..=b'7').contains(&byte);
        assert!(term.bytes().all(is_safe), "{term}");
    }
}

const GOLDEN: [&str; 3] = ["bxpn6lkl5ewr", "bxpnu3h7v4ug", "bxpnxywsb4gb"];

#[test]
fn limits_number_of_index_terms() {
    let text = "\u{fdfa}".repeat(100_000) + &"天地玄黄".repeat(100_000);
    assert_eq!(units(&text).len(), 8000);
    assert!(index_terms("c", &text).len() <= 16_000);
}

proptest! {
    /// The index never hides a text that the query matches.
    #[test]
    fn matching_texts_contain_all_query_terms(
        text in "[ab天气Aタﾀー가é👍 ,。\"-]{0,40}", query in "[ab天气Aター가é👍 ,\"-]{1,8}",
    ) {
        if let Ok(query) = TextQuery::parse(&query)
            && query.matches(&text)
        {
            let terms = index_terms("c", &text);
            prop_assert!(query.terms("c").iter().all(|term| terms.contains(term)));
        }
    }

    #[test]
    fn indexes_any_text_and_matches_itself(text in "\\PC{0,60}") {
        let quoted = format!("\"{}\"", text.replace(is_quote, " "));
        if let Ok(query) = TextQuery::parse(&quoted) {
            prop_assert_eq!(query.matches(&text), !units(&text).is_empty());
        }
    }
}

//! A token verifies only unmodified and within its validity period; no other text verifies.

use std::sync::LazyLock;

use protocol::id::{RunId, RunnerId};
use uuid::Uuid;

use crate::keys_token::{RunTokens, TokenSubject, generate_key};

const NOW: i64 = 1_800_000_000;

static TOKENS: LazyLock<RunTokens> = LazyLock::new(|| {
    let keys = [generate_key(), generate_key()].map(|key| key.expect("a key").1);
    RunTokens::new("http://127.0.0.1:8700", &keys).expect("two keys")
});
static MINTED: LazyLock<String> = LazyLock::new(|| {
    let runner: RunnerId = "plugin:a/b/c".parse().expect("a runner's id");
    let subject = TokenSubject {
        runner_id: &runner,
        run_id: RunId(Uuid::nil()),
        attempt: 1,
        workspace: "default",
        scope: "history:page".to_owned(),
        res: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        deadline_at: NOW + 300,
    };
    TOKENS.mint(&subject, NOW).expect("a token").token
});

pub fn check(data: &[u8]) {
    let minted = MINTED.as_str();
    if let Ok(text) = std::str::from_utf8(data) {
        assert_eq!(TOKENS.verify(text, NOW).is_ok(), text == minted, "{text:?}");
    }
    let (at, rest) = crate::split(data);
    let (more, rest) = crate::split(rest);
    let (length, rest) = crate::split(rest);
    // The same text with a part replaced by the input.
    let from = (usize::from(at) * 256 + usize::from(more)) % (minted.len() + 1);
    let to = minted.len().min(from + usize::from(length));
    if let Ok(part) = std::str::from_utf8(rest) {
        let tampered = format!("{}{part}{}", &minted[..from], &minted[to..]);
        assert_eq!(TOKENS.verify(&tampered, NOW).is_ok(), tampered == minted, "{tampered}");
    }
    let mut seconds = [0; 8];
    let count = rest.len().min(8);
    seconds[..count].copy_from_slice(&rest[..count]);
    let now = i64::from_be_bytes(seconds) >> (more % 64);
    for now in [now, NOW + i64::from(at) - 128 + i64::from(more)] {
        // Exclude the extremes of `i64`, which no clock shows.
        let now = now.clamp(i64::MIN / 2, i64::MAX / 2);
        let timely = (NOW - 5..NOW + 305).contains(&now);
        assert_eq!(TOKENS.verify(minted, now).is_ok(), timely, "at {now}");
    }
}

//! Runs the properties of the fuzz target `sse` on thousands of random streams.
#![expect(
    unreachable_pub,
    reason = "the properties are public to the fuzz targets"
)]

use proptest::prelude::*;

#[path = "../../../fuzz/src/sse.rs"]
mod sse;

fn split(data: &[u8]) -> (u8, &[u8]) {
    data.split_first()
        .map_or((0, data), |(first, rest)| (*first, rest))
}

/// Building blocks of the streams.
const PARTS: [&[u8]; 20] = [
    b"data",
    b"event",
    b"id",
    b"retry",
    b":",
    b": ",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"data: a\n",
    b"x",
    b" ",
    b"\0",
    b"\xEF\xBB\xBF",
    b"\xEF",
    b"\xFF",
    b"\xE4\xBD\xA0",
    b"data: 0123456789012345678901234567890123456789\n",
    b"01234567890123456789012345678901234567890123456789",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn decoder_matches_reference_for_any_chunking(
        size in any::<u8>(),
        parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..30),
    ) {
        sse::check(&[&[size], parts.concat().as_slice()].concat());
    }
}

#[test]
fn fuzz_seeds_pass() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/sse");
    for seed in std::fs::read_dir(seeds).unwrap() {
        sse::check(&std::fs::read(seed.unwrap().path()).unwrap());
    }
}

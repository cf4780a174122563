//! Runs the properties of the fuzz targets for results and events on thousands of random inputs.
#![expect(
    unreachable_pub,
    reason = "the properties are public to the fuzz targets"
)]

use proptest::prelude::*;

#[path = "../../../fuzz/src/event.rs"]
mod event;
#[path = "../../../fuzz/src/judge.rs"]
mod results;

fn split(data: &[u8]) -> (u8, &[u8]) {
    data.split_first()
        .map_or((0, data), |(first, rest)| (*first, rest))
}

const KINDS: [&str; 9] = [
    "message.delta",
    "message.completed",
    "run.completed",
    "run.failed",
    "state.updated",
    "tool.call.started",
    "action.requested",
    "processor.log",
    "vendor.thing",
];
const SEQUENCES: [&str; 10] = [
    "",
    ",\"sequence\":1",
    ",\"sequence\":2",
    ",\"sequence\":3",
    ",\"sequence\":9",
    ",\"sequence\":0",
    ",\"sequence\":null",
    ",\"sequence\":1.5",
    ",\"sequence\":18446744073709551616",
    ",\"usage\":{\"n\":1e999}",
];
const DATA: [&str; 16] = [
    "{}",
    "[]",
    "1",
    "{\"chunk\":{\"role\":\"assistant\",\"content\":\"a\"}}",
    "{\"chunk\":{\"role\":\"assistant\",\"content\":null,\"all_content\":\"ab\"}}",
    "{\"chunk\":{\"role\":\"\",\"content\":\"a\"}}",
    "{\"message\":{\"role\":\"assistant\",\"content\":\"a\"}}",
    "{\"finish_reason\":\"stop\"}",
    "{\"code\":\"boom\",\"error\":\"no\"}",
    "{\"code\":\"cancelled\",\"message\":\"no\"}",
    "{\"scope\":\"conversation\",\"key\":\"k\",\"value\":[1,\r2]}",
    "{\"scope\":\"actor\",\"key\":\"k\",\"value\":1}",
    "{\"scope\":\"conversation\",\"key\":\"host.k\",\"value\":1}",
    "{\"v\":\"\\u0000\"}",
    "{\"v\":\"\\ud800\"}",
    "{\"action\":\"a\",\"text\":\"t\"}",
];

fn line() -> impl Strategy<Value = String> {
    let parts = (
        prop::sample::select(&KINDS[..]),
        prop::sample::select(&DATA[..]),
        prop::sample::select(&SEQUENCES[..]),
        0..20_u8,
    );
    parts.prop_map(|(kind, data, more, odd)| match odd {
        0 => "nope".to_owned(),
        1 => format!("{{\"run_id\":\"other\",\"type\":\"{kind}\",\"data\":{data}}}"),
        2 => format!("{{\"run_id\":\"#\",\"type\":\"{kind}\",\"type\":\"{kind}\"}}"),
        3 => format!("{{\"run_id\":\"#\",\"type\":\"{kind}\",\"data\":{data}"),
        _ => format!("{{\"run_id\":\"#\",\"type\":\"{kind}\",\"data\":{data}{more}}}"),
    })
}

const WORDS: [&str; 30] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\"event_type\"",
    "\"a\"",
    "\"event_id\"",
    "\"data\"",
    "\"raw\"",
    "\"input\"",
    "\"text\"",
    "\"x\"",
    "\\u0000",
    "\\ud83c",
    "\\udf89",
    "\\",
    "1",
    "-0",
    "1e400",
    "1.5",
    "null",
    "true",
    "\"source\"",
    "\"conversation\"",
    "\"conversation_id\"",
    " ",
    "é",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn accepted_results_are_valid_and_end_is_final(
        kind in any::<u8>(),
        lines in prop::collection::vec(line(), 0..12),
    ) {
        results::check(&[&[kind], lines.join("\n").as_bytes()].concat());
    }

    #[test]
    fn accepted_events_round_trip(
        words in prop::collection::vec(prop::sample::select(&WORDS[..]), 0..24),
        members in prop::collection::vec((prop::sample::select(&WORDS[7..]), prop::sample::select(&WORDS[..])), 0..6),
    ) {
        event::check(words.concat().as_bytes());
        let members: Vec<_> = members.iter().map(|(name, value)| format!(",{name}:{value}")).collect();
        let members = members.concat();
        event::check(format!("{{\"event_type\":\"a\"{members}}}").as_bytes());
    }
}

#[test]
fn fuzz_seeds_pass() {
    for (target, check) in [
        ("judge", results::check as fn(&[u8])),
        ("event", event::check),
    ] {
        let seeds = format!("{}/../../fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
        for seed in std::fs::read_dir(seeds).unwrap() {
            check(&std::fs::read(seed.unwrap().path()).unwrap());
        }
    }
}

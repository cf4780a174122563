use std::time::Instant;

use serde_json::json;

use super::*;

fn run(code: &str, input: &Value) -> Result<Vec<Value>, String> {
    let filter = Filter::compile(code).unwrap_or_else(|fault| panic!("{code}: {fault}"));
    filter.run(input, Some("chunk"))
}

fn fault(code: &str) -> String {
    match Filter::compile(code) {
        Ok(_) => panic!("{code} compiles"),
        Err(fault) => fault.to_string(),
    }
}

#[test]
fn filters_read_and_make_values() {
    let input = json!({"a": {"b": [1, 2.5, "x"]}, "t": "he, llo", "n": null, "big": 12_345_678_901_234_u64});
    for (code, values) in [
        (".", json!([input])),
        (".a.b[]", json!([1, 2.5, "x"])),
        (".missing?.deeper // \"none\"", json!(["none"])),
        ("select(.t == \"no\") | .a", json!([])),
        (
            "{q: .t, n, \"k\\(.a.b[0])\": [.a.b | length]}",
            json!([{"q": "he, llo", "n": null, "k1": [3]}]),
        ),
        (
            ".t | split(\", \") | join(\"-\") | ascii_upcase",
            json!(["HE-LLO"]),
        ),
        ("$event", json!(["chunk"])),
        (
            "(.a.b[0] - 3) * 2 + .big / 1",
            json!([12_345_678_901_230.0]),
        ),
        ("[.a.b[] | numbers] | add", json!([3.5])),
        ("\"a b\" | @uri, @base64", json!(["a%20b", "YSBi"])),
        ("\"[1]\" | fromjson[0], (\"2\" | tonumber)", json!([1, 2])),
        (
            "reduce .a.b[] as $x (\"\"; . + ($x | tostring))",
            json!(["12.5x"]),
        ),
        ("try error(\"no\") catch .", json!(["no"])),
        ("[.a | .. | strings]", json!([["x"]])),
        (".a as {b: [$one]} | $one", json!([1])),
        (
            "if .t | startswith(\"he\") then \"yes\" else \"no\" end",
            json!(["yes"]),
        ),
        (
            "with_entries(select(.value != null)) | keys",
            json!([["a", "big", "t"]]),
        ),
        (
            "[range(3)] | map(. + 1) | {m: max, s: (sort_by(0 - .) | first)}",
            json!([{"m": 3, "s": 3}]),
        ),
    ] {
        assert_eq!(run(code, &input).map(Value::from), Ok(values), "{code}");
    }
}

#[test]
fn faults_name_their_position() {
    for (code, part) in [
        ("", "at byte 0: expected term"),
        (".a | {", "at byte 6"),
        (".a.b | nothing", "at byte 7: nothing is not offered"),
        ("map(.; .)", "at byte 0: there is no filter map"),
        ("$x", "at byte 0: there is no variable $x"),
        ("def f: f; f", "filters define no functions"),
        (".a |= 1", "assigns"),
        ("env", "env is not offered"),
        ("@sh \"a\"", "@sh is not offered"),
        ("input", "input is not offered"),
        ("{\"\\(env)\"}", "env is not offered"),
        ("{\"\\(env)\": 1}", "env is not offered"),
        ("{(env): 1}", "env is not offered"),
        ("\"\\(env)\"", "env is not offered"),
        (".[env]", "env is not offered"),
        (". as {(env): $x} | 1", "env is not offered"),
        ("try . catch env", "env is not offered"),
        ("if env then 1 end", "env is not offered"),
        ("halt", "halt is not offered"),
        ("runnel_filter(1)", "not offered"),
        ("step", "not offered"),
        ("\"", "at byte"),
    ] {
        let fault = fault(code);
        assert!(fault.contains(part), "{code}: {fault}");
    }
    assert!(fault(&" ".repeat(TEXT_BYTES + 1)).contains("longer"));
}

#[test]
fn deep_texts_are_refused() {
    for code in [
        "-".repeat(4_000) + "1",
        "try ".repeat(1_000) + ".",
        "[".repeat(2_000) + &"]".repeat(2_000),
        "{a:".repeat(1_000) + "1" + &"}".repeat(1_000),
        "if 1 then ".repeat(400) + "1" + &" end".repeat(20),
        ".|".repeat(2_000) + ".",
        ". as $x|".repeat(500) + ".",
        "[.a".repeat(1_000) + &"]".repeat(1_000),
    ] {
        let fault = Filter::compile(&code).err();
        assert!(fault.is_some(), "{}", &code[..20]);
    }
    // Parentheses do not count as levels.
    let code = "(".repeat(2_000) + "." + &")".repeat(2_000);
    assert_eq!(run(&code, &json!(1)), Ok(vec![json!(1)]));
}

#[test]
fn runs_deepest_filters_on_small_stacks() {
    let code = "[".repeat(MAX_RUN_LEVELS) + "." + &"]".repeat(MAX_RUN_LEVELS);
    let pipes = ".|".repeat(MAX_RUN_LEVELS) + ".";
    let thread = thread::Builder::new()
        .stack_size(1024 * 1024)
        .spawn(move || {
            assert!(run(&code, &json!(1)).is_ok());
            assert!(run(&pipes, &json!(1)).is_ok());
        });
    thread.unwrap().join().unwrap();
}

/// Below the levels of the grammar, which counts more than brackets.
const MAX_RUN_LEVELS: usize = 90;

#[test]
fn filters_end_within_their_budget() {
    let long: Vec<_> = (0..3_000).collect();
    let input = json!({"a": long, "t": "x".repeat(1_000)});
    let doubling = "[.t".to_owned() + &" | . + .".repeat(60) + "]";
    let sharing = ".t".to_owned() + &" | [., .]".repeat(45) + " | tojson";
    for code in [
        "[range(1000000000000)] | length",
        "[.a[] + .a[] + .a[]] | length",
        "[(.a[] + .a[] + .a[])?] | length",
        "[.a[] as $x | .a[] as $y | .a[] as $z | try error(1) catch .] | length",
        "first(range(1000000000000) | select(false))",
        "reduce range(100000) as $x (null; [.])",
        "reduce .a[] as $x (.a; . + .)",
        "[limit(1000000000; range(1000000000))] | length",
        "isempty(range(1000000000) | empty)",
        ".a[] as $x | .a[] as $y | .a[] as $z | empty",
        &doubling,
        &sharing,
    ] {
        let began = Instant::now();
        let ended = run(code, &input);
        assert!(
            ended
                .as_ref()
                .is_err_and(|error| error.contains("more than its steps")),
            "{code}: {:?}",
            ended.map(|values| values.len())
        );
        assert!(
            began.elapsed().as_secs() < 10,
            "{code}: {:?}",
            began.elapsed()
        );
    }
    assert!(run(".a[]", &input).unwrap_err().contains("values"));
}

#[test]
fn long_texts_are_joined_quickly() {
    let input = json!(vec!["0123456789"; 20_000]);
    let began = Instant::now();
    let joined = run("join(\",\"), add", &input).unwrap();
    assert_eq!(joined[0].as_str().map(str::len), Some(20_000 * 11 - 1));
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
}

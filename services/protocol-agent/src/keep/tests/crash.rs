//! A run dies at each point of the specification; later runs go on, and the end is that of a run that lived.

use std::collections::BTreeMap;

use protocol::run::RunStatus;
use serde_json::{Value, json};

use super::driver::{Case, Ended, Said, run};
use super::support::{NOW, action, load, me};
use crate::failpoint::{Kill, with};
use crate::keep::{Keep, KeepError};
use crate::testing::memory::Memory;

/// Runs of one conversation that a test allows.
const RUNS: usize = 8;

/// What stands when all is over.
struct End {
    host: Memory,
    /// The record of the graph without times and runs.
    record: Value,
    /// Whether the run died.
    died: bool,
    runs: usize,
}

/// Plays a case to its end; a run that dies is followed by another one.
async fn play(case: &Case, kill: Option<Kill>) -> End {
    let mut host = Memory::new("r1");
    {
        let mut world = host.world();
        world.keyed.extend(["write", "spawn"].map(str::to_owned));
    }
    let (mut said, mut kill, mut died) = (Said::Request, kill, false);
    for at in 1..=RUNS {
        let dying = host.dying(kill.as_ref());
        let ended = with(kill.clone(), run(dying, said.clone(), case.clone())).await;
        match ended {
            None => {
                host.end(RunStatus::Failed);
                (died, kill) = (true, None);
                // An answer reaches one run: a person answers what is asked again.
                said = Said::Request;
            }
            Some(Ok(Ended::Answered)) => {
                host.end(RunStatus::Completed);
                let record = final_record(&host).await;
                return End {
                    host,
                    record,
                    died,
                    runs: at,
                };
            }
            Some(Ok(Ended::Asked(interaction))) => {
                host.end(RunStatus::Completed);
                said = Said::Answer(interaction, true);
            }
            Some(Ok(Ended::Child(run))) => {
                host.end(RunStatus::Completed);
                host.world().children.insert(run, json!({"did": "help"}));
                said = Said::Request;
            }
            Some(other) => panic!("{other:?}"),
        }
        host = host.begin(&format!("r{}", at + 1));
    }
    panic!("it does not end");
}

/// The record of the one closed graph, without times, runs and ids.
async fn final_record(host: &Memory) -> Value {
    let reader = host.begin("reader");
    let (mut keep, loaded) = load(&reader).await;
    assert!(loaded.mine.is_empty() && loaded.lost.is_empty());
    keep.known("").await.unwrap();
    let mut closed: Vec<_> = keep.read.values().flatten().collect();
    assert_eq!(closed.len(), 1, "one graph is closed");
    let mut record = closed.remove(0).record.clone();
    let object = record.as_object_mut().unwrap();
    let id = object.remove("run_id").unwrap();
    for name in ["time", "gateway_runs", "declaration"] {
        object.remove(name);
    }
    let text = record.to_string().replace(id.as_str().unwrap(), "g");
    serde_json::from_str(&text).unwrap()
}

/// A record without what a decision about an uncertain effect leaves behind, and without keys, which hold the id.
fn essence(record: &Value) -> Value {
    let mut record = record.clone();
    record["metrics"] = Value::Null;
    for action in record["actions"].as_array_mut().unwrap() {
        for name in ["attempts", "time_ms", "delivered"] {
            action.as_object_mut().unwrap().remove(name);
        }
    }
    record
}

fn count(record: &Value) -> Vec<usize> {
    let actions = record["actions"].as_array().unwrap().iter();
    actions
        .map(|action| action["attempts"].as_array().unwrap().len())
        .collect()
}

/// Compares with the run that lived.
async fn check(case: &Case, kill: Kill, what: &str) -> End {
    let twin = play(case, None).await;
    let end = play(case, Some(kill)).await;
    assert!(end.died, "{what}: the point is never reached");
    compare(&twin, &end, what);
    end
}

fn compare(twin: &End, end: &End, what: &str) {
    assert_eq!(essence(&end.record), essence(&twin.record), "{what}");
    for tool in ["notify", "mail", "write", "spawn"] {
        let (here, there) = (end.host.effects(tool), twin.host.effects(tool));
        assert_eq!(here, there, "{what}: effects of {tool}");
    }
    let certain = end.host.effects("notify") + end.host.effects("mail") == 0;
    if certain {
        assert_eq!(count(&end.record), count(&twin.record), "{what}: attempts");
    }
    for host in [&twin.host, &end.host] {
        once(host, what);
    }
}

/// Each decision point has one observation.
fn once(host: &Memory, what: &str) {
    let world = host.world();
    let mut made: BTreeMap<String, usize> = BTreeMap::new();
    for key in world.blobs.keys() {
        if let Some((graph, rest)) = key.split_once("/observation.") {
            let point = rest.split('.').next().unwrap();
            *made.entry(format!("{graph} {point}")).or_default() += 1;
        }
    }
    assert!(made.values().all(|count| *count == 1), "{what}: {made:?}");
    assert!(!made.is_empty());
}

fn chain(tool: &str) -> Case {
    Case::of(vec![
        action("a", "look", json!({})),
        action("b", tool, json!({"depends_on": ["a"]})),
        action("c", "look", json!({"depends_on": ["b"]})),
    ])
}

fn fan_out() -> Case {
    let each = json!({"for_each": {"items": "action:find.output#/list", "max": 7}, "input": {"of": {"$ref": "item"}}});
    Case::of(vec![
        action("find", "look", json!({})),
        action("each", "write", each),
    ])
}

fn retried() -> Case {
    let policy = json!({"mode": "retry", "max_attempts": 3, "backoff_ms": 20_000});
    Case {
        fails: vec!["a"],
        ..Case::of(vec![action(
            "a",
            "write",
            json!({"failure_policy": policy}),
        )])
    }
}

fn revised() -> Case {
    Case {
        revised: Some(vec![
            action("a", "look", json!({})),
            action("d", "write", json!({"depends_on": ["a"]})),
        ]),
        ..chain("notify")
    }
}

/// Lets a run die at every pass of a point.
async fn sweep(case: &Case, point: &'static str) -> usize {
    let twin = play(case, None).await;
    for at in 0.. {
        let end = play(case, Some(Kill::after(point, at))).await;
        if !end.died {
            return at;
        }
        assert!(end.runs > twin.runs);
        compare(&twin, &end, &format!("{point} {at}"));
    }
    0
}

#[tokio::test(start_paused = true)]
async fn dies_after_the_model_answered() {
    let end = check(&chain("write"), Kill::at("answer.before_accept"), "accept").await;
    assert_eq!(end.host.effects("model"), 3, "it is asked again");
}

#[tokio::test(start_paused = true)]
async fn dies_after_the_output_was_stored() {
    check(&chain("write"), Kill::at("open.raw"), "raw").await;
}

#[tokio::test(start_paused = true)]
async fn dies_between_index_and_head() {
    let end = check(&chain("write"), Kill::at("open.index"), "index").await;
    assert_eq!(end.runs, 2);
}

#[tokio::test(start_paused = true)]
async fn dies_before_the_first_effect() {
    check(&chain("write"), Kill::at("open.head"), "head").await;
}

#[tokio::test(start_paused = true)]
async fn dies_before_a_call_is_sent() {
    for tool in ["look", "write", "notify"] {
        check(&chain(tool), Kill::after("effect.before_call", 1), tool).await;
    }
}

#[tokio::test(start_paused = true)]
async fn dies_before_a_call_is_answered() {
    for tool in ["look", "write", "notify"] {
        check(&chain(tool), Kill::after("tool.acted", 2), tool).await;
    }
}

#[tokio::test(start_paused = true)]
async fn dies_before_an_answer_is_stored() {
    for tool in ["look", "write", "notify"] {
        check(&chain(tool), Kill::after("effect.answered", 1), tool).await;
    }
}

#[tokio::test(start_paused = true)]
async fn dies_between_body_and_head() {
    for tool in ["look", "write", "notify"] {
        for at in 0..4 {
            check(&chain(tool), Kill::after("save.bodies", at), tool).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn dies_between_two_heads() {
    for at in 0..4 {
        check(&chain("notify"), Kill::after("save.head", at), "heads").await;
    }
}

#[tokio::test(start_paused = true)]
async fn dies_after_a_question_was_stored() {
    let end = check(&chain("mail"), Kill::at("ask.stored"), "stored").await;
    assert_eq!(end.host.world().questions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn dies_after_a_question_was_sent() {
    let end = check(&chain("mail"), Kill::at("ask.sent"), "sent").await;
    assert_eq!(end.host.effects("mail"), 1);
}

#[tokio::test(start_paused = true)]
async fn answers_that_arrive_twice_count_once() {
    let case = chain("mail");
    let host = Memory::new("r1");
    let Ok(Ended::Asked(asked)) = run(host.clone(), Said::Request, case.clone()).await else {
        panic!("no question");
    };
    host.end(RunStatus::Completed);
    let host = host.begin("r2");
    let yes = Said::Answer(asked, true);
    let ended = run(host.clone(), yes.clone(), case.clone()).await.unwrap();
    assert_eq!(ended, Ended::Answered);
    host.end(RunStatus::Completed);
    let host = host.begin("r3");
    let ended = run(host.clone(), yes, case).await.unwrap();
    assert_eq!(ended, Ended::Answered);
    assert_eq!(host.effects("mail"), 1);
}

#[tokio::test(start_paused = true)]
async fn answers_may_precede_the_end_of_their_run() {
    let case = chain("mail");
    let first = Memory::new("r1");
    let Ok(Ended::Asked(asked)) = run(first.clone(), Said::Request, case.clone()).await else {
        panic!("no question");
    };
    let second = first.begin("r2");
    let yes = Said::Answer(asked, true);
    let ended = run(second.clone(), yes.clone(), case.clone()).await;
    assert_eq!(ended.unwrap(), Ended::Busy);
    first.end(RunStatus::Completed);
    let ended = run(second.clone(), yes, case).await;
    assert_eq!(ended.unwrap(), Ended::Answered);
    assert_eq!(second.effects("mail"), 1);
}

#[tokio::test(start_paused = true)]
async fn dies_before_a_child_is_named() {
    let end = check(&chain("helper"), Kill::at("child.spawned"), "child").await;
    assert_eq!(
        end.host.effects("spawn"),
        1,
        "the same key finds the same child"
    );
}

#[tokio::test(start_paused = true)]
async fn children_end_while_no_run_looks() {
    let end = play(&chain("helper"), None).await;
    assert_eq!((end.runs, end.host.effects("spawn")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn dies_while_a_retry_waits() {
    check(&retried(), Kill::at("retry.waiting"), "retry").await;
}

#[tokio::test(start_paused = true)]
async fn dies_within_a_fan_out() {
    let end = check(&fan_out(), Kill::after("effect.answered", 4), "3 of 7").await;
    assert_eq!(end.host.effects("write"), 7);
}

#[tokio::test(start_paused = true)]
async fn dies_within_a_revision() {
    for at in 0..4 {
        check(&revised(), Kill::after("save.bodies", at), "revision").await;
    }
}

#[tokio::test(start_paused = true)]
async fn dies_within_the_grace_of_a_cancel() {
    for tool in ["look", "write", "notify"] {
        let case = Case {
            cancelled_at: Some("b"),
            ..chain(tool)
        };
        let end = play(&case, Some(Kill::at("cancel.grace"))).await;
        assert!(end.died);
        assert_eq!(end.record["status"], "failed", "{tool}");
        assert_eq!(end.record["actions"][2]["status"], "canceled", "{tool}");
        assert_eq!(end.host.effects(tool), if tool == "look" { 2 } else { 1 });
    }
}

#[tokio::test(start_paused = true)]
async fn live_runs_are_not_overtaken() {
    let case = chain("notify");
    let first = Memory::new("r1");
    let kill = Kill::at("effect.before_call");
    let dying = first.dying(Some(&kill));
    let stopped = with(Some(kill), run(dying, Said::Request, case.clone())).await;
    assert!(stopped.is_none(), "it hangs, and is not over");
    let second = first.begin("r2");
    let ended = run(second.clone(), Said::Request, case).await;
    assert_eq!(ended.unwrap(), Ended::Busy);
    assert_eq!(second.effects("look"), 0);
}

#[tokio::test(start_paused = true)]
async fn stale_epochs_write_nothing() {
    let case = chain("notify");
    let first = Memory::new("r1");
    first.world().lax = true;
    let (mut stale, _) = Keep::load(first.clone(), me(&first), NOW).await.unwrap();
    let graph = super::support::begun(&mut stale, "g_1", &case.actions).await;
    first.end(RunStatus::Failed);
    let second = first.begin("r2");
    let ended = run(second.clone(), Said::Request, case).await.unwrap();
    assert_eq!(ended, Ended::Answered);
    let refused = stale.save(&graph).await;
    assert!(matches!(refused, Err(KeepError::LeaseLost { .. })));
    assert!(!second.world().state.contains_key("apd.g.g_1"));
}

#[tokio::test(start_paused = true)]
async fn full_storage_lets_nothing_begin() {
    let host = Memory::new("r1");
    host.fail("blob_put", "payload_too_large", 1);
    let ended = run(host.clone(), Said::Request, chain("notify")).await;
    assert!(matches!(ended, Err(KeepError::NoRoom(_))));
    assert_eq!(host.effects("look") + host.effects("notify"), 0);
}

#[tokio::test(start_paused = true)]
async fn full_indices_let_nothing_begin() {
    let host = Memory::new("r1");
    let (mut keep, _) = load(&host).await;
    for at in 0..16 {
        let id = format!("g_{at}");
        super::support::begun(&mut keep, &id, &chain("look").actions).await;
    }
    let (graph, source) =
        super::support::graph_of("g_99", &super::support::declared(&chain("look").actions));
    let opened = keep.open(99, &graph, &source, "", &[], NOW).await;
    assert!(matches!(opened, Err(KeepError::Full { .. })));
}

#[tokio::test(start_paused = true)]
async fn dies_after_an_observation() {
    for case in [chain("write"), chain("mail")] {
        check(&case, Kill::at("observe.made"), "observed").await;
        check(&case, Kill::at("observe.stored"), "observed").await;
    }
}

#[tokio::test(start_paused = true)]
async fn dies_before_an_answered_graph_is_closed() {
    check(&chain("notify"), Kill::at("answer.sent"), "answered").await;
    check(&chain("notify"), Kill::at("close.body"), "body").await;
    check(&chain("notify"), Kill::at("close.index"), "index").await;
}

#[tokio::test(start_paused = true)]
async fn dies_around_every_call_of_the_gateway() {
    let cases = [
        chain("write"),
        chain("notify"),
        chain("mail"),
        chain("helper"),
        retried(),
        revised(),
        fan_out(),
    ];
    let mut points = 0;

    for case in cases {
        points += sweep(&case, "host.before").await;
        points += sweep(&case, "host.after").await;
    }
    assert!(points > 500, "{points} points");
}

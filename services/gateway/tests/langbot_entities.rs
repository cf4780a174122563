//! Compares our types with the entities of LangBot's SDK: fields, accepted values and serialized form.
//! `decided.rs` lists the accepted differences with reasons.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test fails by panicking, has an environment of its own, and has no outside"
)]

#[path = "langbot_entities/decided.rs"]
mod decided;
#[path = "langbot_entities/ours.rs"]
mod ours;
#[expect(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../../../tests/support/peer.rs"]
mod peer;
#[path = "../../../tests/support/repository.rs"]
mod repository;
#[path = "langbot_entities/shape.rs"]
mod shape;
#[expect(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../../../tests/support/waiting.rs"]
mod waiting;

use std::collections::BTreeSet;

use domain::manifest::validate_manifests;
use serde_json::{Value, json};

use self::decided::{DECIDED, LOOSER, NOT_OURS};
use self::ours::{Ours, entities};
use self::peer::LangbotPeer;
use self::shape::Shapes;

const SCRIPT: &str = "tests/peer/langbot_entities.py";

/// The SDK's description by class, and our entities.
async fn both() -> Option<(LangbotPeer, Value, Vec<Ours>)> {
    let peer = LangbotPeer::find().await?;
    let theirs = peer.run(SCRIPT, "describe", &Value::Null).await;
    Some((peer, theirs, entities()))
}

#[tokio::test]
async fn maps_every_langbot_entity_or_lists_reason() {
    let Some((_, theirs, ours)) = both().await else {
        return;
    };
    let theirs: BTreeSet<_> = theirs.as_object().unwrap().keys().cloned().collect();
    let ours = ours.iter().map(|entity| entity.theirs.to_owned());
    let left_out = NOT_OURS.iter().flat_map(|(_, classes)| *classes);
    let answered: Vec<_> = ours.chain(left_out.map(|&name| name.to_owned())).collect();
    let once: BTreeSet<_> = answered.iter().cloned().collect();
    assert_eq!(
        once.len(),
        answered.len(),
        "an entity is answered for twice"
    );
    assert_eq!(once, theirs);
}

#[tokio::test]
async fn differs_from_langbot_only_as_decided() {
    let Some((_, theirs, ours)) = both().await else {
        return;
    };
    let shapes = Shapes::of(&ours);
    let mut found = BTreeSet::new();
    for entity in &ours {
        let their = &theirs[entity.theirs];
        found.extend(shapes.differences(entity, &their["fields"]));
        found.extend(differently_taken(entity, &shapes, their));
    }
    let decided: Vec<_> = DECIDED.iter().flat_map(|(_, list)| *list).collect();
    let once: BTreeSet<_> = decided.iter().map(|&&text| text.to_owned()).collect();
    assert_eq!(once.len(), decided.len(), "a difference is decided twice");
    let listed = |title: &str, differences: Vec<&String>| {
        let lines = differences.iter().map(|line| format!("\n  {line}"));
        format!("{title}:{}", lines.collect::<String>())
    };
    assert!(
        found == once,
        "{}\n{}",
        listed("not decided", found.difference(&once).collect()),
        listed(
            "decided, but no longer so",
            once.difference(&found).collect()
        ),
    );
}

/// Documents with one fault each that only one side accepts.
fn differently_taken(entity: &Ours, shapes: &Shapes, theirs: &Value) -> Vec<String> {
    if !(entity.takes)(&theirs["examples"][0]["document"]) {
        return vec![format!("{}: taken in full only by them", entity.theirs)];
    }
    let ours = shapes.fields(entity);
    let is_reported = |what: &str| {
        let Some((name, what)) = what.split_once(": ") else {
            return false;
        };
        match ours.get(name) {
            // Only the SDK has the field, or the path is nested.
            None => !name.starts_with('/'),
            // serde reads a list as the fields of a struct in order; clients do not send lists.
            Some(field) if what == "a list" && field.is_entity() => true,
            Some(_) if what == "left out" || what == "null" => false,
            Some(field) => field.kind != theirs["fields"][name]["type"] || is_looser(entity, name),
        }
    };
    let probes = theirs["probes"].as_array().unwrap().iter();
    let probes = probes.filter(|probe| !is_reported(probe["what"].as_str().unwrap()));
    let probed = probes.map(|probe| {
        let they = probe["taken"].as_bool().unwrap();
        (
            probe["what"].as_str().unwrap(),
            they,
            (entity.takes)(&probe["document"]),
        )
    });
    let differing = probed.filter(|(_, they, we)| they != we);
    differing
        .map(|(what, _, we)| {
            let who = if we { "us" } else { "them" };
            format!("{}.{what}: taken only by {who}", entity.theirs)
        })
        .collect()
}

fn is_looser(entity: &Ours, name: &str) -> bool {
    LOOSER.contains(&(entity.name.as_str(), name))
}

#[tokio::test]
async fn schemas_match_accepted_documents() {
    let Some((_, theirs, ours)) = both().await else {
        return;
    };
    let shapes = Shapes::of(&ours);
    let mut untrue = Vec::new();
    for entity in &ours {
        for probe in theirs[entity.theirs]["probes"].as_array().unwrap() {
            let Some((name, what)) = probe["what"].as_str().unwrap().split_once(": ") else {
                continue;
            };
            let Some(field) = shapes.fields(entity).remove(name) else {
                continue;
            };
            let Some(allowed) = field.may_be(what) else {
                continue;
            };
            if (entity.takes)(&probe["document"]) != allowed && !is_looser(entity, name) {
                untrue.push(format!("{}.{name} {what}", entity.name));
            }
        }
    }
    assert_eq!(untrue, Vec::<String>::new());
}

#[tokio::test]
async fn round_trips_langbot_documents_without_loss() {
    let Some((peer, theirs, ours)) = both().await else {
        return;
    };
    let shapes = Shapes::of(&ours);
    let mut questions = Vec::new();
    for entity in &ours {
        let examples = theirs[entity.theirs]["examples"].as_array().unwrap();
        let full = &examples[0]["document"];
        // A class dumps all its fields, with null for unset ones. Clients and runners in other languages omit
        // them.
        for example in examples {
            let dumped = serde_json::from_str(example["dumped"].as_str().unwrap()).unwrap();
            for mut document in [example["document"].clone(), dumped] {
                shapes.complete(entity, &mut document, full);
                let rewritten = (entity.rewrite)(&document.to_string());
                let rewritten = rewritten.unwrap_or_else(|why| {
                    panic!("{} refuses {document:#}: {why}", entity.name);
                });
                questions.push((entity, document, rewritten));
            }
        }
    }
    assert!(questions.len() > 2 * ours.len());

    let both = questions.iter().flat_map(|(entity, document, rewritten)| {
        let theirs = entity.theirs;
        [
            json!([theirs, document.to_string()]),
            json!([theirs, rewritten]),
        ]
    });
    let answers = peer.run(SCRIPT, "read", &both.collect()).await;
    let mut faults = Vec::new();
    for ((entity, _, rewritten), answers) in
        questions.iter().zip(answers.as_array().unwrap().chunks(2))
    {
        let dumped = |answer: &Value| -> Value {
            let text = answer["dumped"].as_str();
            let text = text.unwrap_or_else(|| panic!("{rewritten}: {}", answer["refused"]));
            serde_json::from_str(text).unwrap()
        };
        let (original, ours) = (dumped(&answers[0]), dumped(&answers[1]));
        let mut changed = Vec::new();
        paths_that_differ(&original, &ours, "", &mut changed);
        changed.retain(|path| !shapes.is_theirs_alone(entity, path, &theirs));
        faults.extend(changed.iter().map(|path| format!("{} {path}", entity.name)));
        let unknown = answers[1]["unknown"].as_array().unwrap();
        let unknown = unknown.iter().map(|path| path.as_str().unwrap());
        let surprising = unknown.filter(|path| !shapes.is_ours_alone(entity, path, &theirs));
        faults.extend(surprising.map(|path| format!("{} {path} is unknown", entity.name)));
    }
    assert_eq!(faults, Vec::<String>::new());
}

/// Collects the paths at which two documents differ.
fn paths_that_differ(left: &Value, right: &Value, at: &str, found: &mut Vec<String>) {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: BTreeSet<_> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let inside = |side: &serde_json::Map<String, Value>| side.get(key).cloned();
                let (left, right) = (inside(left), inside(right));
                let path = format!("{at}/{key}");
                match (left, right) {
                    (Some(left), Some(right)) => paths_that_differ(&left, &right, &path, found),
                    _ => found.push(path),
                }
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (left, right) in left.iter().zip(right) {
                paths_that_differ(left, right, &format!("{at}/-"), found);
            }
        }
        _ if left == right => {}
        _ => found.push(at.to_owned()),
    }
}

#[tokio::test]
async fn registers_langbot_manifest_without_warnings() {
    let Some((_, theirs, _)) = both().await else {
        return;
    };
    for example in theirs["RunnerManifest"]["examples"].as_array().unwrap() {
        let found = validate_manifests(std::slice::from_ref(&example["document"]));
        assert_eq!(found.rejected, []);
        let accepted = &found.accepted[0];
        assert_eq!(accepted.warnings, []);
        let parsed = serde_json::to_value(&accepted.manifest).unwrap();
        let mut lost = Vec::new();
        for (name, value) in example["document"].as_object().unwrap() {
            let (Value::Object(parsed), Value::Object(sent)) = (&parsed[name], value) else {
                paths_that_differ(value, &parsed[name], &format!("/{name}"), &mut lost);
                continue;
            };
            let same = sent
                .iter()
                .all(|(key, value)| parsed.get(key) == Some(value));
            lost.extend((!same).then(|| format!("/{name}")));
        }
        assert_eq!(lost, Vec::<String>::new());
    }
}

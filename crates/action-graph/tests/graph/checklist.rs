//! The minimum of the protocol (DSL-106) and what stays out of it (DSL-107), in one declaration each.

use action_graph::code::Code;
use action_graph::output::ModelOutput;
use action_graph::policy::Return;
use action_graph::rules::CarrierMode;
use action_graph::transcript::Replay;
use serde_json::{Value, json};

use crate::support::{block, envelope, fenced, read_action, world};

#[test]
fn minimum_boundary_is_accepted() {
    let forms = [
        Return::Summary,
        Return::Structured,
        Return::Full,
        Return::OnFailure,
        Return::OnDemand,
        Return::Adaptive,
    ];
    let actions: Vec<_> = forms
        .iter()
        .enumerate()
        .map(|(index, form)| {
            let before: Vec<_> = (index > 0).then(|| format!("a{}", index - 1)).into_iter().collect();
            read_action(&format!("a{index}"), json!({"title": format!("Step {index}"), "depends_on": before, "context_refs": ["md:shared.context"],
                "prompt_ref": "md:task", "result_policy": {"return_to_model": form.as_str()}}))
        })
        .collect();
    let mut world = world();
    world.rules.carrier = CarrierMode::Fenced;
    for persist in [false, true] {
        let value = envelope(actions.clone().into(), json!({"persist": persist}));
        let behind = "## shared.context\nFacts.\n## task\nDo it.\n## user.visible\nI look.\n";
        let accepted = world.accepted(&fenced(&value, behind));
        assert_eq!(accepted.declaration.actions().len(), 6);
        assert!(
            accepted.diagnostics.is_empty(),
            "{:?}",
            accepted.diagnostics
        );
    }
    assert_eq!(Replay::default(), Replay::Hybrid);
}

#[test]
fn outer_features_are_refused() {
    let one = |more: Value| block(json!([read_action("a", more)]));
    let unbounded = one(json!({"repeat": {"until": {"ref": "own", "exists": true}}}));
    assert!(
        world()
            .codes(&unbounded)
            .iter()
            .any(|(code, _)| *code == Code::LoopUnbounded)
    );
    let nested = one(json!({"when": {"not": {"action": "a"}}}));
    assert!(
        world()
            .codes(&nested)
            .iter()
            .any(|(code, _)| *code == Code::MissingField)
    );
    let expression = one(json!({"input": {"path": "${action:a.output}"}}));
    assert!(
        world()
            .codes(&expression)
            .iter()
            .any(|(code, _)| *code == Code::StringInterpolation)
    );
    let text = one(json!({})).text;
    let twice = ModelOutput::text(&format!("{text}{text}"));
    assert_eq!(
        world().refused(&twice).diagnostics[0].code,
        Code::SeveralDeclarations
    );
}

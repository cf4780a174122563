//! Texts with a fenced declaration, Markdown sections, or calls written as text.

use action_graph::fence::{FencedBlocks, find};
use action_graph::output::ModelOutput;
use action_graph::textual;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    check_block(text);
    assert!(textual::find(text).len() <= 16);
    for world in [&super::FENCED, &super::FLAT] {
        world.check_output(&ModelOutput::text(text));
    }
    // The same bytes inside a block, because most random texts hold no block.
    let block = format!("```json agent-protocol\n{text}\n```\n{text}");
    super::FENCED.check_output(&ModelOutput::text(&block));
}

/// The parts of a block occur in the text, in order.
fn check_block(text: &str) {
    if let FencedBlocks::One(block) = find(text) {
        let parts = [block.before, block.body, block.after];
        let mut rest = text;
        for part in parts {
            let at = rest.find(part).expect("a part of the text");
            rest = &rest[at + part.len()..];
        }
    }
}

//! Prompts as content blocks that the harness says it takes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::turn::{PromptFile, TurnPrompt};

/// The kinds of blocks that a harness takes beside text and links.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepts {
    images: bool,
    audio: bool,
}

impl Accepts {
    /// As the answer to `initialize` tells it.
    pub(super) fn read(agent: &Value) -> Self {
        let told = &agent["agentCapabilities"]["promptCapabilities"];
        Self {
            images: told["image"] == true,
            audio: told["audio"] == true,
        }
    }
}

/// The text and the files; a file of a kind that the harness does not take is named by its path in the workspace.
pub(super) fn blocks(prompt: &TurnPrompt, accepts: Accepts) -> Vec<Value> {
    let mut text = prompt.text.clone();
    let mut inline = Vec::new();
    for file in &prompt.files {
        if let Some(block) = block(file, accepts) {
            inline.push(block);
        }
        text.push_str(&file.line());
    }
    let mut blocks = vec![json!({"type": "text", "text": text.trim()})];
    blocks.extend(inline);
    blocks
}

fn block(file: &PromptFile, accepts: Accepts) -> Option<Value> {
    let kind = match file.mime_type.split('/').next()? {
        "image" if accepts.images => "image",
        "audio" if accepts.audio => "audio",
        _ => return None,
    };
    let data = STANDARD.encode(&file.bytes);
    Some(json!({"type": kind, "mimeType": file.mime_type, "data": data}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_files_as_supported_blocks_and_paths() {
        let prompt = TurnPrompt {
            text: "look".to_owned(),
            files: vec![PromptFile {
                name: "a.png".to_owned(),
                mime_type: "image/png".to_owned(),
                bytes: vec![1, 2],
                path: "inbox/a.png".into(),
            }],
        };
        for (takes, count) in [(true, 2), (false, 1)] {
            let agent = json!({"agentCapabilities": {"promptCapabilities": {"image": takes}}});
            let blocks = blocks(&prompt, Accepts::read(&agent));
            assert_eq!(blocks.len(), count);
            assert!(
                blocks[0]["text"]
                    .as_str()
                    .unwrap()
                    .contains("./inbox/a.png")
            );
        }
    }
}

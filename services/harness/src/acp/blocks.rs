//! Prompts as content blocks of the kinds that the harness accepts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::turn::{PromptFile, TurnPrompt};

/// Optional block kinds that a harness accepts. ACP requires text and links from every agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepts {
    images: bool,
    audio: bool,
}

impl Accepts {
    /// Reads `promptCapabilities` of the `initialize` response. An absent capability counts as unsupported.
    pub(super) fn read(agent: &Value) -> Self {
        let capabilities = &agent["agentCapabilities"]["promptCapabilities"];
        Self {
            images: capabilities["image"] == true,
            audio: capabilities["audio"] == true,
        }
    }
}

/// Text block and file blocks of a prompt. A file of an unsupported kind appears as a path only.
pub(super) fn blocks(prompt: &TurnPrompt, accepts: Accepts) -> Vec<Value> {
    let mut text = prompt.text.clone();
    let mut inline = Vec::new();
    for file in &prompt.files {
        if let Some(block) = block(file, accepts) {
            inline.push(block);
        }
        // The path is listed for embedded files, too: tools of the harness open files by path.
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

//! One transcript of each platform that a run can go through without a person.

use std::fs;
use std::path::Path;

use connectors::catalogue::Platform;
use serde_json::{Value, json};

use crate::upstream::{Act, complete};

/// A transcript that completes.
pub(crate) struct CompletedTranscript {
    pub(crate) name: String,
    document: Value,
    responses: Vec<String>,
}

impl CompletedTranscript {
    /// First match, by name.
    pub(crate) fn of(platform: &Platform) -> Self {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let directory = directory.join("tests/transcripts").join(platform.name);
        let entries = fs::read_dir(&directory).expect("transcripts of the platform");
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let found = paths.iter().find_map(|path| Self::read(path.as_path()));
        found.unwrap_or_else(|| panic!("{}: no transcript completes by itself", platform.name))
    }

    /// A transcript by its name.
    pub(crate) fn named(platform: &str, name: &str) -> Self {
        let path = format!("tests/transcripts/{platform}/{name}.json");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        Self::parse(&path).expect("responses that are files")
    }

    fn read(path: &Path) -> Option<Self> {
        path.extension().filter(|extension| *extension == "json")?;
        let transcript = Self::parse(path)?;
        let turn = &transcript.document["turn"];
        let is_simple = ["files", "submission", "state", "streams"]
            .iter()
            .all(|key| turn.get(*key).is_none());
        let completes = transcript.has("finish") && transcript.has("completed");
        (is_simple && completes && !transcript.has("ask")).then_some(transcript)
    }

    fn parse(path: &Path) -> Option<Self> {
        let name = path.file_stem()?.to_str()?.to_owned();
        let document: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let stated = match &document["responses"] {
            Value::Array(responses) => responses.clone(),
            _ => vec![json!(format!("{name}.http"))],
        };
        let files = stated.iter().map(|stated| {
            let file = path.with_file_name(stated.as_str()?);
            fs::read_to_string(file).ok()
        });
        let responses = files.collect::<Option<_>>()?;
        Some(Self {
            name,
            document,
            responses,
        })
    }

    fn has(&self, output: &str) -> bool {
        self.outputs().any(|member| member.get(output).is_some())
    }

    fn outputs(&self) -> impl Iterator<Item = &Value> {
        self.document["results"].as_array().into_iter().flatten()
    }

    /// The text of the run's message.
    pub(crate) fn text(&self) -> &Value {
        let mut outputs = self.outputs();
        let text = outputs.find_map(|output| output.get("completed"));
        text.expect("a message")
    }

    /// The first answer of a person.
    pub(crate) fn answer(&self) -> Value {
        self.document["answers"][0].clone()
    }

    /// The configuration with its addresses replaced by `url`, those of the form's defaults as well.
    pub(crate) fn config(&self, platform: &Platform, url: &str) -> Value {
        let mut config = self.document["config"].clone();
        for item in platform.config_schema() {
            let item = json!(item);
            let name = item["name"].as_str().unwrap();
            let stated = config.get(name).unwrap_or(&item["default"]);
            if let Some(address) = stated.as_str().filter(|text| text.starts_with("https://")) {
                config[name] = json!(moved(address, url));
            }
        }
        config
    }

    /// The answer to the request of that number.
    pub(crate) fn respond(&self, number: usize, url: &str) -> Vec<Act> {
        let Some(response) = self.responses.get(number) else {
            // Files of the answer, which are no part of transcripts.
            return complete(404, "text/plain", "");
        };
        let (head, body) = response.split_once("\n\n").expect("a head and a body");
        let body = if body.contains("https://") {
            moved(body, url)
        } else {
            body.to_owned()
        };
        let head = head.replace('\n', "\r\n");
        let length = body.len();
        let complete = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
        vec![Act::Write(complete.into_bytes())]
    }
}

/// A text with the scheme and the host of each address replaced.
fn moved(text: &str, url: &str) -> String {
    let address = regex::Regex::new("https://[a-zA-Z0-9.-]+").unwrap();
    address.replace_all(text, url).into_owned()
}

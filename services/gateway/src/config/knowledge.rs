//! `[[knowledge_bases]]`: document stores that runs may search.

use serde_json::Value;
use url::Url;

use super::secret_ref::SecretRef;
use super::table::{Reported, Table, integer, name, one_of, parsed, some_of, text};
use egress::parse_plain_url;

const EMBEDDED: &str = "embedded";
const DIFY: &str = "dify";
const CHUNK_CHARS: u64 = 1000;
const CHUNK_OVERLAP: u64 = 150;

/// A knowledge base and its secret reference.
#[derive(Clone, Debug, PartialEq)]
pub struct KnowledgeBaseEntry {
    pub kb_id: String,
    pub kb_name: Option<String>,
    pub operations: Vec<String>,
    pub location: KnowledgeLocation,
}

/// Location of the documents.
#[derive(Clone, Debug, PartialEq)]
pub enum KnowledgeLocation {
    /// In the gateway's database.
    Embedded {
        /// A model of the catalog.
        embedding_model: Option<String>,
        chunk_chars: u64,
        chunk_overlap: u64,
    },
    /// Served by Dify's External Knowledge API.
    Dify {
        base_url: Url,
        api_key: SecretRef,
        knowledge_id: String,
        score_threshold: Option<f64>,
    },
}

impl KnowledgeLocation {
    /// Name of the kind in the configuration and in the catalog.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Embedded { .. } => EMBEDDED,
            Self::Dify { .. } => DIFY,
        }
    }
}

impl KnowledgeBaseEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let kb_id = table.required("kb_id", name);
        let kb_name = table.optional("kb_name", name);
        let kind = table.optional("kb_type", one_of(&[EMBEDDED, DIFY]));
        let operations = table.optional("operations", some_of(&["list", "retrieve"]));
        let location = match &kind {
            Ok(Some(kind)) if kind == DIFY => read_dify(&mut table),
            // Keys of an unknown kind are not validated.
            Err(Reported) => return Err(Reported),
            Ok(_) => read_embedded(&mut table),
        };
        table.close()?;
        let all = || vec!["list".to_owned(), "retrieve".to_owned()];
        Ok(Self {
            kb_id: kb_id?,
            kb_name: kb_name?,
            operations: operations?.unwrap_or_else(all),
            location: location?,
        })
    }
}

fn read_embedded(table: &mut Table<'_>) -> Result<KnowledgeLocation, Reported> {
    let embedding_model = table.optional("embedding_model", name);
    let chunk_chars = table.optional("chunk_chars", integer(100..=8000));
    let chunk_overlap = table.optional("chunk_overlap", integer(0..=4000));
    let chunk_chars = chunk_chars?.unwrap_or(CHUNK_CHARS);
    // The default is reduced for small chunks.
    let chunk_overlap = chunk_overlap?.unwrap_or(CHUNK_OVERLAP.min(chunk_chars / 4));
    if chunk_overlap > chunk_chars / 2 {
        return Err(table.fault("chunk_overlap", "must be at most half of chunk_chars"));
    }
    Ok(KnowledgeLocation::Embedded {
        embedding_model: embedding_model?,
        chunk_chars,
        chunk_overlap,
    })
}

fn read_dify(table: &mut Table<'_>) -> Result<KnowledgeLocation, Reported> {
    let base_url = table.required("base_url", base_url);
    let api_key = table.required("api_key", parsed);
    let knowledge_id = table.required("knowledge_id", name);
    let score_threshold = table.optional("score_threshold", |value| share(&value));
    Ok(KnowledgeLocation::Dify {
        base_url: base_url?,
        api_key: api_key?,
        knowledge_id: knowledge_id?,
        score_threshold: score_threshold?,
    })
}

fn base_url(value: Value) -> Result<Url, String> {
    let url = parse_plain_url(&text(value)?).map_err(|error| error.to_string())?;
    // Paths are appended to the URL.
    if url.query().is_some() {
        return Err("must have no query (`?`)".to_owned());
    }
    Ok(url)
}

fn share(value: &Value) -> Result<f64, &'static str> {
    let number = value.as_f64().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or("must be a number from 0 to 1")
}

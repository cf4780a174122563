//! Knowledge bases of the configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::knowledge::chunk::ChunkSize;

use super::secrets;
use crate::config::{Config, ConfigFault, KnowledgeBaseEntry, KnowledgeLocation};
use egress::Egress;
use knowledge::remote_knowledge::{RemoteAddress, RemoteBase};
use knowledge::{Base, EmbeddedBase};

/// Knowledge bases by id, including secrets. `egress` validates the URLs of remote ones.
pub(super) fn bases(
    config: &Config,
    egress: Option<&Egress>,
    faults: &mut Vec<ConfigFault>,
) -> BTreeMap<String, Base> {
    let mut bases = BTreeMap::new();
    for (index, entry) in config.knowledge_bases.iter().enumerate() {
        let pointer = format!("knowledge_bases[{index}]");
        if let Some(base) = base(entry, egress, &pointer, faults) {
            bases.insert(entry.kb_id.clone(), base);
        }
    }
    bases
}

fn base(
    entry: &KnowledgeBaseEntry,
    egress: Option<&Egress>,
    pointer: &str,
    faults: &mut Vec<ConfigFault>,
) -> Option<Base> {
    // On 32-bit systems a length may not fit; the largest one has the same effect.
    let length = |number: &u64| usize::try_from(*number).unwrap_or(usize::MAX);
    let (base_url, api_key, knowledge_id, score_threshold) = match &entry.location {
        KnowledgeLocation::Embedded {
            embedding_model,
            chunk_chars,
            chunk_overlap,
        } => {
            return Some(Base::Embedded(EmbeddedBase {
                embedding_model: embedding_model.clone(),
                size: ChunkSize {
                    characters: length(chunk_chars),
                    overlap: length(chunk_overlap),
                },
            }));
        }
        KnowledgeLocation::Dify {
            base_url,
            api_key,
            knowledge_id,
            score_threshold,
        } => (base_url, api_key, knowledge_id, score_threshold),
    };
    let egress = egress?;
    let before = faults.len();
    if let Err(error) = egress.check_url(base_url.as_str()) {
        faults.push(ConfigFault::new(format!("{pointer}.base_url"), error));
    }
    let at = format!("{pointer}.api_key");
    let address = RemoteAddress {
        base_url: base_url.clone(),
        api_key: secrets::secret(api_key, &at, faults),
        knowledge_id: knowledge_id.clone(),
        score_threshold: *score_threshold,
    };
    let remote = RemoteBase::new(address);
    let remote = remote.map_err(|error| faults.push(ConfigFault::new(at, error)));
    let remote = remote.ok().filter(|_| faults.len() == before)?;
    Some(Base::Remote(Arc::new(remote)))
}

//! What comes from LangBot: its pipelines' queries as events, and its pipelines and rows as tables of `runnel.toml`.
//! Pure, like `domain`.

pub mod adapter;
pub mod migrate;

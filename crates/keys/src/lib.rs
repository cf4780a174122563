//! Credentials of the gateway: API keys, tokens of runs, cursors of pages, and the ring of keys that signs both.

pub mod api_key;
pub mod cursor;
pub mod keyring;
pub mod token;

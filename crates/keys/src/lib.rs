//! API keys, sign-in of people, run tokens, page cursors, and the keyring that signs tokens and cursors.

pub mod api_key;
pub mod cursor;
pub mod keyring;
pub mod sign_in;
pub mod token;

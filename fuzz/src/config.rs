//! What the gateway's `config` gives to its guard.

#[path = "../../services/gateway/src/config/allow_rule.rs"]
mod allow_rule;
#[path = "../../services/gateway/src/config/plain_url.rs"]
mod plain_url;

pub use allow_rule::AllowRule;
pub use plain_url::{PlainUrlError, check_parsed_url, parse_plain_url};

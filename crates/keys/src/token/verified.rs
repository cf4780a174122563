//! Cache of verified tokens: a runner sends the same token with each call, and a signature check costs more than
//! most calls.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::digest::{SHA256, digest};

use super::Claims;

/// Maximum number of cached tokens.
const MAX_TOKENS: usize = 16 * 1024;

/// Keyed by the hash of the token. The cache belongs to one set of keys and is dropped with it, so that tokens of
/// a withdrawn key go with the key.
#[derive(Default)]
pub(super) struct Verified(RwLock<HashMap<TokenHash, Arc<Claims>>>);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TokenHash([u8; 32]);

impl TokenHash {
    pub(super) fn of(token: &str) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        Self(hash)
    }
}

impl Verified {
    pub(super) fn find(&self, token: TokenHash) -> Option<Arc<Claims>> {
        let cached = self.0.read().unwrap_or_else(PoisonError::into_inner);
        cached.get(&token).map(Arc::clone)
    }

    /// Adds a token. A full cache drops tokens that have expired at `now`, or all if none has.
    pub(super) fn remember(&self, token: TokenHash, claims: &Arc<Claims>, now: i64) {
        let mut cached = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if cached.len() >= MAX_TOKENS {
            cached.retain(|_, claims| claims.exp > now);
        }
        // No token has expired: start over, each token is then verified once more.
        if cached.len() >= MAX_TOKENS {
            cached.clear();
        }
        cached.insert(token, Arc::clone(claims));
    }
}

#[cfg(test)]
mod tests {
    use protocol::id::RunId;
    use uuid::Uuid;

    use super::*;

    fn until(exp: i64) -> Arc<Claims> {
        Arc::new(Claims {
            iss: String::new(),
            aud: String::new(),
            sub: "plugin:a/b/c".parse().unwrap(),
            jti: Uuid::nil(),
            run_id: RunId(Uuid::nil()),
            attempt: 1,
            ws: String::new(),
            scope: String::new(),
            res: String::new(),
            iat: 0,
            nbf: 0,
            exp,
        })
    }

    #[test]
    fn cache_is_bounded_and_evicts_expired_first() {
        let verified = Verified::default();
        let retained = TokenHash::of("kept");
        verified.remember(retained, &until(100), 0);
        for index in 1..MAX_TOKENS {
            verified.remember(TokenHash::of(&index.to_string()), &until(10), 0);
        }
        verified.remember(TokenHash::of("one more"), &until(100), 50);
        assert_eq!(verified.0.read().unwrap().len(), 2);
        assert!(verified.find(retained).is_some());
        for index in 2..=MAX_TOKENS {
            verified.remember(TokenHash::of(&index.to_string()), &until(100), 50);
        }
        assert!(verified.0.read().unwrap().len() < MAX_TOKENS);
    }
}

//! Sign-in with an `OpenID` provider: its keys, by `OpenID` Connect Discovery.
//!
//! The keys stay in memory. A token with an unknown key id reads them again, at most once a minute, because the provider
//! may have replaced them. During an outage of the provider, its last keys verify for a day.

use egress::discovery::{DiscoveryError, discover, fetch_document};
use egress::{Egress, parse_plain_url};
use jsonwebtoken::jwk::JwkSet;
use keys::sign_in::{SignInFault, SignInRules, SignedIn, key_id, key_of};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Mutex;

/// Minimum time between two reads of the provider.
const BETWEEN_READS_MS: i64 = 60 * 1000;
/// Time after which the keys are read again.
const FRESH_MS: i64 = 3600 * 1000;
/// Time for which keys verify without the provider.
const USABLE_MS: i64 = 24 * 3600 * 1000;

/// Sign-in with the provider of the configuration.
pub struct SignIn {
    rules: SignInRules,
    egress: Egress,
    provider: Mutex<ProviderCache>,
}

/// Keys and endpoints of the provider, with the times of reading in epoch milliseconds.
#[derive(Default)]
struct ProviderCache {
    document: Option<ProviderDocument>,
    keys: Option<JwkSet>,
    read_at: i64,
    tried_at: i64,
}

/// The used members of a discovery document.
#[derive(Clone, Debug, Deserialize)]
pub struct ProviderDocument {
    pub issuer: String,
    pub jwks_uri: String,
    /// Of the code flow.
    pub authorization_endpoint: Option<String>,
    /// Of PKCE (RFC 7636). `None`: the provider does not list them.
    pub code_challenge_methods_supported: Option<Vec<String>>,
    /// Of the device flow (RFC 8628).
    pub device_authorization_endpoint: Option<String>,
    pub token_endpoint: Option<String>,
}

/// The code flow with PKCE and `S256`, by a page in a browser.
pub struct CodeFlow {
    pub authorization_endpoint: String,
    /// Origin of the token endpoint, as a source of a content security policy.
    pub token_origin: String,
}

impl ProviderDocument {
    /// The code flow. `None`: the provider does not have it, or not with URLs for a browser.
    pub fn code_flow(&self) -> Option<CodeFlow> {
        let methods = self.code_challenge_methods_supported.as_ref();
        // Some providers support the method without listing it.
        if methods.is_some_and(|methods| methods.iter().all(|method| method != "S256")) {
            return None;
        }
        let authorization = parse_plain_url(self.authorization_endpoint.as_deref()?).ok()?;
        let token = parse_plain_url(self.token_endpoint.as_deref()?).ok()?;
        let token_origin = token.origin().ascii_serialization();
        // A host may contain separators of the policy, which would add directives to it.
        let is_source = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:/[]".contains(&byte);
        token_origin.bytes().all(is_source).then(|| CodeFlow {
            authorization_endpoint: authorization.into(),
            token_origin,
        })
    }
}

/// Failure of a sign-in.
#[derive(Debug, thiserror::Error)]
pub enum SignInError {
    #[error("the token is refused: {0}")]
    Refused(SignInFault),
    /// The provider is not available, and no usable keys are in memory.
    #[error("the provider of auth.oidc cannot be read: {0}")]
    Unavailable(String),
}

impl SignIn {
    /// Signs people in by these rules.
    pub fn new(rules: SignInRules, egress: Egress) -> Self {
        Self {
            rules,
            egress,
            provider: Mutex::default(),
        }
    }

    /// The rules of the configuration.
    pub fn rules(&self) -> &SignInRules {
        &self.rules
    }

    /// Verifies a token of the provider. `now_ms`: epoch milliseconds.
    pub async fn verify(&self, token: &str, now_ms: i64) -> Result<SignedIn, SignInError> {
        let kid = key_id(token).map_err(SignInError::Refused)?;
        // One reader at a time: a burst of sign-ins reads the provider once.
        let mut provider = self.provider.lock().await;
        let is_fresh = now_ms - provider.read_at < FRESH_MS;
        let find = |keys: &JwkSet| key_of(keys, kid.as_deref()).cloned();
        let mut key = provider.keys.as_ref().and_then(find);
        if key.is_none() || !is_fresh {
            let read = self.refresh(&mut provider, now_ms).await;
            if now_ms - provider.read_at >= USABLE_MS {
                provider.keys = None;
            }
            key = provider.keys.as_ref().and_then(find);
            if key.is_none() {
                read?;
            }
            // Without keys a token is neither valid nor refused, also between two reads.
            if provider.keys.is_none() {
                return Err(recently_tried());
            }
        }
        drop(provider);
        let key = key.ok_or(SignInError::Refused(SignInFault::UnknownKey))?;
        let verified = self.rules.verify(token, &key, now_ms.div_euclid(1000));
        verified.map_err(SignInError::Refused)
    }

    /// Endpoints of the provider.
    pub async fn document(&self, now_ms: i64) -> Result<ProviderDocument, SignInError> {
        let mut provider = self.provider.lock().await;
        if provider.document.is_none() {
            self.refresh(&mut provider, now_ms).await?;
        }
        let document = provider.document.clone();
        document.ok_or_else(recently_tried)
    }

    /// The code flow of the configured client. `None`: there is none, or the provider is not available.
    pub async fn code_flow(&self, now_ms: i64) -> Option<CodeFlow> {
        self.rules.client_id.as_ref()?;
        self.document(now_ms).await.ok()?.code_flow()
    }

    /// Reads the provider, at most once a minute.
    async fn refresh(&self, provider: &mut ProviderCache, now_ms: i64) -> Result<(), SignInError> {
        if now_ms - provider.tried_at < BETWEEN_READS_MS {
            return Ok(());
        }
        provider.tried_at = now_ms;
        let read = self.read().await;
        let (document, keys) = read.inspect_err(|error| {
            tracing::warn!(
                "cannot read the provider of auth.oidc, trying again in a minute: {error}"
            );
        })?;
        *provider = ProviderCache {
            document: Some(document),
            keys: Some(keys),
            read_at: now_ms,
            tried_at: now_ms,
        };
        Ok(())
    }

    async fn read(&self) -> Result<(ProviderDocument, JwkSet), SignInError> {
        let document = discover(&self.egress, &self.rules.issuer).await?;
        let document: ProviderDocument = read_document(document)?;
        let keys = fetch_document(&self.egress, &document.jwks_uri).await?;
        Ok((document, read_document(keys)?))
    }
}

fn read_document<T: DeserializeOwned>(document: Value) -> Result<T, SignInError> {
    serde_json::from_value(document).map_err(|error| SignInError::Unavailable(error.to_string()))
}

impl From<DiscoveryError> for SignInError {
    fn from(error: DiscoveryError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

fn recently_tried() -> SignInError {
    SignInError::Unavailable("the last try is less than a minute ago".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "https://id.example.com/authorize";
    const TOKEN: &str = "https://id.example.com:8443/token";

    fn flow(methods: Option<&[&str]>, [authorization, token]: [&str; 2]) -> Option<CodeFlow> {
        let document = ProviderDocument {
            issuer: "https://id.example.com".to_owned(),
            jwks_uri: "https://id.example.com/keys".to_owned(),
            authorization_endpoint: Some(authorization.to_owned()),
            code_challenge_methods_supported: methods
                .map(|methods| methods.iter().map(|&method| method.to_owned()).collect()),
            device_authorization_endpoint: None,
            token_endpoint: Some(token.to_owned()),
        };
        document.code_flow()
    }

    #[test]
    fn code_flow_needs_the_method_s256() {
        for methods in [None, Some(&["plain", "S256"][..])] {
            let flow = flow(methods, [PAGE, TOKEN]).unwrap();
            assert_eq!(flow.authorization_endpoint, PAGE);
            assert_eq!(flow.token_origin, "https://id.example.com:8443");
        }
        for methods in [&[][..], &["plain"]] {
            assert!(flow(Some(methods), [PAGE, TOKEN]).is_none(), "{methods:?}");
        }
    }

    #[test]
    fn code_flow_takes_only_plain_endpoints() {
        for endpoints in [
            [PAGE, "https://id.example.com;script-src/token"],
            [PAGE, "https://id.example.com,*/token"],
            [PAGE, "https://*/token"],
            [PAGE, "data:text/plain,token"],
            ["javascript:alert(1)", TOKEN],
            ["https://ana@id.example.com/", TOKEN],
        ] {
            assert!(flow(None, endpoints).is_none(), "{endpoints:?}");
        }
    }
}

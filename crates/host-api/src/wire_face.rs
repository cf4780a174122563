//! APIs whose clients send their key in a header of their own, and read errors in a form of their own.

use axum::response::Response;
use http::Uri;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

use crate::{gemini, messages};
use web::error::{ApiError, ApiResult};

/// One of these APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireFace {
    /// Anthropic's Messages API.
    Messages,
    /// Google's Gemini API.
    Gemini,
}

impl WireFace {
    /// Returns the API of a request. `None`: its form is that of the gateway, or of OpenAI.
    pub fn at(uri: &Uri) -> Option<Self> {
        [Self::Messages, Self::Gemini]
            .into_iter()
            .find(|face| uri.path().starts_with(face.prefix()))
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Messages => "/host/v1/anthropic/",
            Self::Gemini => "/host/v1/gemini/",
        }
    }

    /// API key header of the official clients.
    fn key_header(self) -> HeaderName {
        HeaderName::from_static(match self {
            Self::Messages => "x-api-key",
            Self::Gemini => "x-goog-api-key",
        })
    }

    /// Moves the key to `Authorization`.
    ///
    /// # Errors
    /// 401 if `Authorization` has a different credential, or if there are several keys.
    pub fn normalize_credential(self, headers: &mut HeaderMap) -> ApiResult<()> {
        let name = self.key_header();
        let mut keys = headers.get_all(&name).iter();
        let Some(key) = keys.next() else {
            return Ok(());
        };
        // Proxies choose differently between two headers.
        if keys.next().is_some() {
            return Err(ApiError::unauthenticated());
        }
        let bearer = [b"Bearer ", key.as_bytes()].concat();
        let mut bearer =
            HeaderValue::from_bytes(&bearer).map_err(|_| ApiError::unauthenticated())?;
        // Keeps the key out of debug output.
        bearer.set_sensitive(true);
        headers.remove(&name);
        match headers.get(AUTHORIZATION) {
            // Two credentials: an intermediary could have checked the other one.
            Some(sent) if *sent != bearer => Err(ApiError::unauthenticated()),
            Some(_) => Ok(()),
            None => {
                headers.insert(AUTHORIZATION, bearer);
                Ok(())
            }
        }
    }

    /// Converts an error to the form of the API. Other responses pass.
    pub fn in_wire_format(self, response: Response) -> Response {
        match self {
            Self::Messages => messages::wire_format::in_wire_format(response),
            Self::Gemini => gemini::wire_format::in_wire_format(response),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(face: WireFace, headers: &[(&'static str, &'static str)]) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        face.normalize_credential(&mut map).ok()?;
        assert!(!map.contains_key(face.key_header()));
        let sent = map.get(AUTHORIZATION);
        Some(sent.map_or_else(String::new, |sent| sent.to_str().unwrap().to_owned()))
    }

    #[test]
    fn accepts_key_in_either_header() {
        for (face, name) in [
            (WireFace::Messages, "x-api-key"),
            (WireFace::Gemini, "x-goog-api-key"),
        ] {
            let (key, bearer) = ((name, "t"), ("authorization", "Bearer t"));
            for (headers, expected) in [
                (&[][..], Some("")),
                (&[key], Some("Bearer t")),
                (&[bearer], Some("Bearer t")),
                (&[key, bearer], Some("Bearer t")),
                (&[key, ("authorization", "Bearer u")], None),
                (&[key, ("authorization", "Basic t")], None),
                (&[key, key], None),
            ] {
                assert_eq!(settled(face, headers).as_deref(), expected, "{headers:?}");
            }
        }
    }

    #[test]
    fn path_selects_the_api() {
        for (path, face) in [
            ("/host/v1/anthropic/v1/messages", Some(WireFace::Messages)),
            ("/host/v1/gemini/v1beta/models", Some(WireFace::Gemini)),
            ("/host/v1/openai/v1/models", None),
        ] {
            assert_eq!(WireFace::at(&Uri::from_static(path)), face);
        }
    }
}

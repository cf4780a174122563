//! URLs that every parser reads alike.

use url::Url;

const MAX_BYTES: usize = 2048;

/// Cause of a rejected URL. Does not contain it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlainUrlError {
    #[error("is not an absolute http or https URL")]
    Malformed,
    #[error("is longer than 2048 bytes")]
    TooLong,
    #[error("holds white space, a backslash or a character outside ASCII")]
    Characters,
    #[error("holds a user name or a password; send credentials in a header")]
    Credentials,
    #[error("holds a fragment (`#`)")]
    Fragment,
    #[error(
        "is not in normal form: host in lower case or as a full address, no default port, \
         no `.` or `..` in the path"
    )]
    NotNormal,
}

/// Parses an unambiguous URL: http or https, printable ASCII, no user name, no fragment, and written exactly as parsed
/// (only a missing last `/` is allowed).
pub fn parse_plain_url(raw: &str) -> Result<Url, PlainUrlError> {
    if raw.len() > MAX_BYTES {
        return Err(PlainUrlError::TooLong);
    }
    if raw
        .bytes()
        .any(|byte| !byte.is_ascii_graphic() || byte == b'\\')
    {
        return Err(PlainUrlError::Characters);
    }
    let url = Url::parse(raw).map_err(|_| PlainUrlError::Malformed)?;
    check_parsed_url(&url)?;
    // url || A parser that differs from ours could read another host out of a URL that is not in normal form.
    if url.as_str() == raw || url.as_str().strip_suffix('/') == Some(raw) {
        Ok(url)
    } else {
        Err(PlainUrlError::NotNormal)
    }
}

/// The part of [`parse_plain_url`] that works on a parsed URL.
pub fn check_parsed_url(url: &Url) -> Result<(), PlainUrlError> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(PlainUrlError::Malformed);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(PlainUrlError::Credentials);
    }
    if url.fragment().is_some() {
        return Err(PlainUrlError::Fragment);
    }
    match url.host_str() {
        None | Some("") => Err(PlainUrlError::Malformed),
        Some(host) if host.ends_with('.') => Err(PlainUrlError::NotNormal),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_urls_are_read() {
        for raw in [
            "https://runner.example",
            "https://runner.example/",
            "https://runner.example/a/b?c=d",
            "http://127.0.0.1:9100",
            "https://[2606:4700::1111]:8443/x",
            "https://xn--bcher-kva.example/%7Euser",
        ] {
            assert!(parse_plain_url(raw).is_ok(), "{raw}");
        }
    }

    #[test]
    fn urls_that_hide_where_they_go_are_refused() {
        use PlainUrlError::*;
        for (raw, error) in [
            ("", Malformed),
            ("runner.example", Malformed),
            ("file:///etc/passwd", Malformed),
            ("gopher://runner.example/", Malformed),
            ("ftp://runner.example/", Malformed),
            ("ws://runner.example/", Malformed),
            ("unix:/run/docker.sock", Malformed),
            ("https://", Malformed),
            ("https://user@runner.example/", Credentials),
            ("https://user:pass@runner.example/", Credentials),
            ("https://:pass@runner.example/", Credentials),
            ("https://@runner.example/", NotNormal),
            ("http://127.0.0.1%2f@evil.example/", Credentials),
            ("https://runner.example#x", Fragment),
            ("https://runner.example/#", Fragment),
            ("http:\\\\evil.example\\x", Characters),
            ("https://runner.example\\@evil.example/", Characters),
            ("https://runner.example/ x", Characters),
            (" https://runner.example/", Characters),
            ("https://runner\n.example/", Characters),
            ("https://runner\t.example/", Characters),
            ("https://ⓛocalhost/", Characters),
            ("https://１２７.0.0.1/", Characters),
            ("https://Runner.example/", NotNormal),
            ("HTTPS://runner.example/", NotNormal),
            ("https://runner.example:443/", NotNormal),
            ("https://runner.example./", NotNormal),
            ("https:runner.example/", NotNormal),
            ("https:///runner.example/", NotNormal),
            ("https://runner.example/a/../b", NotNormal),
            ("https://runner.example/%2e%2e/b", NotNormal),
            ("https://%31%32%37.0.0.1/", NotNormal),
            ("http://0x7f000001/", NotNormal),
            ("http://2130706433/", NotNormal),
            ("http://127.1/", NotNormal),
            ("http://0177.0.0.1/", NotNormal),
            ("https://[fe80::1%25eth0]/", Malformed),
            ("https://[0:0:0:0:0:0:0:1]/", NotNormal),
        ] {
            assert_eq!(parse_plain_url(raw), Err(error), "{raw:?}");
        }
        let long = format!("https://runner.example/{}", "a".repeat(MAX_BYTES));
        assert_eq!(parse_plain_url(&long), Err(TooLong));
    }
}

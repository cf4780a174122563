//! TLS of direct `PostgreSQL` connections, with the modes and files of a database URL.

use std::borrow::Cow;
use std::error::Error;
use std::sync::Arc;

use sqlx::postgres::PgSslMode;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore,
    SignatureScheme,
};

/// Files of a database URL: paths, or PEM texts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    root: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
}

impl TlsFiles {
    /// Selects the files among the parameters of a URL.
    pub(crate) fn of<'u>(parameters: impl Iterator<Item = (Cow<'u, str>, Cow<'u, str>)>) -> Self {
        let mut files = Self::default();
        for (name, value) in parameters {
            let file = match &*name {
                "sslrootcert" => &mut files.root,
                "sslcert" => &mut files.certificate,
                "sslkey" => &mut files.key,
                _ => continue,
            };
            // sqlx marks paths to tell them from PEM texts.
            let value = value.strip_prefix("file: ").unwrap_or(&value);
            *file = Some(value.to_owned());
        }
        files
    }

    /// Reads the files, which may have changed since the last connection.
    pub(crate) async fn connector(
        &self,
        mode: PgSslMode,
    ) -> Result<TlsConnector, Box<dyn Error + Send + Sync>> {
        let provider = Arc::new(default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let roots = webpki_roots::TLS_SERVER_ROOTS.iter().cloned();
        let mut roots: RootCertStore = roots.collect();
        // The other modes verify no chain, and need no file for it.
        let root = self.root.as_ref().filter(|_| verifies(mode));
        if let Some(root) = root {
            for certificate in CertificateDer::pem_slice_iter(&pem(root).await?) {
                roots.add(certificate?)?;
            }
        }
        let web_pki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = ModeVerifier {
            web_pki: web_pki.build()?,
            mode,
        };
        let builder = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let chain = CertificateDer::pem_slice_iter(&pem(certificate).await?)
                    .collect::<Result<_, _>>()?;
                let key = PrivateKeyDer::from_pem_slice(&pem(key).await?)?;
                builder.with_client_auth_cert(chain, key)?
            }
            (None, None) => builder.with_no_client_auth(),
            _ => return Err("set both sslcert and sslkey, or none".into()),
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

fn verifies(mode: PgSslMode) -> bool {
    matches!(mode, PgSslMode::VerifyCa | PgSslMode::VerifyFull)
}

async fn pem(file: &str) -> std::io::Result<Vec<u8>> {
    if file.contains("-----BEGIN") {
        return Ok(file.as_bytes().to_vec());
    }
    tokio::fs::read(file).await
}

/// Verifies as much as the mode demands. Signatures are verified in each mode.
#[derive(Debug)]
struct ModeVerifier {
    web_pki: Arc<WebPkiServerVerifier>,
    mode: PgSslMode,
}

impl ServerCertVerifier for ModeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        if !verifies(self.mode) {
            return Ok(ServerCertVerified::assertion());
        }
        let verified = self.web_pki.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match (verified, self.mode) {
            // The chain is valid; this mode accepts any name.
            (
                Err(TlsError::InvalidCertificate(
                    CertificateError::NotValidForName
                    | CertificateError::NotValidForNameContext { .. },
                )),
                PgSslMode::VerifyCa,
            ) => Ok(ServerCertVerified::assertion()),
            (verified, _) => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.web_pki
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.web_pki
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.web_pki.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;

    use super::*;

    fn fixture(name: &str) -> PathBuf {
        let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tls");
        PathBuf::from(tests).join(name)
    }

    /// True when a client at `localhost` accepts a server with this certificate.
    async fn accepts(mode: PgSslMode, certificate: &str) -> bool {
        let chain = CertificateDer::pem_file_iter(fixture(&format!("{certificate}.pem"))).unwrap();
        let chain = chain.collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(fixture(&format!("{certificate}.key"))).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let files = TlsFiles {
            root: Some(fixture("authority.pem").display().to_string()),
            ..TlsFiles::default()
        };
        let connector = files.connector(mode).await.unwrap();
        let (near, far) = tokio::io::duplex(16 * 1024);
        let name = "localhost".try_into().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (connected, _) = tokio::join!(connector.connect(name, near), acceptor.accept(far));
        connected.is_ok()
    }

    #[tokio::test]
    async fn verifies_certificates_by_mode() {
        use PgSslMode::{Prefer, Require, VerifyCa, VerifyFull};
        let certificates = ["good", "elsewhere", "expired", "self-signed"];
        for (mode, accepted) in [
            (Prefer, [true, true, true, true]),
            (Require, [true, true, true, true]),
            (VerifyCa, [true, true, false, false]),
            (VerifyFull, [true, false, false, false]),
        ] {
            for (certificate, is_accepted) in certificates.into_iter().zip(accepted) {
                let accepts = accepts(mode, certificate).await;
                assert_eq!(accepts, is_accepted, "{mode:?} {certificate}");
            }
        }
    }
}

//! Opens direct `PostgreSQL` connections, to the address and with the TLS mode that sqlx reads from a database URL.

use std::error::Error;
use std::path::Path;
use std::str::FromStr as _;

use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::{Config, NoTls};

use crate::error::StoreError;
use crate::postgres_direct::{ByteStream, PostgresDirect};
use crate::postgres_tls::TlsFiles;

/// Asks a server for TLS: length and code of the message.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// A server, and the settings of its sessions.
pub(crate) struct PostgresConnector {
    options: PgConnectOptions,
    files: TlsFiles,
    config: Config,
    settings: String,
}

impl PostgresConnector {
    /// `settings`: statements for each new session.
    pub(crate) fn new(url: &str, settings: String) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(url);
        let options = options.map_err(|error| StoreError::Address(error.to_string()))?;
        // sqlx returns the password and the files only in a URL. Its user and host are not escaped, so replaced here.
        let mut resolved = options.clone().username("user").host("host").to_url_lossy();
        let files = TlsFiles::of(resolved.query_pairs());
        resolved.set_query(None);
        resolved.set_path("");
        let decoded = Config::from_str(resolved.as_str());
        let decoded = decoded.map_err(|error| StoreError::Address(error.to_string()))?;
        let mut config = Config::new();
        config.user(options.get_username());
        if let Some(password) = decoded.get_password() {
            config.password(password);
        }
        if let Some(database) = options.get_database() {
            config.dbname(database);
        }
        if let Some(name) = options.get_application_name() {
            config.application_name(name);
        }
        if let Some(options) = options.get_options() {
            config.options(options);
        }
        Ok(Self {
            options,
            files,
            config,
            settings,
        })
    }

    /// Opens a session.
    pub(crate) async fn connect(&self) -> Result<PostgresDirect, Box<dyn Error + Send + Sync>> {
        let stream = self.stream().await?;
        // The stream is encrypted already.
        let (client, io) = self.config.connect_raw(stream, NoTls).await?;
        Ok(PostgresDirect::open(client, io, &self.settings).await?)
    }

    async fn stream(&self) -> Result<Box<dyn ByteStream>, Box<dyn Error + Send + Sync>> {
        let (host, port) = (self.options.get_host(), self.options.get_port());
        let directory = host.starts_with('/').then(|| Path::new(host));
        let directory = self.options.get_socket().map(AsRef::as_ref).or(directory);
        if let Some(directory) = directory {
            let stream = UnixStream::connect(directory.join(format!(".s.PGSQL.{port}")));
            return self.secured(stream.await?).await;
        }
        // An IPv6 address of a URL has brackets.
        let address = host.trim_matches(['[', ']']);
        let stream = TcpStream::connect((address, port)).await?;
        // Without it, the end of a large statement waits 40 ms for an acknowledgement.
        stream.set_nodelay(true)?;
        self.secured(stream).await
    }

    async fn secured(
        &self,
        mut stream: impl ByteStream + 'static,
    ) -> Result<Box<dyn ByteStream>, Box<dyn Error + Send + Sync>> {
        let mode = self.options.get_ssl_mode();
        if matches!(mode, PgSslMode::Disable | PgSslMode::Allow) {
            return Ok(Box::new(stream));
        }
        stream.write_all(&SSL_REQUEST).await?;
        match (stream.read_u8().await?, mode) {
            (b'S', _) => {
                let connector = self.files.connector(mode).await?;
                let name = self.options.get_host().to_owned().try_into()?;
                Ok(Box::new(connector.connect(name, stream).await?))
            }
            (b'N', PgSslMode::Prefer) => Ok(Box::new(stream)),
            (b'N', _) => Err("server does not support TLS".into()),
            (other, _) => Err(format!("server answered the request for TLS by {other:#x}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_address_login_and_files_of_urls() {
        let url = "postgres://us%40er:p%2Fw%20x@[::1]:5433/d%20b?sslmode=verify-full&sslrootcert=/a%20b.pem\
                   &application_name=gate&options=-c%20geqo%3Doff";
        let connector = PostgresConnector::new(url, String::new()).unwrap();
        let mut config = Config::new();
        config.user("us@er").password("p/w x").dbname("d b");
        config.application_name("gate").options("-c geqo=off");
        assert_eq!(connector.config, config);
        let options = &connector.options;
        assert_eq!((options.get_host(), options.get_port()), ("[::1]", 5433));
        let files = TlsFiles::of([("sslrootcert".into(), "/a b.pem".into())].into_iter());
        assert_eq!(connector.files, files);
        assert!(matches!(options.get_ssl_mode(), PgSslMode::VerifyFull));
    }

    #[test]
    fn connects_to_sockets_of_urls() {
        let connector = PostgresConnector::new("postgres:///d?host=/var/run/pg", String::new());
        let socket = connector.unwrap().options.get_socket().cloned();
        assert_eq!(socket, Some("/var/run/pg".into()));
    }
}

//! The database of a measured gateway.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use sqlx::{Connection as _, PgConnection};

use crate::process::parent;

/// File of an SQLite database, in the directory of its gateway.
const FILE: &str = "runnel.db";

/// An SQLite file in the gateway's directory, or a database on a server.
pub(crate) struct Database {
    pub(crate) name: &'static str,
    /// `None`: the file.
    url: Option<String>,
}

impl Database {
    pub(crate) fn sqlite() -> Self {
        let name = "sqlite";
        Self { name, url: None }
    }

    /// A database on a server.
    pub(crate) fn at(name: &'static str, url: &str) -> Self {
        let url = Some(url.to_owned());
        Self { name, url }
    }

    /// True for a database that several gateways can use.
    pub(crate) fn is_on_server(&self) -> bool {
        self.url.is_some()
    }

    /// The URL in the configuration of a gateway with this directory.
    pub(crate) fn url(&self, directory: &Path) -> String {
        let file = || format!("sqlite://{}", directory.join(FILE).display());
        self.url.clone().unwrap_or_else(file)
    }

    /// The first process of the server, if it runs on this machine.
    pub(crate) async fn server(&self) -> anyhow::Result<Option<u32>> {
        let Some(url) = &self.url else {
            return Ok(None);
        };
        let mut connection = PgConnection::connect(url).await?;
        let backend: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(&mut connection)
            .await?;
        let backend = u32::try_from(backend)?;
        // On another machine or in a container, the number belongs to another program or to none.
        let name = fs::read_to_string(format!("/proc/{backend}/comm")).unwrap_or_default();
        let server = (name.trim() == "postgres").then(|| parent(backend));
        connection.close().await?;
        server.transpose()
    }

    /// Bytes of the database, without its log.
    pub(crate) async fn size(&self, directory: &Path) -> anyhow::Result<u64> {
        let Some(url) = &self.url else {
            let file = fs::metadata(directory.join(FILE));
            return Ok(file.context("there is no database file")?.len());
        };
        let mut connection = PgConnection::connect(url).await?;
        let size: i64 = sqlx::query_scalar("SELECT pg_database_size(current_database())")
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        Ok(u64::try_from(size)?)
    }
}

//! The argument `--config` of commands that read the configuration.

use std::path::PathBuf;

use anyhow::bail;

use crate::app::embedded_file;
use crate::config::{Config, ConfigErrors};
use cli::output;

/// Location of the configuration.
#[derive(clap::Args)]
pub(super) struct ConfigArgument {
    /// The configuration file. Default: `runnel.toml` in the working directory if it exists, else built-in
    /// defaults.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigArgument {
    pub(super) fn path(&self) -> Option<PathBuf> {
        // Only the working directory is searched: a file of a parent would be used by surprise.
        let default = || Some(PathBuf::from("runnel.toml")).filter(|path| path.exists());
        self.config.clone().or_else(default)
    }

    /// Settings of a command that uses the database directly. Without a file it prints the location of the
    /// database, since a wrong working directory would silently create a new one.
    pub(super) fn load_for_database(&self) -> Result<Config, ConfigErrors> {
        let path = self.path();
        let settings = Config::load(path.as_deref())?;
        if path.is_none() {
            output::remark(&format!(
                "there is no runnel.toml here and no --config: the database is {}",
                settings.database.display_url()
            ));
        }
        Ok(settings)
    }

    /// The same for a command that reads or changes what a database has: a missing file is an error.
    pub(super) fn load_for_existing_database(&self) -> anyhow::Result<Config> {
        let settings = self.load_for_database()?;
        // SQLite would create the file, and the command would act on an empty database.
        if let Some(file) = embedded_file(&settings.database.url)
            && !file.exists()
        {
            bail!(
                "there is no database at {}: start `runnel serve` or `runnel dev` first, or name its configuration \
                 by --config",
                file.display()
            );
        }
        Ok(settings)
    }
}

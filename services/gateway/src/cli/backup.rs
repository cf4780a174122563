//! `runnel backup`: database and artifacts as one tar file, from the configuration.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use blob_store::durable::sync_name;
use serde_json::json;
use store::copy_sqlite;
use tar::Builder;

use crate::app::{artifact_directory, embedded_file};
use crate::cli::config_argument::ConfigArgument;
use cli::output::{self, OutputFormat};

/// Name of the artifacts' directory in the file.
const ARTIFACTS: &str = "artifacts";
/// Marks the names of unfinished uploads.
const UNFINISHED: char = '#';
/// Maximum depth of the artifacts' directories.
const MAX_DEPTH: usize = 16;

#[derive(clap::Args)]
pub(super) struct BackupArguments {
    /// The new file: a tar archive of the database and the artifacts.
    file: PathBuf,
    #[command(flatten)]
    config: ConfigArgument,
}

/// Contents of a backup.
struct Backup {
    runs: u64,
    artifacts: u64,
    bytes: u64,
}

/// Writes the backup. The file appears when it is complete.
pub(super) async fn backup(
    arguments: BackupArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let BackupArguments { file, config } = arguments;
    let settings = config.load_for_existing_database()?;
    let Some(database) = embedded_file(&settings.database.url) else {
        bail!(
            "the database is PostgreSQL: back it up by pg_dump, and the artifacts by a copy of their directory"
        );
    };
    if file.exists() {
        bail!("{} exists: choose another name", file.display());
    }
    let artifacts = artifact_directory(&settings);
    if artifacts.is_none() {
        output::remark("the artifacts are in a bucket: back them up there");
    }
    let writing = {
        // The copy blocks on files, and would stall the async worker.
        let file = file.clone();
        tokio::task::spawn_blocking(move || write(&database, artifacts.as_deref(), &file))
    };
    let backup = writing.await.context("the backup panicked")??;
    let Backup {
        runs,
        artifacts,
        bytes,
    } = backup;
    if format.is_json() {
        output::document(
            &json!({"file": file, "runs": runs, "artifacts": artifacts, "bytes": bytes}),
        );
    } else {
        let (runs, artifacts) = (
            output::counted(runs, "run"),
            output::counted(artifacts, "artifact"),
        );
        output::line(&format!(
            "{}  {runs}, {artifacts}, {bytes} bytes",
            file.display()
        ));
        output::remark("keep a copy of auth.master_key separately: it is not in the file");
    }
    Ok(ExitCode::SUCCESS)
}

fn write(database: &Path, artifacts: Option<&Path>, file: &Path) -> anyhow::Result<Backup> {
    // Both files are next to the target, so that the rename stays within one file system.
    let copy = Temporary::next_to(file, "db")?;
    let runs = copy_sqlite(database, &copy.path)
        .with_context(|| format!("cannot copy {}", database.display()))?;
    let archive = Temporary::next_to(file, "part")?;
    // The name of `database.url`, so that unpacking replaces this file.
    let name = database.file_name().context("the database has no name")?;
    let written = archive_of(&copy.path, name, artifacts, &archive.path);
    let counted = written.with_context(|| format!("cannot write {}", file.display()))?;
    let bytes = fs::metadata(&archive.path)?.len();
    // Only a complete archive gets the final name.
    fs::rename(&archive.path, file)
        .and_then(|()| sync_name(file))
        .with_context(|| format!("cannot rename it to {}", file.display()))?;
    Ok(Backup {
        runs,
        artifacts: counted,
        bytes,
    })
}

/// Writes the archive. Returns the number of artifacts. They are copied after the database, which names them.
fn archive_of(
    copy: &Path,
    name: &OsStr,
    artifacts: Option<&Path>,
    archive: &Path,
) -> io::Result<u64> {
    let mut builder = Builder::new(File::options().write(true).open(archive)?);
    builder.append_path_with_name(copy, name)?;
    let mut counted = 0;
    if let Some(artifacts) = artifacts.filter(|artifacts| artifacts.is_dir()) {
        append(
            &mut builder,
            artifacts,
            Path::new(ARTIFACTS),
            MAX_DEPTH,
            &mut counted,
        )?;
    }
    let mut file = builder.into_inner()?;
    file.flush()?;
    // The rename could become durable before the contents.
    file.sync_all()?;
    Ok(counted)
}

/// Adds the files of a directory. Artifacts that expire during the copy are left out.
fn append(
    builder: &mut Builder<File>,
    directory: &Path,
    name: &Path,
    depth: usize,
    counted: &mut u64,
) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (path, name) = (entry.path(), name.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() && depth > 0 {
            append(builder, &path, &name, depth - 1, counted)?;
        // An unfinished upload has no record in the database.
        } else if kind.is_file() && !entry.file_name().to_string_lossy().contains(UNFINISHED) {
            match File::open(&path) {
                Ok(mut opened) => {
                    builder.append_file(&name, &mut opened)?;
                    *counted += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// A file that is removed at the end, readable by its owner only.
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn next_to(file: &Path, suffix: &str) -> anyhow::Result<Self> {
        let mut path = file.as_os_str().to_owned();
        path.push(format!(".{suffix}"));
        let path = PathBuf::from(path);
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        options.open(&path).with_context(|| {
            format!(
                "cannot create {}; its directory must exist, and no file of an earlier try be left",
                path.display()
            )
        })?;
        Ok(Self { path })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Ignored: the archive was renamed, or the directory is gone.
        let _ = fs::remove_file(&self.path);
    }
}

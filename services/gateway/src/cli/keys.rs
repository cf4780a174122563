//! `runnel keys`: signing keys of run tokens and cursors, directly in the configured database.

use std::process::ExitCode;

use anyhow::bail;
use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use domain::signing_key::{
    KeyPurpose, KeyTimes, MAX_KEYS, RotationCause, RotationPlan, key_phases,
};
use serde_json::{Value, json};
use store::{Migrations, Store};
use tokio_util::task::TaskTracker;

use crate::app::open_store;
use crate::cli::config_argument::ConfigArgument;
use crate::cli::serve::master_key;
use cli::output::{self, OutputFormat};
use clock::Clock;
use keys::keyring::{Rotation, rotate};
use secrets::seal::MasterKey;

#[derive(Subcommand)]
pub(super) enum KeysCommand {
    /// List the signing keys: the active one, and those that only verify, with their expiry.
    List {
        #[command(flatten)]
        config: ConfigArgument,
    },
    /// Create a new signing key before the active one is `auth.signing_key_days` old.
    ///
    /// It is published at once and becomes active in ten minutes, after every gateway and every cache of
    /// published keys has it. The previous key verifies until everything that it signed has expired: run tokens
    /// for 17 more minutes, cursors for 30 days. Live runs are not affected.
    Rotate {
        /// The purpose of the key. Default: a new key for each.
        #[arg(long, value_parser = purposes())]
        purpose: Option<KeyPurpose>,
        /// Replace a key that may have leaked: all earlier keys become invalid on every gateway within a second,
        /// and the new one is active at once.
        ///
        /// Effects: live runs, and those that begin within that second, hold tokens of an earlier key. Their
        /// callbacks are answered by 401 until these runs end. Streamed results are still accepted, but a runner
        /// that answered 202 can append no more, and its run ends as `runner.orphaned`. Others that verify
        /// tokens by the published keys may cache them for five minutes. With cursors: clients must restart
        /// every list, since its cursor is answered by 400. API keys are not affected.
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        config: ConfigArgument,
    },
}

fn purposes() -> impl TypedValueParser<Value = KeyPurpose> {
    let possible = KeyPurpose::ALL.map(|purpose| {
        let help = match purpose {
            KeyPurpose::RunToken => "The tokens that runners call back with",
            KeyPurpose::Cursor => "The cursors of lists",
        };
        PossibleValue::new(purpose.as_str()).help(help)
    });
    PossibleValuesParser::new(possible)
        .try_map(|text| KeyPurpose::parse(&text).ok_or("is no purpose of a signing key"))
}

/// Runs a `keys` command.
pub(super) async fn keys(command: KeysCommand, format: OutputFormat) -> anyhow::Result<ExitCode> {
    let (KeysCommand::List { config } | KeysCommand::Rotate { config, .. }) = &command;
    let settings = config.load_for_existing_database()?;
    // A list needs no master key, so it works without access to it.
    let sealed_by = match command {
        KeysCommand::List { .. } => None,
        KeysCommand::Rotate { .. } => Some(master_key(&settings)?),
    };
    let store = open_store(&settings, &TaskTracker::new(), Migrations::New).await?;
    let done = match (command, sealed_by) {
        (KeysCommand::Rotate { purpose, now, .. }, Some(master_key)) => {
            let purposes = purpose.map_or(KeyPurpose::ALL.to_vec(), |purpose| vec![purpose]);
            let occasion = if now {
                RotationCause::Compromised
            } else {
                RotationCause::Requested
            };
            rotate_all(&store, &master_key, &purposes, occasion, format).await
        }
        _ => list(&store, format).await,
    };
    // Also after an error, so that SQLite removes its write-ahead log.
    store.close().await;
    done.map(|()| ExitCode::SUCCESS)
}

async fn list(store: &Store, format: OutputFormat) -> anyhow::Result<()> {
    let now = Clock::system().now_ms();
    let records = store.access().list_signing_keys().await?;
    let mut items = Vec::new();
    if !format.is_json() {
        output::line(&format!(
            "{:9}  {:9}  {:20}  {:20}  {:20}  kid",
            "purpose", "phase", "created", "signs until", "verifies until"
        ));
    }
    for purpose in KeyPurpose::ALL {
        let own = records.iter().filter(|record| record.purpose == purpose);
        let keys: Vec<KeyTimes> = own.map(|record| record.times.clone()).collect();
        for (key, phase) in keys.iter().zip(key_phases(&keys, now)) {
            let (purpose, phase) = (purpose.as_str(), phase.as_str());
            items.push(json!({
                "kid": key.kid, "purpose": purpose, "phase": phase,
                "created_at": seconds(key.created_at),
                "sign_until": key.sign_until.map(seconds),
                "verify_until": key.verify_until.map(seconds),
            }));
            if !format.is_json() {
                let end = |at: Option<i64>| at.map_or("-".to_owned(), output::time);
                output::line(&format!(
                    "{purpose:9}  {phase:9}  {:20}  {:20}  {:20}  {}",
                    output::time(key.created_at),
                    end(key.sign_until),
                    end(key.verify_until),
                    key.kid
                ));
            }
        }
    }
    if format.is_json() {
        output::document(&json!({ "items": items }));
    }
    Ok(())
}

fn seconds(at_ms: i64) -> i64 {
    at_ms.div_euclid(1000)
}

async fn rotate_all(
    store: &Store,
    master_key: &MasterKey,
    purposes: &[KeyPurpose],
    occasion: RotationCause,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let mut items = Vec::new();
    for purpose in purposes {
        // Each rotation has its own time: the next one may wait for the lock of a writer.
        let now = Clock::system().now_ms();
        let rotation = rotate(store, master_key, *purpose, occasion, now).await?;
        let (item, summary) = report(*purpose, rotation, now)?;
        items.push(item);
        if !format.is_json() {
            output::line(&summary);
        }
    }
    if format.is_json() {
        output::document(&json!({ "items": items }));
    }
    Ok(())
}

/// The result, as JSON and as text.
fn report(purpose: KeyPurpose, rotation: Rotation, now: i64) -> anyhow::Result<(Value, String)> {
    let name = purpose.as_str();
    let item = |kid: &str, outcome: &str, signs_from: i64| json!({"purpose": name, "kid": kid, "outcome": outcome, "signs_from": seconds(signs_from)});
    let Rotation { kid, plan } = rotation;
    Ok(match plan {
        RotationPlan::ScheduleSuccessor { signs_from, .. } => {
            let from = output::time(signs_from);
            let summary = format!("{name}: made {kid}, it signs from {from}");
            (item(&kid, "made", signs_from), summary)
        }
        RotationPlan::AlreadyScheduled { kid, signs_from } => {
            let from = output::time(signs_from);
            let summary =
                format!("{name}: a rotation is under way already, {kid} signs from {from}");
            (item(&kid, "under_way", signs_from), summary)
        }
        RotationPlan::Replace { withdrawn } => {
            let summary = format!(
                "{name}: made {kid}, it signs at once; withdrawn: {}",
                withdrawn.join(", ")
            );
            let mut item = item(&kid, "replaced", now);
            item["withdrawn"] = json!(withdrawn);
            (item, summary)
        }
        RotationPlan::TooMany => bail!(
            "{MAX_KEYS} keys of purpose {name} verify already; wait until some are over \
             (`runnel keys list` shows when), or withdraw them all with --now"
        ),
        RotationPlan::NotDue => bail!("another command changed the signing keys; try again"),
    })
}

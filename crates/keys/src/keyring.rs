//! Signing keys of run tokens and cursors, with rotation while runs continue.
//!
//! Every replica reads the table once a second: a withdrawn key is invalid a second later, and every replica
//! knows a new key long before its first signature (`domain::signing_key`). The first replica that finds a
//! rotation due creates the key and deletes expired ones.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::rand;
use domain::signing_key::{
    KeyPhase, KeyPurpose, KeyTimes, RotationCause, RotationPlan, key_phases, plan_rotation,
};
use store::{DeleteExpiredKeys, RotateKey, SigningKeyRecord, Store, StoreError};
use tokio::sync::watch;
use uuid::Uuid;

use crate::cursor::Cursors;
use crate::token::{Claims, KeyFault, RunTokens, TokenFault, generate_key};
use clock::Clock;
use secrets::seal::{MasterKey, SealError};

/// Interval between two reads of the table.
const LOOK: Duration = Duration::from_secs(1);
/// Minimum interval of reads that an unknown key id causes, so that invented key ids do not load the database.
const UNKNOWN_PAUSE_MS: i64 = 2_000;

/// Cause of unusable keys in the table.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    #[error("the signing keys cannot be read or written")]
    Store(#[from] StoreError),
    #[error("auth.master_key is not the one that this database was sealed with")]
    MasterKey(#[from] SealError),
    #[error("a signing key cannot be used")]
    Key(#[from] KeyFault),
}

/// Keys in force, for handlers and runs.
pub struct Keyring {
    pub tokens: RunTokens,
    pub cursors: Cursors,
    store: Store,
    master_key: Arc<MasterKey>,
    clock: Clock,
    max_age_ms: i64,
    /// Not locked during a read of the table.
    read_state: Mutex<ReadState>,
}

struct ReadState {
    /// Key ids in force, in order.
    kids: Vec<String>,
    /// Time of the last read for an unknown key id.
    unknown_key_read_at: i64,
    /// Closed after the read for an unknown key id.
    unknown_key_read: watch::Receiver<()>,
    /// Number of reads begun, and the last applied one: an earlier read never replaces a later one.
    started: u64,
    applied: u64,
}

/// Action for an unknown key id.
enum UnknownKeyStep {
    /// Read the table; waiters continue when this is dropped.
    Look(watch::Sender<()>),
    /// Another task reads the table.
    Wait(watch::Receiver<()>),
    /// The table was read a moment ago.
    Done,
}

impl ReadState {
    fn new(kids: Vec<String>) -> Self {
        Self {
            kids,
            unknown_key_read_at: i64::MIN,
            unknown_key_read: watch::channel(()).1,
            started: 0,
            applied: 0,
        }
    }

    fn turn(&mut self, now: i64) -> UnknownKeyStep {
        // `has_changed` fails after the sender is dropped, thus a read is in progress here.
        if self.unknown_key_read.has_changed().is_ok() {
            return UnknownKeyStep::Wait(self.unknown_key_read.clone());
        }
        // After the clock moved back, the difference is negative and the table is read.
        if (0..UNKNOWN_PAUSE_MS).contains(&now.saturating_sub(self.unknown_key_read_at)) {
            return UnknownKeyStep::Done;
        }
        let (read_guard, unknown_key_read) = watch::channel(());
        self.unknown_key_read_at = now;
        self.unknown_key_read = unknown_key_read;
        UnknownKeyStep::Look(read_guard)
    }
}

/// Result of a rotation.
pub struct Rotation {
    /// Key id of the new key, if the plan creates one.
    pub kid: String,
    pub plan: RotationPlan,
}

impl Keyring {
    /// Reads the keys; the first start on a database creates them.
    pub async fn open(
        store: Store,
        master_key: Arc<MasterKey>,
        clock: Clock,
        public_url: &str,
        max_age: Duration,
    ) -> Result<Self, KeyringError> {
        let max_age_ms = i64::try_from(max_age.as_millis()).unwrap_or(i64::MAX);
        let found = store.access().list_signing_keys().await?;
        make_due(&store, &master_key, &found, max_age_ms, clock.now_ms()).await?;
        // Read again: this process or another replica may have created keys.
        let records = store.access().list_signing_keys().await?;
        let now = clock.now_ms();
        let tokens = secrets(&records, &master_key, KeyPurpose::RunToken, now)?;
        let cursors = secrets(&records, &master_key, KeyPurpose::Cursor, now)?;
        Ok(Self {
            tokens: RunTokens::new(public_url, &tokens)?,
            cursors: Cursors::new(&cursors).ok_or(KeyFault)?,
            read_state: Mutex::new(ReadState::new(kids_in_force(&records, now))),
            store,
            master_key,
            clock,
            max_age_ms,
        })
    }

    /// Verifies a run token. A key id that another replica has just created, for example after a compromise, is
    /// looked up in the table.
    pub async fn verify(&self, token: &str) -> Result<Arc<Claims>, TokenFault> {
        let verify = || self.tokens.verify(token, self.clock.now_seconds());
        let is_unknown = |verdict: &Result<_, _>| matches!(verdict, Err(TokenFault::UnknownKey));
        let verdict = verify();
        if !is_unknown(&verdict) {
            return verdict;
        }
        let turn = self.read_state().turn(self.clock.now_ms());
        match turn {
            // Held during the read: its drop wakes the waiters.
            UnknownKeyStep::Look(_read_guard) => {
                if let Err(error) = self.look().await {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "cannot read the signing keys, a token with an unknown key id is rejected"
                    );
                }
            }
            UnknownKeyStep::Wait(mut unknown_key_read) => {
                while unknown_key_read.changed().await.is_ok() {}
            }
            UnknownKeyStep::Done => {}
        }
        // Also after a failed read: the keys of the last read then decide.
        verify()
    }

    // Consistent after any panic: fields are set one by one and are independent.
    fn read_state(&self) -> MutexGuard<'_, ReadState> {
        self.read_state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the table; returns the number of this read, too.
    async fn read(&self) -> Result<(u64, Vec<SigningKeyRecord>), StoreError> {
        let look = {
            // Numbered before the read, because reads may finish in another order.
            let mut read_state = self.read_state();
            read_state.started += 1;
            read_state.started
        };
        Ok((look, self.store.access().list_signing_keys().await?))
    }

    /// Reads the table at each interval, creates due keys and deletes expired ones.
    pub async fn keep(&self) {
        let mut tick = tokio::time::interval(LOOK);
        // With the default, missed ticks would follow in a burst after a stall.
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tick.tick().await;
            let outcome = self.keep_once().await;
            if let Err(error) = &outcome
                && !failing
            {
                // Logged once per outage: a pass comes every second.
                tracing::error!(
                    error = error as &dyn std::error::Error,
                    "signing key rotation paused, retrying every second"
                );
            }
            failing = outcome.is_err();
        }
    }

    async fn keep_once(&self) -> Result<(), KeyringError> {
        let (mut look, mut records) = self.read().await?;
        let now = self.clock.now_ms();
        let made = make_due(
            &self.store,
            &self.master_key,
            &records,
            self.max_age_ms,
            now,
        )
        .await;
        if matches!(made, Ok(true)) {
            // Read again, so that the new key is applied in this pass.
            (look, records) = self.read().await?;
        }
        // Also after a failed creation: withdrawn keys must go.
        self.take(look, &records)?;
        if records.iter().any(|record| record.times.is_expired(now)) {
            self.store.write(DeleteExpiredKeys).await?;
        }
        made.map(|_| ())
    }

    async fn look(&self) -> Result<(), KeyringError> {
        let (look, records) = self.read().await?;
        self.take(look, &records)
    }

    /// Applies the result of a read, unless a later one was applied.
    fn take(&self, look: u64, records: &[SigningKeyRecord]) -> Result<(), KeyringError> {
        let now = self.clock.now_ms();
        let kids = kids_in_force(records, now);
        let mut read_state = self.read_state();
        if look < read_state.applied {
            return Ok(());
        }
        // A failed pass is tried again: the next read has a higher number.
        read_state.applied = look;
        // Unchanged keys keep their cache of verified tokens.
        if kids == read_state.kids {
            return Ok(());
        }
        // Open both sets before replacing one: an unusable key then changes neither.
        let opened = |purpose| secrets(records, &self.master_key, purpose, now);
        let (tokens, cursors) = (opened(KeyPurpose::RunToken)?, opened(KeyPurpose::Cursor)?);
        self.tokens.replace(&tokens)?;
        self.cursors.replace(&cursors).ok_or(KeyFault)?;
        tracing::info!(keys = kids.len(), "the signing keys in force have changed");
        // Set last: after a failed replacement, the next read finds a difference and retries.
        read_state.kids = kids;
        Ok(())
    }
}

/// Creates a key of `purpose` for a rotation cause. Writes nothing unless all keys open under `master_key`.
pub async fn rotate(
    store: &Store,
    master_key: &MasterKey,
    purpose: KeyPurpose,
    occasion: RotationCause,
    now: i64,
) -> Result<Rotation, KeyringError> {
    // A key sealed with another master key would lock out every replica.
    check_master_key(master_key, &store.access().list_signing_keys().await?)?;
    let (kid, secret) = match purpose {
        KeyPurpose::RunToken => generate_key()?,
        KeyPurpose::Cursor => (Uuid::now_v7().to_string(), random_secret()?),
    };
    let rotate = RotateKey {
        purpose,
        kid: kid.clone(),
        secret: master_key.seal(purpose.as_str(), &secret),
        occasion,
        at: now,
    };
    // The transaction plans anew: another replica may have rotated since the last read.
    let plan = store.write(rotate).await?;
    Ok(Rotation { kid, plan })
}

/// Checks that all keys open under `master_key`.
pub fn check_master_key(
    master_key: &MasterKey,
    records: &[SigningKeyRecord],
) -> Result<(), KeyringError> {
    for record in records {
        master_key.open(record.purpose.as_str(), &record.secret)?;
    }
    Ok(())
}

/// Creates due keys. True when the table has changed since `records`.
async fn make_due(
    store: &Store,
    master_key: &MasterKey,
    records: &[SigningKeyRecord],
    max_age_ms: i64,
    now: i64,
) -> Result<bool, KeyringError> {
    let occasion = RotationCause::Age(max_age_ms);
    let mut changed = false;
    for purpose in KeyPurpose::ALL {
        let (times, _) = of_purpose(records, purpose);
        if plan_rotation(purpose, &times, occasion, now) == RotationPlan::NotDue {
            continue;
        }
        changed = true;
        let Rotation { kid, plan } = rotate(store, master_key, purpose, occasion, now).await?;
        // With other plans, another replica rotated first.
        if let RotationPlan::ScheduleSuccessor { signs_from, .. } = plan {
            tracing::info!(
                kid,
                purpose = purpose.as_str(),
                signs_in_ms = signs_from - now,
                "a signing key was made"
            );
        }
    }
    Ok(changed)
}

/// Keys of one purpose, oldest first, with sealed secrets.
fn of_purpose(
    records: &[SigningKeyRecord],
    purpose: KeyPurpose,
) -> (Vec<KeyTimes>, Vec<&SigningKeyRecord>) {
    let own = records.iter().filter(|record| record.purpose == purpose);
    own.map(|record| (record.times.clone(), record)).unzip()
}

/// Keys of one purpose that verify: the signing key first.
fn in_force(records: &[SigningKeyRecord], purpose: KeyPurpose, now: i64) -> Vec<&SigningKeyRecord> {
    let (times, own) = of_purpose(records, purpose);
    let mut usable: Vec<_> = key_phases(&times, now).into_iter().zip(own).collect();
    usable.retain(|(phase, _)| *phase != KeyPhase::Expired);
    usable.sort_by_key(|(phase, _)| *phase != KeyPhase::Signing);
    // Without a signing key, no other key may take its position.
    if usable
        .first()
        .is_none_or(|(phase, _)| *phase != KeyPhase::Signing)
    {
        usable.clear();
    }
    usable.into_iter().map(|(_, record)| record).collect()
}

fn kids_in_force(records: &[SigningKeyRecord], now: i64) -> Vec<String> {
    let of = |purpose| in_force(records, purpose, now);
    let kids = KeyPurpose::ALL.into_iter().flat_map(of);
    kids.map(|record| record.times.kid.clone()).collect()
}

/// Opened secrets of the keys from [`in_force`].
fn secrets(
    records: &[SigningKeyRecord],
    master_key: &MasterKey,
    purpose: KeyPurpose,
    now: i64,
) -> Result<Vec<Vec<u8>>, KeyringError> {
    let open = |record: &SigningKeyRecord| master_key.open(purpose.as_str(), &record.secret);
    let opened: Result<_, SealError> = in_force(records, purpose, now)
        .into_iter()
        .map(open)
        .collect();
    Ok(opened?)
}

fn random_secret() -> Result<Vec<u8>, KeyFault> {
    let mut bytes = vec![0; 32];
    rand::fill(&mut bytes).map_err(|_| KeyFault)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use protocol::id::{RunId, RunnerId};
    use tokio::task::JoinSet;

    use super::*;
    use crate::token::TokenSubject;

    const MONTH: Duration = Duration::from_hours(30 * 24);

    /// Database whose gateways do not read the table on their own.
    struct Bench {
        store: Store,
        master_key: Arc<MasterKey>,
        file: std::path::PathBuf,
        _writer: JoinSet<()>,
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            for end in ["db", "db-wal", "db-shm"] {
                let _ = std::fs::remove_file(self.file.with_extension(end));
            }
        }
    }

    impl Bench {
        async fn new() -> Self {
            let name = format!("runnel-keyring-{}.db", Uuid::now_v7());
            let file = std::env::temp_dir().join(name);
            let url = format!("sqlite://{}", file.display());
            let (store, writer) = Store::open(&url).await.unwrap();
            let mut tasks = JoinSet::new();
            tasks.spawn(writer);
            Self {
                store,
                master_key: Arc::new(MasterKey::generate().0),
                file,
                _writer: tasks,
            }
        }

        async fn keyring(&self) -> Keyring {
            let (store, master_key) = (self.store.clone(), Arc::clone(&self.master_key));
            let opened = Keyring::open(store, master_key, Clock::system(), "http://g", MONTH);
            opened.await.unwrap()
        }

        async fn leak(&self) {
            let now = Clock::system().now_ms();
            let purpose = KeyPurpose::RunToken;
            let rotated = rotate(
                &self.store,
                &self.master_key,
                purpose,
                RotationCause::Compromised,
                now,
            );
            rotated.await.unwrap();
        }
    }

    fn token_of(keyring: &Keyring) -> String {
        let runner_id: RunnerId = "plugin:a/b/c".parse().unwrap();
        let now = Clock::system().now_seconds();
        let subject = TokenSubject {
            runner_id: &runner_id,
            run_id: RunId(Uuid::nil()),
            attempt: 1,
            workspace: "default",
            scope: String::new(),
            res: "abc",
            deadline_at: now + 300,
        };
        keyring.tokens.mint(&subject, now).unwrap().token
    }

    #[tokio::test]
    async fn unknown_key_id_reads_table_at_bounded_rate() {
        let bench = Bench::new().await;
        let here = bench.keyring().await;
        let before = token_of(&here);
        assert!(here.verify(&before).await.is_ok());

        bench.leak().await;
        let there = token_of(&bench.keyring().await);
        assert!(here.verify(&there).await.is_ok(), "it was not looked for");
        assert_eq!(here.verify(&before).await, Err(TokenFault::UnknownKey));

        bench.leak().await;
        let later = token_of(&bench.keyring().await);
        here.read_state().unknown_key_read_at = Clock::system().now_ms();
        assert_eq!(here.verify(&later).await, Err(TokenFault::UnknownKey));
        assert!(here.verify(&there).await.is_ok(), "it was looked for");
        here.read_state().unknown_key_read_at -= UNKNOWN_PAUSE_MS;
        assert!(here.verify(&later).await.is_ok());
        assert_eq!(here.verify(&there).await, Err(TokenFault::UnknownKey));
    }

    #[tokio::test]
    async fn concurrent_unknown_key_ids_share_one_read() {
        let bench = Bench::new().await;
        let here = bench.keyring().await;
        bench.leak().await;
        let there = token_of(&bench.keyring().await);
        let unknown_key_read = (0..64).map(|_| here.verify(&there));
        let answers = futures_util::future::join_all(unknown_key_read).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(here.read_state().started, 1, "one look for all of them");
        // A cancelled read must not block its waiters.
        for _ in 0..100 {
            bench.leak().await;
            let later = token_of(&bench.keyring().await);
            here.read_state().unknown_key_read_at = i64::MIN;
            let mut given_up = Box::pin(here.verify(&later));
            // An immediate answer leaves no point to cancel at.
            if futures_util::poll!(&mut given_up).is_ready() {
                continue;
            }
            let waiting = here.verify(&later);
            tokio::pin!(waiting);
            assert!(futures_util::poll!(&mut waiting).is_pending());
            drop(given_up);
            assert_eq!(waiting.await, Err(TokenFault::UnknownKey));
            here.read_state().unknown_key_read_at = i64::MIN;
            assert!(here.verify(&later).await.is_ok());
            return;
        }
        panic!("every look was over at once");
    }

    #[tokio::test]
    async fn older_read_never_replaces_newer_read() {
        let bench = Bench::new().await;
        let here = bench.keyring().await;
        let early = here.read().await.unwrap();
        bench.leak().await;
        here.look().await.unwrap();
        let there = token_of(&bench.keyring().await);
        here.take(early.0, &early.1).unwrap();
        assert!(here.verify(&there).await.is_ok());
    }

    #[tokio::test]
    async fn removed_keys_are_invalid_after_next_read() {
        let bench = Bench::new().await;
        let keyring = bench.keyring().await;
        let before = token_of(&keyring);
        let year = i64::try_from(MONTH.as_millis()).unwrap() * 12;
        let now = Clock::system().now_ms() - year;
        // As if their successors signed and they had expired.
        for purpose in KeyPurpose::ALL {
            let requested = rotate(
                &bench.store,
                &bench.master_key,
                purpose,
                RotationCause::Requested,
                now,
            );
            requested.await.unwrap();
        }
        bench.store.write(DeleteExpiredKeys).await.unwrap();
        keyring.keep_once().await.unwrap();
        assert_eq!(
            bench
                .store
                .access()
                .list_signing_keys()
                .await
                .unwrap()
                .len(),
            2
        );
        assert_eq!(keyring.verify(&before).await, Err(TokenFault::UnknownKey));
        assert!(keyring.verify(&token_of(&keyring)).await.is_ok());
        let listed = keyring
            .cursors
            .encode(crate::cursor::CursorKind::Runs, "a", b"x");
        bench.leak().await;
        keyring.keep_once().await.unwrap();
        let open = keyring
            .cursors
            .decode(crate::cursor::CursorKind::Runs, "a", &listed);
        assert_eq!(open.unwrap(), b"x", "a leak is of one purpose");
    }

    #[tokio::test]
    async fn gateways_that_start_together_have_the_same_keys() {
        let bench = Bench::new().await;
        let (one, two) = tokio::join!(bench.keyring(), bench.keyring());
        assert!(two.verify(&token_of(&one)).await.is_ok());
        assert_eq!(
            bench
                .store
                .access()
                .list_signing_keys()
                .await
                .unwrap()
                .len(),
            2
        );
        let other = Arc::new(MasterKey::generate().0);
        let clock = Clock::system();
        let opened = Keyring::open(bench.store.clone(), other, clock, "http://g", MONTH).await;
        assert!(matches!(opened, Err(KeyringError::MasterKey(_))));
    }
}

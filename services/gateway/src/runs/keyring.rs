//! The keys that sign run tokens and cursors, and their change while runs go on.
//!
//! Every replica looks at the table once a second: what was withdrawn opens nothing a second later,
//! and what is new is known everywhere long before it signs (`domain::signing_key`). Whoever notices
//! first makes a key that is due, and deletes what is over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::rand;
use domain::signing_key::{
    KeyPhase, KeyPurpose, KeyTimes, Occasion, RotationPlan, key_phases, plan_rotation,
};
use store::{DeleteExpiredKeys, RotateKey, SigningKeyRecord, Store, StoreError};
use tokio::sync::watch;
use uuid::Uuid;

use crate::clock::Clock;
use crate::cursor::Cursors;
use crate::runs::token::{Claims, KeyFault, RunTokens, TokenFault, generate_key};
use crate::seal::{MasterKey, SealError};

/// How often the table is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// An unknown key id is a reason to look at once, but not oftener than this: whoever invents key ids
/// must not keep the database busy.
const UNKNOWN_PAUSE_MS: i64 = 2_000;

/// Why the keys cannot be used as they stand in the table.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    #[error("the signing keys cannot be read or written")]
    Store(#[from] StoreError),
    #[error("auth.master_key is not the one that this database was sealed with")]
    MasterKey(#[from] SealError),
    #[error("a signing key cannot be used")]
    Key(#[from] KeyFault),
}

/// The keys in force, for handlers and runs.
pub struct Keyring {
    pub(crate) tokens: RunTokens,
    pub(crate) cursors: Cursors,
    store: Store,
    master_key: Arc<MasterKey>,
    clock: Clock,
    most_age_ms: i64,
    /// Never held while the table is read.
    known: Mutex<Known>,
}

struct Known {
    /// Of the keys in force, in their order.
    kids: Vec<String>,
    /// When an unknown key id was last a reason to look.
    asked_at: i64,
    /// Closed once the look for an unknown key id is over.
    asking: watch::Receiver<()>,
    /// Looks that have begun, and the last of them that counts: what was read earlier never stands
    /// above what was read later.
    begun: u64,
    taken: u64,
}

/// What to do about an unknown key id.
enum Turn {
    /// Look; whoever waits goes on when this is dropped.
    Look(watch::Sender<()>),
    /// Somebody looks already.
    Wait(watch::Receiver<()>),
    /// Somebody has looked just now.
    Done,
}

impl Known {
    fn new(kids: Vec<String>) -> Self {
        Self {
            kids,
            asked_at: i64::MIN,
            asking: watch::channel(()).1,
            begun: 0,
            taken: 0,
        }
    }

    fn turn(&mut self, now: i64) -> Turn {
        if self.asking.has_changed().is_ok() {
            return Turn::Wait(self.asking.clone());
        }
        if (0..UNKNOWN_PAUSE_MS).contains(&now.saturating_sub(self.asked_at)) {
            return Turn::Done;
        }
        let (looking, asking) = watch::channel(());
        self.asked_at = now;
        self.asking = asking;
        Turn::Look(looking)
    }
}

/// A rotation as it was carried out, or why not.
pub(crate) struct Rotation {
    /// The key that was made, if the plan says that one was.
    pub(crate) kid: String,
    pub(crate) plan: RotationPlan,
}

impl Keyring {
    /// Reads the keys; the first start of a database makes them.
    pub async fn open(
        store: Store,
        master_key: Arc<MasterKey>,
        clock: Clock,
        public_url: &str,
        most_age: Duration,
    ) -> Result<Self, KeyringError> {
        let most_age_ms = i64::try_from(most_age.as_millis()).unwrap_or(i64::MAX);
        let found = store.access().list_signing_keys().await?;
        make_due(&store, &master_key, &found, most_age_ms, clock.now_ms()).await?;
        let records = store.access().list_signing_keys().await?;
        let now = clock.now_ms();
        let tokens = secrets(&records, &master_key, KeyPurpose::RunToken, now)?;
        let cursors = secrets(&records, &master_key, KeyPurpose::Cursor, now)?;
        Ok(Self {
            tokens: RunTokens::new(public_url, &tokens)?,
            cursors: Cursors::new(&cursors).ok_or(KeyFault)?,
            known: Mutex::new(Known::new(kids_in_force(&records, now))),
            store,
            master_key,
            clock,
            most_age_ms,
        })
    }

    /// Verifies a run token. Another replica may have signed it with a key that is not known here
    /// yet, after a leak for example: then the table is asked.
    pub async fn verify(&self, token: &str) -> Result<Arc<Claims>, TokenFault> {
        let verify = || self.tokens.verify(token, self.clock.now_seconds());
        let is_unknown = |verdict: &Result<_, _>| matches!(verdict, Err(TokenFault::UnknownKey));
        let verdict = verify();
        if !is_unknown(&verdict) {
            return verdict;
        }
        let turn = self.known().turn(self.clock.now_ms());
        match turn {
            Turn::Look(_looking) => {
                if let Err(error) = self.look().await {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the signing keys could not be looked at"
                    );
                }
            }
            Turn::Wait(mut asking) => while asking.changed().await.is_ok() {},
            Turn::Done => {}
        }
        verify()
    }

    // Whole after any panic: its fields are set one by one, and each stands for itself.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table as it is, and the number of this look.
    async fn read(&self) -> Result<(u64, Vec<SigningKeyRecord>), StoreError> {
        let look = {
            let mut known = self.known();
            known.begun += 1;
            known.begun
        };
        Ok((look, self.store.access().list_signing_keys().await?))
    }

    /// Looks at the table again and again, makes what is due and forgets what is over.
    pub(crate) async fn keep(&self) {
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tick.tick().await;
            let kept = self.keep_once().await;
            if let Err(error) = &kept
                && !failing
            {
                tracing::error!(
                    error = error as &dyn std::error::Error,
                    "the signing keys stay as they are until this is over"
                );
            }
            failing = kept.is_err();
        }
    }

    async fn keep_once(&self) -> Result<(), KeyringError> {
        let (mut look, mut records) = self.read().await?;
        let now = self.clock.now_ms();
        let made = make_due(
            &self.store,
            &self.master_key,
            &records,
            self.most_age_ms,
            now,
        )
        .await;
        if matches!(made, Ok(true)) {
            (look, records) = self.read().await?;
        }
        // Also when none could be made: what was withdrawn must go.
        self.take(look, &records)?;
        if records.iter().any(|record| record.times.is_over(now)) {
            self.store.write(DeleteExpiredKeys).await?;
        }
        made.map(|_| ())
    }

    async fn look(&self) -> Result<(), KeyringError> {
        let (look, records) = self.read().await?;
        self.take(look, &records)
    }

    /// Takes the keys as the table had them at this look, unless a later one was taken.
    fn take(&self, look: u64, records: &[SigningKeyRecord]) -> Result<(), KeyringError> {
        let now = self.clock.now_ms();
        let kids = kids_in_force(records, now);
        let mut known = self.known();
        if look < known.taken {
            return Ok(());
        }
        known.taken = look;
        if kids == known.kids {
            return Ok(());
        }
        let opened = |purpose| secrets(records, &self.master_key, purpose, now);
        let (tokens, cursors) = (opened(KeyPurpose::RunToken)?, opened(KeyPurpose::Cursor)?);
        self.tokens.replace(&tokens)?;
        self.cursors.replace(&cursors).ok_or(KeyFault)?;
        tracing::info!(keys = kids.len(), "the signing keys in force have changed");
        known.kids = kids;
        Ok(())
    }
}

/// Makes a key of `purpose` if there is an occasion. Nothing is written unless all keys open under
/// `master_key`: one that was sealed with another would lock every replica out.
pub(crate) async fn rotate(
    store: &Store,
    master_key: &MasterKey,
    purpose: KeyPurpose,
    occasion: Occasion,
    now: i64,
) -> Result<Rotation, KeyringError> {
    for record in store.access().list_signing_keys().await? {
        master_key.open(record.purpose.as_str(), &record.secret)?;
    }
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
    let plan = store.write(rotate).await?;
    Ok(Rotation { kid, plan })
}

/// Makes the keys that are due. True: the table holds others than `records` now.
async fn make_due(
    store: &Store,
    master_key: &MasterKey,
    records: &[SigningKeyRecord],
    most_age_ms: i64,
    now: i64,
) -> Result<bool, KeyringError> {
    let occasion = Occasion::Age(most_age_ms);
    let mut changed = false;
    for purpose in KeyPurpose::ALL {
        let (times, _) = of_purpose(records, purpose);
        if plan_rotation(purpose, &times, occasion, now) == RotationPlan::NotDue {
            continue;
        }
        changed = true;
        let Rotation { kid, plan } = rotate(store, master_key, purpose, occasion, now).await?;
        // Otherwise another replica was first.
        if let RotationPlan::Succeed { signs_from, .. } = plan {
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

/// The keys of one purpose, oldest first, with their sealed secrets.
fn of_purpose(
    records: &[SigningKeyRecord],
    purpose: KeyPurpose,
) -> (Vec<KeyTimes>, Vec<&SigningKeyRecord>) {
    let own = records.iter().filter(|record| record.purpose == purpose);
    own.map(|record| (record.times.clone(), record)).unzip()
}

/// The keys of one purpose that verify: first the one that signs, then the others.
fn in_force(records: &[SigningKeyRecord], purpose: KeyPurpose, now: i64) -> Vec<&SigningKeyRecord> {
    let (times, own) = of_purpose(records, purpose);
    let mut standing: Vec<_> = key_phases(&times, now).into_iter().zip(own).collect();
    standing.retain(|(phase, _)| *phase != KeyPhase::Over);
    standing.sort_by_key(|(phase, _)| *phase != KeyPhase::Signing);
    // Where none signs, none may be taken for the one that does.
    if standing
        .first()
        .is_none_or(|(phase, _)| *phase != KeyPhase::Signing)
    {
        standing.clear();
    }
    standing.into_iter().map(|(_, record)| record).collect()
}

fn kids_in_force(records: &[SigningKeyRecord], now: i64) -> Vec<String> {
    let of = |purpose| in_force(records, purpose, now);
    let kids = KeyPurpose::ALL.into_iter().flat_map(of);
    kids.map(|record| record.times.kid.clone()).collect()
}

/// What [`in_force`] gives, opened.
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
    use crate::runs::token::TokenSubject;

    const MONTH: Duration = Duration::from_hours(30 * 24);

    /// A database whose gateways do not look at the table by themselves.
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
            let rotated = rotate(&self.store, &self.master_key, purpose, Occasion::Leak, now);
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
    async fn an_unknown_key_is_looked_for_at_once_but_not_again_and_again() {
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
        here.known().asked_at = Clock::system().now_ms();
        assert_eq!(here.verify(&later).await, Err(TokenFault::UnknownKey));
        assert!(here.verify(&there).await.is_ok(), "it was looked for");
        here.known().asked_at -= UNKNOWN_PAUSE_MS;
        assert!(here.verify(&later).await.is_ok());
        assert_eq!(here.verify(&there).await, Err(TokenFault::UnknownKey));
    }

    #[tokio::test]
    async fn who_asks_for_an_unknown_key_meanwhile_waits_for_the_same_look() {
        let bench = Bench::new().await;
        let here = bench.keyring().await;
        bench.leak().await;
        let there = token_of(&bench.keyring().await);
        let asking = (0..64).map(|_| here.verify(&there));
        let answers = futures_util::future::join_all(asking).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(here.known().begun, 1, "one look for all of them");
        // Who gives up in the middle of a look leaves nobody waiting.
        for _ in 0..100 {
            bench.leak().await;
            let later = token_of(&bench.keyring().await);
            here.known().asked_at = i64::MIN;
            let mut given_up = Box::pin(here.verify(&later));
            // A database that has answered already leaves no middle.
            if futures_util::poll!(&mut given_up).is_ready() {
                continue;
            }
            let waiting = here.verify(&later);
            tokio::pin!(waiting);
            assert!(futures_util::poll!(&mut waiting).is_pending());
            drop(given_up);
            assert_eq!(waiting.await, Err(TokenFault::UnknownKey));
            here.known().asked_at = i64::MIN;
            assert!(here.verify(&later).await.is_ok());
            return;
        }
        panic!("every look was over at once");
    }

    #[tokio::test]
    async fn what_was_read_earlier_never_stands_above_what_was_read_later() {
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
    async fn what_has_left_the_table_opens_nothing_from_the_next_look_on() {
        let bench = Bench::new().await;
        let keyring = bench.keyring().await;
        let before = token_of(&keyring);
        let year = i64::try_from(MONTH.as_millis()).unwrap() * 12;
        let now = Clock::system().now_ms() - year;
        // As if their successors signed and they were over long since.
        for purpose in KeyPurpose::ALL {
            let asked = rotate(
                &bench.store,
                &bench.master_key,
                purpose,
                Occasion::Asked,
                now,
            );
            asked.await.unwrap();
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
        let listed = keyring.cursors.encode(crate::cursor::Kind::Runs, "a", b"x");
        bench.leak().await;
        keyring.keep_once().await.unwrap();
        let open = keyring
            .cursors
            .decode(crate::cursor::Kind::Runs, "a", &listed);
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

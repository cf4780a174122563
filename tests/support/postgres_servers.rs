//! `PostgreSQL` servers and poolers of one test, which it stops, demotes and promotes.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use super::database::rows;
use super::disk::Disk;
use super::repository::repository_file;
use super::{skipped, until};

static NO_SERVER: Once = Once::new();
static NO_POOLER: Once = Once::new();

/// A server with its own data directory. Stopped and removed on drop.
pub struct PostgresServer {
    pub address: SocketAddr,
    programs: PathBuf,
    directory: PathBuf,
    /// Of a server on a [`Disk`].
    environment: Vec<(&'static str, String)>,
}

impl PostgresServer {
    /// Returns `None` without the server's programs.
    pub async fn start() -> Option<Self> {
        let unique = Uuid::new_v4();
        let server = Self::create(std::env::temp_dir().join(format!("runnel-postgres-{unique}")))?;
        server.start_first().await;
        Some(server)
    }

    /// Starts a server on a disk that loses power.
    pub async fn start_on(disk: &Disk) -> Option<Self> {
        if let Some((user, group)) = postgres_user() {
            disk.own(user, group);
        }
        // A first sync of a new file also syncs its name on the file systems that PostgreSQL supports.
        disk.sync_keeps_names();
        let mut server = Self::create(disk.root().join("postgres"))?;
        server.environment = disk.environment().into();
        server.start_first().await;
        Some(server)
    }

    async fn start_first(&self) {
        self.run("start");
        self.execute("CREATE DATABASE runnel").await;
    }

    /// Starts it again after all of its processes were killed.
    pub fn restart(&self) {
        // Names a process that may still wait for its parent; after a power cut it is none of these.
        let _ = std::fs::remove_file(self.directory.join("postmaster.pid"));
        self.run("start");
    }

    /// Kills all processes of a server on a stopped disk.
    pub fn kill_processes(&self) {
        let file = std::fs::read_to_string(self.directory.join("postmaster.pid")).unwrap();
        let server = file.lines().next().unwrap().to_owned();
        let kill = |signal: &str, processes: &[&str]| {
            let status = Command::new("kill").arg(signal).args(processes).status();
            assert!(status.unwrap().success(), "kill {signal} {processes:?}");
        };
        // A stopped server starts no more processes.
        kill("-STOP", &[&server]);
        let children = format!("/proc/{server}/task/{server}/children");
        let children = std::fs::read_to_string(children).unwrap();
        let mut processes: Vec<_> = children.split_whitespace().collect();
        processes.push(&server);
        kill("-KILL", &processes);
        // A dead process without a parent that waits for it has no program any more.
        let program = |process: &&str| std::fs::read_link(format!("/proc/{process}/exe"));
        let is_running = |process: &&str| program(process).is_ok();
        while processes.iter().any(is_running) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts a streaming standby of this server.
    pub fn standby(&self) -> Self {
        let unique = Uuid::new_v4();
        let directory = std::env::temp_dir().join(format!("runnel-postgres-{unique}"));
        let standby = Self::new(directory).unwrap();
        let source = self.url("postgres");
        standby.program(
            "pg_basebackup",
            &[
                "--write-recovery-conf",
                "--checkpoint=fast",
                "--no-sync",
                "--dbname",
                &source,
            ],
        );
        standby.run("start");
        standby
    }

    /// A new cluster, not yet started.
    fn create(directory: PathBuf) -> Option<Self> {
        let server = Self::new(directory)?;
        server.program(
            "initdb",
            &[
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--no-sync",
            ],
        );
        Some(server)
    }

    fn new(directory: PathBuf) -> Option<Self> {
        let Some(programs) = programs() else {
            skipped(
                &NO_SERVER,
                "postgres",
                "the programs of a server are missing",
            );
            return None;
        };
        let [a, b, ..] = *Uuid::new_v4().as_bytes();
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o700)).unwrap();
        own(&directory);
        Some(Self {
            address: SocketAddr::from((Ipv4Addr::new(127, a, b, 3), 5432)),
            programs,
            directory,
            environment: Vec::new(),
        })
    }

    pub fn url(&self, database: &str) -> String {
        url_at(self.address, database)
    }

    /// Ends at once, as after a power failure.
    pub fn kill(&self) {
        self.run("stop");
    }

    /// Restarts as a standby, which answers reads.
    pub fn demote(&self) {
        self.run("stop");
        let signal = self.directory.join("standby.signal");
        std::fs::write(&signal, "").unwrap();
        own(&signal);
        self.run("start");
    }

    pub fn promote(&self) {
        self.run("promote");
    }

    /// Offers TLS, with this certificate of `tests/fixtures/tls`.
    pub async fn encrypt(&self, certificate: &str) {
        let fixtures = repository_file("tests/fixtures/tls");
        for (from, to) in [("pem", "server.crt"), ("key", "server.key")] {
            let file = self.directory.join(to);
            std::fs::copy(fixtures.join(format!("{certificate}.{from}")), &file).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
            own(&file);
        }
        self.execute("ALTER SYSTEM SET ssl = on").await;
        self.execute("SELECT pg_reload_conf()").await;
        let url = self.url("postgres");
        until("TLS", async || rows(&url, "SHOW ssl").await == ["on"]).await;
    }

    pub async fn execute(&self, sql: &str) {
        let mut connection = PgConnection::connect(&self.url("postgres")).await.unwrap();
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        sql.execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    fn run(&self, action: &str) {
        let fsync = if self.environment.is_empty() {
            "off"
        } else {
            "on"
        };
        let options = format!(
            "-c listen_addresses={} -c unix_socket_directories='' -c fsync={fsync}",
            self.address.ip()
        );
        let log = self.directory.join("log").display().to_string();
        let arguments: &[&str] = match action {
            "start" => &["--wait", "--log", &log, "--options", &options, action],
            "stop" => &["--wait", "--mode=immediate", action],
            _ => &["--wait", action],
        };
        self.program("pg_ctl", arguments);
    }

    fn program(&self, name: &str, arguments: &[&str]) {
        let mut command = as_postgres(&self.programs.join(name));
        let variables = self.environment.iter().map(|(name, value)| (name, value));
        command
            .envs(variables)
            .args(arguments)
            .arg("--pgdata")
            .arg(&self.directory);
        // The server would keep an inherited pipe open.
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        let log = || std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        assert!(status.unwrap().success(), "{name} {arguments:?}: {}", log());
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let mut stop = as_postgres(&self.programs.join("pg_ctl"));
        stop.args(["stop", "--mode=immediate", "--pgdata"]);
        let stop = stop.arg(&self.directory).stdout(Stdio::null());
        let _ = stop.stderr(Stdio::null()).status();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A `PgBouncer` before a server. Killed on drop.
pub struct Pooler {
    pub address: SocketAddr,
    process: Child,
    file: PathBuf,
}

impl Pooler {
    /// Returns `None` without the program.
    pub async fn start(server: SocketAddr, mode: &str) -> Option<Self> {
        let unique = Uuid::new_v4();
        let [a, b, ..] = *unique.as_bytes();
        let address = SocketAddr::from((Ipv4Addr::new(127, a, b, 4), 6432));
        let file = std::env::temp_dir().join(format!("runnel-pgbouncer-{unique}.ini"));
        let text = format!(
            "[databases]\n* = host={} port={} user=postgres\n[pgbouncer]\nlisten_addr = {}\n\
             listen_port = {}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n\
             ignore_startup_parameters = extra_float_digits\n",
            server.ip(),
            server.port(),
            address.ip(),
            address.port()
        );
        std::fs::write(&file, text).unwrap();
        own(&file);
        let path = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].map(Path::new);
        let Some(program) = path.into_iter().find(|path| path.exists()) else {
            skipped(&NO_POOLER, "pgbouncer", "the program is missing");
            return None;
        };
        let mut command = as_postgres(program);
        let process = command.arg("--quiet").arg(&file).stderr(Stdio::null());
        let pooler = Self {
            address,
            process: process.spawn().unwrap(),
            file,
        };
        until("the pooler to listen", async || {
            tokio::net::TcpStream::connect(address).await.is_ok()
        })
        .await;
        Some(pooler)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

pub fn url_at(address: SocketAddr, database: &str) -> String {
    format!("postgres://postgres@{address}/{database}?sslmode=disable")
}

/// Directory of the newest installed server.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    programs.filter(|bin| bin.join("initdb").exists()).max()
}

/// A server does not start as root.
fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").stdin(Stdio::null());
    if let Some((user, group)) = postgres_user() {
        command.uid(user).gid(group);
    }
    command
}

fn own(path: &Path) {
    if let Some((user, group)) = postgres_user() {
        std::os::unix::fs::chown(path, Some(user), Some(group)).unwrap();
    }
}

/// The ids of the user `postgres`, when this process is root.
fn postgres_user() -> Option<(u32, u32)> {
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let mut ids = line?.split(':').skip(2).map(|id| id.parse().unwrap());
    is_root.then_some((ids.next()?, ids.next()?))
}

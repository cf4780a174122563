//! Container packaging: the files match the binary, and the programs that compose starts answer an event. The
//! test starts them itself, without containers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::sync::Once;

use serde_norway::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use uuid::Uuid;

use crate::support::database::Database;
use crate::support::listening::{ChildServer, local_agent_under};
use crate::support::repository::repository_file;
use crate::support::{CommandOutput, Postgres, TempDirectory, programs, run, skipped, within};

const CONFIG: &str = "deploy/compose/runnel.toml";

fn text_of(path: &str) -> String {
    std::fs::read_to_string(repository_file(path)).unwrap_or_else(|_| panic!("there is no {path}"))
}

/// docker-compose.yml with its merge keys resolved.
fn compose() -> Value {
    let mut compose: Value = serde_norway::from_str(&text_of("docker-compose.yml")).unwrap();
    // Twice, because an anchor may merge another anchor.
    compose.apply_merge().unwrap();
    compose.apply_merge().unwrap();
    compose
}

fn texts(value: &Value) -> Vec<&str> {
    let items = value.as_sequence().into_iter().flatten();
    items.map(|item| item.as_str().unwrap()).collect()
}

fn names(value: &Value) -> BTreeSet<&str> {
    let entries = value.as_mapping().into_iter().flatten();
    entries.map(|(name, _)| name.as_str().unwrap()).collect()
}

/// The lines of the Dockerfile's last stage, with continuations joined.
fn last_stage() -> Vec<String> {
    let dockerfile = text_of("Dockerfile").replace("\\\n", " ");
    let stage = dockerfile.rsplit("\nFROM ").next().unwrap();
    stage.lines().map(str::to_owned).collect()
}

fn instruction(name: &str) -> String {
    let stage = last_stage().join("\n").replace("\n    ", " ");
    let lines = stage.lines();
    let mut found = lines.filter_map(|line| line.trim().strip_prefix(&format!("{name} ")));
    let one = found.next().unwrap_or_else(|| panic!("no {name}"));
    one.trim().to_owned()
}

/// Creates the secrets with the shipped script.
async fn secrets(directory: &TempDirectory) -> String {
    let path = directory.file("secrets");
    let mut make = Command::new("sh");
    make.arg(repository_file("deploy/compose/make-secrets"))
        .arg(&path);
    let made = run(&mut make).await;
    assert!(made.status.success() && made.stderr.is_empty(), "{made:?}");
    path.display().to_string()
}

async fn runnel(arguments: &[&str], config: &Path) -> CommandOutput {
    let mut command = Command::new(programs::runnel());
    command.args(arguments).arg("--config").arg(config);
    run(&mut command).await
}

#[test]
fn services_drop_privileges_and_declare_dependencies() {
    let compose = compose();
    let services = compose["services"].as_mapping().unwrap();
    for (name, service) in services {
        let name = name.as_str().unwrap();
        assert!(!service["healthcheck"]["test"].is_null(), "{name}");
        assert!(
            !service["logging"]["options"]["max-size"].is_null(),
            "{name}"
        );
        assert!(!service["mem_limit"].is_null(), "{name}");
        for (needed, how) in service["depends_on"].as_mapping().into_iter().flatten() {
            assert_eq!(how["condition"].as_str(), Some("service_healthy"), "{name}");
            assert!(services.contains_key(needed), "{name} needs {needed:?}");
        }
        for secret in texts(&service["secrets"]) {
            assert!(
                names(&compose["secrets"]).contains(secret),
                "{name}: {secret}"
            );
        }
        for volume in texts(&service["volumes"]) {
            let (source, _) = volume.split_once(':').unwrap();
            let declared = source
                .strip_prefix("./")
                .map_or(names(&compose["volumes"]).contains(source), |path| {
                    repository_file(path).is_file() && volume.ends_with(":ro")
                });
            assert!(declared, "{name}: {volume}");
        }
        // PostgreSQL's image starts as root and drops its privileges itself.
        if name == "postgres" {
            continue;
        }
        let user = match name {
            "prometheus" => "65534:65534",
            "grafana" => "472:0",
            "proxy" => "99:99",
            _ => "65532:65532",
        };
        assert_eq!(service["user"].as_str(), Some(user), "{name}");
        assert_eq!(service["read_only"].as_bool(), Some(true), "{name}");
        assert_eq!(texts(&service["cap_drop"]), ["ALL"], "{name}");
        let options = texts(&service["security_opt"]);
        assert_eq!(options, ["no-new-privileges:true"], "{name}");
    }
}

#[tokio::test]
async fn creates_each_secret_once_outside_committed_files() {
    let directory = TempDirectory::new();
    let path = secrets(&directory).await;
    let read = |name: &str| std::fs::read_to_string(format!("{path}/{name}")).unwrap();
    let compose = compose();
    let before: Vec<_> = names(&compose["secrets"]).into_iter().map(read).collect();
    for (name, secret) in compose["secrets"].as_mapping().unwrap() {
        let file = format!("./deploy/secrets/{}", name.as_str().unwrap());
        assert_eq!(secret["file"].as_str(), Some(file.as_str()));
    }
    secrets(&directory).await;
    let after: Vec<_> = names(&compose["secrets"]).into_iter().map(read).collect();
    assert_eq!(before, after, "a second time changed a secret");
    assert!(text_of(".gitignore").contains("/deploy/secrets/"));
    let ignored = text_of(".dockerignore");
    for path in ["deploy", ".git", "target", "runnel.toml", "runnel-data"] {
        assert!(ignored.lines().any(|line| line == path), "{path}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn makes_every_mounted_file_readable() {
    use std::os::unix::fs::PermissionsExt as _;

    let directory = TempDirectory::new();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // A checkout and a secret created with umask 077.
    let secrets = directory.file("deploy/secrets");
    std::fs::create_dir_all(&secrets).unwrap();
    for name in ["deploy/compose", "deploy/grafana", "deploy/prometheus"] {
        std::fs::create_dir_all(directory.file(name)).unwrap();
        for entry in std::fs::read_dir(repository_file(name)).unwrap() {
            let entry = entry.unwrap();
            let copy = directory.file(name).join(entry.file_name());
            std::fs::copy(entry.path(), &copy).unwrap();
            set_mode(&copy, 0o600);
        }
    }
    let checkout = directory.file("deploy/compose");
    std::fs::write(secrets.join("master_key"), "kept").unwrap();
    set_mode(&secrets.join("master_key"), 0o600);
    let mut make = Command::new("sh");
    make.arg("-c").arg("umask 077 && exec sh \"$0\"");
    let made = run(make.arg(checkout.join("make-secrets"))).await;
    assert!(made.status.success() && made.stderr.is_empty(), "{made:?}");

    let compose = compose();
    let services = compose["services"].as_mapping().unwrap();
    let mounts = services
        .iter()
        .flat_map(|(_, service)| texts(&service["volumes"]));
    let files = mounts.filter_map(|mount| mount.split(':').next());
    let of_secrets = compose["secrets"].as_mapping().unwrap().iter();
    let of_secrets = of_secrets.map(|(_, secret)| secret["file"].as_str().unwrap());
    let mounted: BTreeSet<_> = files
        .chain(of_secrets)
        .filter_map(|file| file.strip_prefix("./"))
        .collect();
    assert!(
        mounted.contains("deploy/compose/harness.toml"),
        "{mounted:?}"
    );
    for file in mounted {
        let path = directory.file(file);
        assert!(path.is_file(), "{file} is not made");
        assert_eq!(mode(&path) & 0o044, 0o044, "{file}");
    }
    assert_eq!(mode(&secrets), 0o700);
    let stored = std::fs::read_to_string(secrets.join("master_key"));
    assert_eq!(stored.unwrap(), "kept");
}

#[tokio::test]
async fn mounted_configuration_is_valid_for_services() {
    let directory = TempDirectory::new();
    let path = secrets(&directory).await;
    let config = text_of(CONFIG);
    let here = directory.write("runnel.toml", &config.replace("/run/secrets", &path));
    runnel(&["check-config"], &here).await.exited(0);

    let compose = compose();
    let services = &compose["services"];
    // One image for all programs in Rust that need no other program.
    for service in [
        "gateway-1",
        "gateway-2",
        "local-agent",
        "protocol-agent",
        "connectors",
    ] {
        let image = services[service]["image"].as_str();
        assert_eq!(image, Some("runnel:local"), "{service}");
    }
    for gateway in ["gateway-1", "gateway-2"] {
        let gateway = &services[gateway];
        let mounted = format!("./{CONFIG}:/etc/runnel/runnel.toml:ro");
        let volumes = [mounted.as_str(), "artifacts:/var/lib/runnel"];
        assert_eq!(texts(&gateway["volumes"]), volumes);
        assert!(gateway["ports"].is_null(), "clients use the proxy");
        for secret in texts(&gateway["secrets"]) {
            assert!(
                config.contains(&format!("file:/run/secrets/{secret}\"")),
                "{secret}"
            );
        }
        assert_eq!(
            texts(&gateway["networks"]["default"]["aliases"]),
            ["runnel"]
        );
    }
    let has_line = |line: &str| assert!(config.contains(line), "{CONFIG} does not say {line}");
    has_line("listen = \"0.0.0.0:8700\"");
    has_line("public_url = \"http://runnel:8700\"");
    let agent = &services["local-agent"]["environment"];
    let listen = agent["LOCAL_AGENT_LISTEN"].as_str().unwrap();
    let (_, port) = listen.rsplit_once(':').unwrap();
    has_line(&format!("base_url = \"http://local-agent:{port}\""));
    has_line(&format!("allow = [\"local-agent:{port}\"]"));
    let url = std::fs::read_to_string(format!("{path}/database_url")).unwrap();
    let environment = &services["postgres"]["environment"];
    let (user, database) = (&environment["POSTGRES_USER"], &environment["POSTGRES_DB"]);
    let (user, database) = (user.as_str().unwrap(), database.as_str().unwrap());
    assert!(url.starts_with(&format!("postgres://{user}:")), "{url}");
    assert!(
        url.trim_end().ends_with(&format!("@postgres/{database}")),
        "{url}"
    );
}

#[tokio::test]
async fn image_command_is_valid_for_binary() {
    let parsed = |json: &str| -> Vec<String> { serde_json::from_str(json).unwrap() };
    let [program] = &parsed(&instruction("ENTRYPOINT"))[..] else {
        panic!("one program")
    };
    let (directory, name) = program.rsplit_once('/').unwrap();
    let copied = last_stage()
        .iter()
        .any(|line| *line == format!("COPY --from=build /out/bin/ {directory}/"));
    let built = text_of("Dockerfile").contains(&format!("/out/bin target/dist/{name} "));
    assert!(copied && built, "{program} is not in the image");
    assert_eq!(instruction("USER"), "65532:65532");
    assert_eq!(instruction("EXPOSE"), "8700");
    let health = instruction("HEALTHCHECK");
    let health = parsed(health.split_once("CMD ").unwrap().1);
    let checks = texts(&compose()["services"]["gateway-1"]["healthcheck"]["test"])
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    assert_eq!((&health[0], &checks[1]), (program, program));
    let started = parsed(&instruction("CMD"));
    let serve = texts(&compose()["services"]["gateway-1"]["command"]).join(" ");
    assert_eq!(serve, "serve --config /etc/runnel/runnel.toml");
    for command in [
        "dev --listen 0.0.0.0:8700",
        "health --url http://127.0.0.1:8700",
        "health --config /etc/runnel/runnel.toml",
        &serve,
    ] {
        let [name, option, _] = command.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{command} has one option")
        };
        let mut help = Command::new(programs::runnel());
        let printed = run(help.args([name, "--help"])).await;
        assert!(printed.status.success() && printed.stdout.contains(option));
    }
    assert_eq!(started.join(" "), "dev --listen 0.0.0.0:8700");
    assert_eq!(health[1..].join(" "), "health --url http://127.0.0.1:8700");
    assert_eq!(
        checks[2..].join(" "),
        "health --config /etc/runnel/runnel.toml"
    );
    let manifest = text_of("Cargo.toml");
    let version = manifest.split_once("rust-version = \"").unwrap().1;
    let version = version.split('"').next().unwrap();
    assert!(text_of("Dockerfile").contains(&format!("FROM rust:{version}-slim")));
}

/// A service that is taken over can sign no request of another one.
#[test]
fn services_have_secrets_of_their_own() {
    let compose = compose();
    let services = compose["services"].as_mapping().unwrap();
    let mut owners = BTreeMap::new();
    for (name, service) in services {
        let name = name.as_str().unwrap();
        if name.starts_with("gateway-") {
            continue;
        }
        for secret in texts(&service["secrets"]) {
            let owner = owners.insert(secret, name);
            assert_eq!(owner, None, "{secret} is also a secret of {name}");
        }
        let variables = service["environment"].as_mapping();
        for (variable, value) in variables.into_iter().flatten() {
            let variable = variable.as_str().unwrap();
            let is_secret = ["SECRET", "KEY", "PASSWORD"]
                .iter()
                .any(|end| variable.ends_with(end));
            assert!(!is_secret, "{name}: {variable} is {value:?}, use a file");
        }
    }
    let signing = owners.keys().filter(|name| name.ends_with("_secret"));
    assert_eq!(signing.count(), 5, "{owners:?}");
}

#[test]
fn proxy_forwards_to_each_ready_replica() {
    let compose = compose();
    let services = &compose["services"];
    assert_eq!(texts(&services["proxy"]["ports"]), ["127.0.0.1:8700:8700"]);
    let config = text_of("deploy/compose/haproxy.cfg");
    let servers = config
        .lines()
        .filter_map(|line| line.trim().strip_prefix("server "));
    let mut gateways = names(services);
    gateways.retain(|name| name.starts_with("gateway-"));
    let expected: Vec<_> = gateways
        .iter()
        .map(|name| format!("{name} {name}:8700"))
        .collect();
    assert_eq!(servers.collect::<Vec<_>>(), expected);
    assert_eq!(names(&services["proxy"]["depends_on"]), gateways);
    for rule in [
        "uri /readyz",
        "retry-on conn-failure\n",
        "option http-no-delay\n",
    ] {
        assert!(config.contains(rule), "{rule}");
    }
}

#[test]
fn image_builds_lock_caches_and_rebuild_stale_sources() {
    let dockerfile = text_of("Dockerfile").replace("\\\n", " ");
    let mounts: Vec<_> = dockerfile
        .split_whitespace()
        .filter(|word| word.starts_with("--mount=type=cache,"))
        .collect();
    assert!(!mounts.is_empty());
    for mount in mounts {
        assert!(mount.contains("sharing=locked"), "{mount}");
        assert!(mount.contains("id=runnel-"), "{mount}");
    }
    let build = dockerfile.split("\nFROM ").nth(1).unwrap();
    let touched = build.find("-exec touch").unwrap();
    assert!(touched < build.find("cargo build").unwrap());
    assert_eq!(
        dockerfile.matches("cargo build").count(),
        1,
        "one build stage"
    );
    let compose = compose();
    for (name, service) in compose["services"].as_mapping().unwrap() {
        let image = service["image"].as_str().unwrap();
        if image.ends_with(":local") {
            assert_eq!(service["pull_policy"].as_str(), Some("never"), "{name:?}");
        }
        if let Some(target) = service["build"]["target"].as_str() {
            assert!(dockerfile.contains(&format!(" AS {target}\n")), "{target}");
        }
    }
    let ignored = text_of(".dockerignore");
    assert!(ignored.lines().any(|line| line == "**/target"));
}

#[test]
fn database_network_is_internal_to_the_gateways() {
    let compose = compose();
    assert_eq!(
        compose["networks"]["database"]["internal"].as_bool(),
        Some(true)
    );
    let services = &compose["services"];
    assert_eq!(texts(&services["postgres"]["networks"]), ["database"]);
    for gateway in ["gateway-1", "gateway-2"] {
        let networks = names(&services[gateway]["networks"]);
        assert_eq!(networks, BTreeSet::from(["database", "default"]));
    }
    assert!(services["local-agent"]["networks"].is_null());
}

#[tokio::test]
async fn unreadable_configuration_names_file_and_user() {
    const OTHER_USER: &str = "65534";
    let directory = TempDirectory::new();
    let config = directory.write("runnel.toml", "");
    let mut hide = Command::new("chmod");
    assert!(run(hide.arg("000").arg(&config)).await.status.success());
    let mut id = Command::new("id");
    let own = run(id.arg("-u")).await.stdout.trim().to_owned();
    // Root can read every file, so drop to another user.
    let (user, mut command) = if own == "0" {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", OTHER_USER, "--clear-groups"])
            .arg(programs::runnel());
        (OTHER_USER, command)
    } else {
        (own.as_str(), Command::new(programs::runnel()))
    };
    command.args(["check-config", "--config"]).arg(&config);
    let printed = run(&mut command).await;
    assert!(!printed.status.success());
    let last = printed.stderr.lines().last().unwrap();
    let (path, user) = (config.display().to_string(), format!("user {user}:"));
    assert!(last.contains(&path) && last.contains(&user), "{printed:?}");
    assert!(last.contains("chmod"), "{printed:?}");
}

/// Validates the file with `docker compose config`, or with another installed compose.
#[tokio::test]
async fn compose_accepts_the_file() {
    static SKIPPED: Once = Once::new();
    let file = repository_file("docker-compose.yml");
    for (program, arguments) in [
        ("docker", &["compose"][..]),
        ("docker-compose", &[]),
        ("podman-compose", &[]),
    ] {
        let mut ask = Command::new(program);
        let version = ask.args(arguments).arg("version").output().await;
        if !version.is_ok_and(|output| output.status.success()) {
            continue;
        }
        let mut command = Command::new(program);
        command.args(arguments).arg("-f").arg(&file).arg("config");
        let printed = run(&mut command).await;
        assert!(printed.status.success(), "{program}: {printed:?}");
        assert!(printed.stdout.contains("service_healthy"), "{printed:?}");
        return;
    }
    skipped(&SKIPPED, "compose", "no compose is installed");
}

/// A replica as compose starts it, at its own address.
struct ComposeReplica {
    url: String,
    _child: Child,
}

impl ComposeReplica {
    async fn start(config: &Path) -> Self {
        let mut child = Command::new(programs::runnel())
            .args(["serve", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let listening = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some(url) = line.strip_prefix("listening ") {
                    return url.to_owned();
                }
            }
            panic!("a replica ended before it listened")
        };
        Self {
            url: within("a replica to listen", listening).await,
            _child: child,
        }
    }
}

/// Commands, configuration and secrets as in the containers; host names become local addresses.
#[tokio::test]
async fn compose_services_answer_an_event() {
    let directory = TempDirectory::new();
    let path = secrets(&directory).await;
    let database = or_skip!(Database::create(Postgres, &directory).await);
    std::fs::write(format!("{path}/database_url"), database.url()).unwrap();

    let secret = std::fs::read_to_string(format!("{path}/local_agent_secret")).unwrap();
    let agent = local_agent_under(&secret).await;
    let (_, agent_address) = agent.url.split_once("://").unwrap();

    let mut replicas = Vec::new();
    let [a, b, ..] = *Uuid::new_v4().as_bytes();
    let mut config = Path::new("").to_owned();
    for last in [11, 12] {
        let address = format!("127.{a}.{b}.{last}");
        let here = text_of(CONFIG)
            .replace("/run/secrets", &path)
            .replace("local-agent:9101", agent_address)
            .replace("0.0.0.0:", &format!("{address}:"))
            .replace("http://runnel:", &format!("http://127.{a}.{b}.11:"));
        config = directory.write(&format!("{last}.toml"), &here);
        replicas.push(ComposeReplica::start(&config).await);
        let health = runnel(&["health"], &config).await.exited(0);
        assert_eq!(health.stdout, "ready\n");
    }
    let made = [
        "token", "create", "--role", "client", "--name", "me", "--json",
    ];
    let made = runnel(&made, &config).await;
    let made = made.json();
    for replica in &replicas {
        let mut send = Command::new(programs::runnel());
        let key = made["key"].as_str().unwrap();
        send.args([
            "send",
            "--url",
            &replica.url,
            "--key",
            key,
            "hello big world",
        ]);
        let sent = run(&mut send).await.exited(0);
        assert_starts_with!(sent.stdout, "You said: hello big world\n");
    }
    drop(replicas);
    runnel(&["health"], &config).await.exited(1);
}

/// Replaces the file paths in the packages' configurations with those of the test.
fn relocated(config: &str, directory: &TempDirectory) -> String {
    let here = directory.file("").display().to_string();
    ["/etc/runnel/", "/run/secrets/runnel/", "/var/lib/runnel/"]
        .iter()
        .fold(config.to_owned(), |config, path| {
            config.replace(path, &here)
        })
}

#[tokio::test]
async fn packaged_configurations_are_valid() {
    let directory = TempDirectory::new();
    secrets(&directory).await;
    for (name, secret) in [
        ("master.key", "master_key"),
        ("master_key", "master_key"),
        ("runner_secret", "local_agent_secret"),
        ("database_url", "database_url"),
        ("s3_access_key_id", "postgres_password"),
        ("s3_secret_access_key", "postgres_password"),
    ] {
        let secret = directory.file("secrets").join(secret);
        std::fs::copy(secret, directory.file(name)).unwrap();
    }
    let documents = manifests(&text_of("packaging/kubernetes/sqlite/runnel.yaml"));
    let stateful = of_kind(&documents, "StatefulSet");
    let mapped = text_of("packaging/kubernetes/sqlite/runnel.toml");
    let replicated = text_of("packaging/kubernetes/postgres/runnel.toml");
    let packaged = text_of("packaging/runnel.toml");
    for config in [&mapped, &replicated, &packaged] {
        let config = directory.write("runnel.toml", &relocated(config, &directory));
        runnel(&["check-config"], &config).await.exited(0);
    }
    let container = &stateful["spec"]["template"]["spec"]["containers"][0];
    let arguments = texts(&container["args"]).join(" ");
    assert_eq!(arguments, "serve --config /etc/runnel/runnel.toml");
    // A migration at the first start takes longer than the liveness probe waits.
    let startup = &container["startupProbe"];
    let [period, failures] = ["periodSeconds", "failureThreshold"].map(|key| startup[key].as_u64());
    assert!(period.unwrap() * failures.unwrap() >= 1800, "{startup:?}");
    let headless = documents
        .iter()
        .filter(|one| one["spec"]["clusterIP"] == "None");
    let names: Vec<_> = headless
        .map(|one| one["metadata"]["name"].clone())
        .collect();
    assert_eq!(names, [stateful["spec"]["serviceName"].clone()]);
    assert!(mapped.contains("local_agent = true"));
    for (port, expected) in [
        (0, "listen = \"0.0.0.0:8700\""),
        (1, "listen = \"0.0.0.0:9464\""),
    ] {
        let port = container["ports"][port]["containerPort"].as_u64().unwrap();
        assert!(expected.ends_with(&format!(":{port}\"")));
        assert!(mapped.contains(expected) && replicated.contains(expected));
    }
}

/// Documents of a file for Kubernetes.
fn manifests(text: &str) -> Vec<Value> {
    let documents = serde_norway::Deserializer::from_str(text);
    let documents = documents.map(|document| serde::Deserialize::deserialize(document).unwrap());
    documents.collect()
}

#[track_caller]
fn of_kind<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
    let mut found = documents.iter().filter(|one| one["kind"] == kind);
    let one = found.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(found.next().is_none(), "several of {kind}");
    one
}

/// Output of `kubectl kustomize`. `None` without kubectl.
async fn kustomized(directory: &Path) -> Option<Vec<Value>> {
    static SKIPPED: Once = Once::new();
    let mut build = Command::new("kubectl");
    if build.arg("version").arg("--client").output().await.is_err() {
        skipped(&SKIPPED, "kubectl", "there is no kubectl");
        return None;
    }
    let built = run(Command::new("kubectl").arg("kustomize").arg(directory)).await;
    assert!(built.status.success(), "{built:?}");
    Some(manifests(&built.stdout))
}

#[tokio::test]
async fn cluster_restarts_gateways_after_configuration_changes() {
    let directory = TempDirectory::new();
    for path in ["sqlite", "postgres"] {
        let source = repository_file("packaging/kubernetes").join(path);
        std::fs::create_dir(directory.file(path)).unwrap();
        for entry in std::fs::read_dir(source).unwrap() {
            let file = entry.unwrap();
            std::fs::copy(file.path(), directory.file(path).join(file.file_name())).unwrap();
        }
    }
    for path in ["sqlite", "postgres"] {
        let before = or_skip!(kustomized(&directory.file(path)).await);
        let config = directory.file(path).join("runnel.toml");
        let changed = std::fs::read_to_string(&config).unwrap() + "[limits]\n";
        std::fs::write(&config, changed).unwrap();
        let after = kustomized(&directory.file(path)).await.unwrap();
        let [before, after] = [&before, &after].map(|documents| {
            let map = &of_kind(documents, "ConfigMap")["metadata"]["name"];
            let pod = &of_kind(documents, "StatefulSet")["spec"]["template"]["spec"];
            let volumes = pod["volumes"].as_sequence().unwrap();
            let is_mounted = |volume: &Value| volume["configMap"]["name"] == *map;
            assert!(volumes.iter().any(is_mounted), "{map:?}: {volumes:?}");
            map
        });
        assert_ne!(before, after, "{path}");
    }
}

#[tokio::test]
async fn node_drains_end_one_stateless_replica_at_once() {
    let documents = or_skip!(kustomized(&repository_file("packaging/kubernetes/postgres")).await);
    let stateful = &of_kind(&documents, "StatefulSet")["spec"];
    assert_eq!(stateful["replicas"].as_u64(), Some(2));
    assert!(stateful["volumeClaimTemplates"].is_null());
    let budget = &of_kind(&documents, "PodDisruptionBudget")["spec"];
    assert_eq!(budget["maxUnavailable"].as_u64(), Some(1));
    assert_eq!(budget["selector"], stateful["selector"]);
    let names = |list: &Value| -> BTreeSet<String> {
        let items = list.as_sequence().unwrap().iter();
        items
            .map(|item| item["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let pod = &stateful["template"]["spec"];
    let mounted = names(&pod["containers"][0]["volumeMounts"]);
    assert_eq!(mounted, names(&pod["volumes"]));
}

/// The scripts on small programs: the release build is `.ci/long`'s.
#[tokio::test]
async fn packages_hold_programs_unit_and_configuration() {
    static SKIPPED: Once = Once::new();
    let directory = TempDirectory::new();
    for program in [
        "runnel",
        "local-agent",
        "runnel-protocol-agent",
        "runnel-connectors",
        "runnel-harness",
    ] {
        std::fs::copy("/bin/true", directory.file(program)).unwrap();
    }
    let mut pack = Command::new(repository_file("packaging/tarball"));
    pack.args(["x86_64", "--from"])
        .arg(directory.file(""))
        .env("CARGO_TARGET_DIR", directory.file("target"));
    let packed = run(&mut pack).await.exited(0);
    let tarball = packed.stdout.trim();
    let listed = run(Command::new("tar").args(["--list", "--file", tarball])).await;
    for file in [
        "bin/runnel-connectors",
        "LICENSE",
        "share/runnel/runnel.toml",
    ] {
        assert!(
            listed.stdout.contains(&format!("-linux-x86_64/{file}\n")),
            "{file}"
        );
    }
    let is_here = async |program: &str| {
        Command::new(program)
            .arg("--version")
            .output()
            .await
            .is_ok()
    };
    if !is_here("dpkg-deb").await || !is_here("objdump").await {
        skipped(&SKIPPED, "dpkg", "there is no dpkg-deb or no objdump");
        return;
    }
    let packed = run(Command::new(repository_file("packaging/deb")).arg(tarball)).await;
    assert!(packed.status.success(), "{packed:?}");
    let listed = run(Command::new("dpkg-deb").args(["--contents", packed.stdout.trim()])).await;
    for file in [
        "/usr/bin/runnel",
        "/etc/runnel/runnel.toml",
        "/usr/lib/systemd/system/runnel.service",
    ] {
        assert!(listed.stdout.contains(&format!(" .{file}\n")), "{file}");
    }
}

/// The image listens on every address; what it prints can be opened outside.
#[tokio::test]
async fn playground_on_all_addresses_prints_loopback() {
    let directory = TempDirectory::new();
    let mut dev = Command::new(programs::runnel());
    dev.args(["dev", "--listen", "0.0.0.0:0"])
        .current_dir(directory.file(""));
    let playground = ChildServer::spawn(&mut dev).await.unwrap();
    assert!(
        playground.url.starts_with("http://127.0.0.1:"),
        "{}",
        playground.url
    );
    let mut send = Command::new(programs::runnel());
    send.args(["send", "What is Runnel?"])
        .env_remove("RUNNEL_URL")
        .env_remove("RUNNEL_API_KEY")
        .current_dir(directory.file(""));
    let sent = run(&mut send).await;
    assert!(sent.stdout.starts_with("My notes say:"), "{sent:?}");
}

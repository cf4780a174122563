//! Command line of a service with one runner.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args as _, Command, FromArgMatches as _};
use protocol::id::RunnerId;
use runner_kit::process::is_healthy;
use runner_kit::{CancellationToken, RouterOptions, Runner};
use tokio::net::TcpListener;

use crate::service::{SecretNames, serve, signing_secret, start_log};

/// Service with one runner. Each setting is an argument and an environment variable.
#[derive(Clone, Copy, Debug)]
pub struct AgentProgram {
    /// Name of the program in its help.
    pub name: &'static str,
    /// Version of the program, such as `0.1.0`.
    pub version: &'static str,
    /// Description in its help.
    pub about: &'static str,
    /// Default listen address.
    pub listen: &'static str,
    /// Default runner id.
    pub runner_id: &'static str,
    /// Environment variables of the settings.
    pub variables: AgentVariables,
    /// Constructor of the runner with this id.
    pub runner: fn(RunnerId) -> Arc<dyn Runner>,
}

/// Environment variables of an [`AgentProgram`].
#[derive(Clone, Copy, Debug)]
pub struct AgentVariables {
    /// Listen address.
    pub listen: &'static str,
    /// Signing secret of the runner endpoint.
    pub secret: &'static str,
    /// File with the signing secret.
    pub secret_file: &'static str,
    /// Runner id.
    pub runner_id: &'static str,
    /// Log filter.
    pub log: &'static str,
}

#[derive(clap::Args)]
struct AgentArgs {
    /// Listen address; port 0 takes a free port
    #[arg(long)]
    listen: SocketAddr,
    // The help names the variable of the program.
    #[arg(long)]
    secret_file: Option<PathBuf>,
    /// Runner id of the agent
    #[arg(long)]
    runner_id: RunnerId,
    /// Checks the health of the agent that listens at the address and exits: for container health checks
    #[arg(long)]
    health: bool,
    /// Log filter in the syntax of `tracing_subscriber`
    #[arg(long, default_value = "info")]
    log: String,
}

impl AgentProgram {
    /// Serves the runner until a stop signal, or checks the health of a served one. Blocks.
    pub fn main(&self) -> anyhow::Result<()> {
        let mut matches = self.command().get_matches();
        let args = AgentArgs::from_arg_matches_mut(&mut matches)?;
        let listen = args.listen;
        if args.health {
            anyhow::ensure!(is_healthy(listen), "nothing answers well at {listen}");
            return Ok(());
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        runtime.block_on(self.serve(args))
    }

    async fn serve(&self, args: AgentArgs) -> anyhow::Result<()> {
        start_log(&args.log)?;
        let names = SecretNames {
            variable: self.variables.secret,
            file: self.variables.secret_file,
        };
        let secret = signing_secret(args.secret_file.as_deref(), names)?;
        let listener = TcpListener::bind(args.listen)
            .await
            .with_context(|| format!("cannot listen on {}", args.listen))?;
        // After the bind, which selects the port for port 0.
        announce(&listener, &args.runner_id)?;
        let runners = vec![(self.runner)(args.runner_id)];
        let (options, stop) = (RouterOptions::default(), CancellationToken::new());
        Ok(serve(listener, runners, secret, options, stop).await?)
    }

    fn command(&self) -> Command {
        let variables = self.variables;
        let secret_help = format!(
            "File with the endpoint's signing secret (`whsec_…`); default: the variable `{}`",
            variables.secret
        );
        let command = Command::new(self.name).version(self.version);
        AgentArgs::augment_args(command)
            .about(self.about)
            .mut_arg("listen", |arg| {
                let arg = arg.env(variables.listen).default_value(self.listen);
                arg.required(false)
            })
            .mut_arg("secret_file", |arg| {
                arg.env(variables.secret_file).help(secret_help)
            })
            .mut_arg("runner_id", |arg| {
                let arg = arg.env(variables.runner_id);
                arg.default_value(self.runner_id).required(false)
            })
            .mut_arg("log", |arg| arg.env(variables.log))
    }
}

/// Prints the only line on standard output: the agent's address, for people and scripts.
#[expect(clippy::print_stdout, reason = "scripts read the listen address")]
fn announce(listener: &TcpListener, id: &RunnerId) -> anyhow::Result<()> {
    println!("{id} listening on http://{}", listener.local_addr()?);
    Ok(())
}

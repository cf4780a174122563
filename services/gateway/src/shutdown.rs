//! Stop signals: the first drains, the second stops at once. SIGHUP reloads nothing.

use std::io::IsTerminal as _;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Effect of SIGHUP.
#[derive(Clone, Copy)]
pub(crate) enum HangupEffect {
    /// Stops the process: its terminal is closed.
    Stop,
    /// Logs a warning. The process serves on.
    Warn,
}

impl HangupEffect {
    /// Stop if a standard stream is a terminal, else warn.
    pub(crate) fn of_terminal() -> Self {
        // A detached process has no terminal that could close; its HUP comes from an operator who expects a reload.
        let is_at_terminal = std::io::stdin().is_terminal()
            || std::io::stdout().is_terminal()
            || std::io::stderr().is_terminal();
        if is_at_terminal {
            Self::Stop
        } else {
            Self::Warn
        }
    }
}

/// Listens for SIGTERM, SIGINT and SIGHUP.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    on_hangup: HangupEffect,
}

impl Signals {
    /// Must be called within the Tokio runtime.
    pub(crate) fn listen(on_hangup: HangupEffect) -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            on_hangup,
        })
    }

    /// Resolves at the next stop signal.
    pub(crate) async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => match self.on_hangup {
                    HangupEffect::Stop => return,
                    HangupEffect::Warn => tracing::warn!(
                        "SIGHUP changes nothing: the configuration is read at start only, restart the gateway to apply it"
                    ),
                },
            }
        }
    }
}

//! A CLI command on a pseudo-terminal.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::process::{Child, Command};

use super::{until, within};

const ROWS: u16 = 40;

pub struct PseudoTerminal {
    columns: u16,
    screen: Arc<Mutex<Vec<u8>>>,
    keyboard: File,
    child: Child,
}

impl PseudoTerminal {
    /// Runs the command on a terminal with this number of columns.
    pub fn start(command: &mut Command, columns: u16) -> Self {
        let ours =
            openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let size = Winsize {
            ws_row: ROWS,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&ours, size).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let flags = i32::try_from(OFlags::NOCTTY.bits()).unwrap();
        let theirs = || -> Stdio {
            use std::os::unix::fs::OpenOptionsExt as _;
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).custom_flags(flags);
            file.open(PathBuf::from(&name)).unwrap().into()
        };
        let environment = command.as_std().get_envs();
        let names: Vec<_> = environment.map(|(name, _)| name.to_owned()).collect();
        if !names.iter().any(|name| name == "TERM") {
            command.env("TERM", "xterm-256color");
        }
        if !names.iter().any(|name| name == "NO_COLOR") {
            command.env_remove("NO_COLOR");
        }
        let child = command
            .stdin(theirs())
            .stdout(theirs())
            .stderr(theirs())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        // Only the command may hold the other end of the terminal.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let keyboard = File::from(ours);
        let mut seen = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(Vec::new()));
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = seen.read(&mut bytes)
                && count > 0
            {
                shown.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self {
            columns,
            screen,
            keyboard,
            child,
        }
    }

    /// All output so far, including echoed input.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// Rows of the screen as a terminal emulator shows them, without empty rows at the end.
    pub fn rows(&self) -> Vec<String> {
        let mut emulator = vt100::Parser::new(ROWS, self.columns, 0);
        emulator.process(&self.screen.lock().unwrap());
        let rows = emulator.screen().rows(0, self.columns);
        let mut rows: Vec<_> = rows.map(|row| row.trim_end().to_owned()).collect();
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    /// Types keys and waits until the last row of the screen is `expected`.
    pub async fn type_keys(&mut self, keys: &str, expected: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        until(expected, async || {
            self.rows().last().map(String::as_str) == Some(expected)
        })
        .await;
    }

    /// Sends the signal of Ctrl-C: this terminal controls no session.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Sends the signal of a terminal that closes.
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for the exit.
    pub async fn exited(&mut self) -> ExitStatus {
        within("the command to end", self.child.wait())
            .await
            .unwrap()
    }

    /// Types a text and waits until the screen shows `expected` `times` times.
    pub async fn say(&mut self, text: &str, expected: &str, times: usize) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
        until(expected, async || {
            self.screen().matches(expected).count() >= times
        })
        .await;
    }

    /// Sends Ctrl-D and waits for the exit.
    pub async fn end(mut self) -> ExitStatus {
        self.keyboard.write_all(&[4]).unwrap();
        self.exited().await
    }
}

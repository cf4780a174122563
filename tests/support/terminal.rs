//! A CLI command on a pseudo-terminal.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::OFlags;
use rustix::pty::{grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::process::{Child, Command};

use super::{until, within};

pub struct PseudoTerminal {
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
            ws_row: 40,
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
            screen,
            keyboard,
            child,
        }
    }

    /// All output so far, including echoed input.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
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
        within("the command to end", self.child.wait())
            .await
            .unwrap()
    }
}

//! Interpreters of commands that are scripts, such as the Node of a version manager: their files and versions.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::executable::find;

/// Bytes read from the beginning of a script.
const HEAD_BYTES: u64 = 16 * 1024;
/// Maximum chain of interpreters: the interpreter of a script may be a script itself, such as a shim.
const MAX_STEPS: usize = 3;
const SHELLS: [&str; 4] = ["sh", "bash", "dash", "zsh"];
/// Timeout of `node --version`.
const VERSION_TIME: Duration = Duration::from_secs(5);
/// Maximum folders above a program that are searched for its `package.json`.
const MAX_FOLDERS: usize = 6;

/// Interpreters of a command, their link targets and their libraries, without the command itself.
pub(crate) fn files_of(command: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for interpreter in interpreters(command) {
        let real = interpreter.canonicalize().ok();
        for file in [Some(interpreter), real].into_iter().flatten() {
            // Python finds its library by `lib` and `pyvenv.cfg` of the prefix around `bin`.
            let beside = file.parent().filter(|folder| folder.ends_with("bin"));
            let prefix = beside.and_then(Path::parent).map(Path::to_path_buf);
            let library = prefix
                .iter()
                .flat_map(|prefix| [prefix.join("lib"), prefix.join("pyvenv.cfg")]);
            files.extend(library.filter(|path| path.exists()));
            files.push(file);
        }
    }
    files.sort();
    files.dedup();
    files
}

/// Mismatch of the command's Node with the `engines` of its package: a clause without a full stop.
pub(crate) fn unfit_node(command: &Path) -> Option<String> {
    let is_node = |path: &PathBuf| path.file_name() == Some(OsStr::new("node"));
    let node = interpreters(command).into_iter().find(is_node)?;
    let range = engines_of(&command.canonicalize().ok()?)?;
    let version = version_of(&node)?;
    let is_fit = fits(&version, &range)?;
    (!is_fit).then(|| {
        let node = node.display();
        format!("it needs Node {range}, and {node} is {version}: install such a Node, and put it first on the PATH of the service")
    })
}

/// Interpreter chain of a script, nearest first.
fn interpreters(command: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut script = command.to_path_buf();
    for _ in 0..MAX_STEPS {
        let Some(interpreter) = interpreter_of(&script) else {
            break;
        };
        script.clone_from(&interpreter);
        found.push(interpreter);
    }
    found
}

fn interpreter_of(script: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    let file = std::fs::File::open(script).ok()?;
    file.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
    let head = String::from_utf8_lossy(&head);
    let (first, rest) = head.strip_prefix("#!")?.split_once('\n')?;
    let mut words = first.split_whitespace();
    let program = words.next()?;
    let name = Path::new(program).file_name()?.to_str()?;
    if name == "env" {
        // `env` takes options and variables before the program name.
        let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
        return find(name);
    }
    // Package managers install shell scripts that start Node.
    let is_node = |word: &str| word.trim_matches('"') == "node";
    if SHELLS.contains(&name) && rest.split_whitespace().any(is_node) {
        return find("node");
    }
    find(program)
}

/// `engines.node` of the package that contains a program.
fn engines_of(program: &Path) -> Option<String> {
    let folders = program.ancestors().skip(1).take(MAX_FOLDERS);
    let mut packages = folders.map(|folder| folder.join("package.json"));
    let package = std::fs::read(packages.find(|path| path.is_file())?).ok()?;
    let package: Value = serde_json::from_slice(&package).ok()?;
    package["engines"]["node"].as_str().map(str::to_owned)
}

fn version_of(node: &Path) -> Option<String> {
    let mut child = Command::new(node)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let end = Instant::now() + VERSION_TIME;
    // The program is a shim of the operator's choice and may hang.
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut text = String::new();
    child
        .stdout?
        .take(HEAD_BYTES)
        .read_to_string(&mut text)
        .ok()?;
    Some(text.trim().to_owned())
}

/// Tests a version against an npm range. `None`: the version or the range is not supported.
fn fits(version: &str, range: &str) -> Option<bool> {
    let version = numbers(version)?.0;
    let mut is_fit = false;
    for alternative in range.split("||") {
        let mut fits_all = true;
        let spaced = alternative
            .replace(">= ", ">=")
            .replace("> ", ">")
            .replace("<= ", "<=");
        // All comparators are read, also after a mismatch: an unknown one makes the result `None`.
        for comparator in spaced.replace("< ", "<").split_whitespace() {
            fits_all &= compares(version, comparator)?;
        }
        is_fit |= fits_all;
    }
    Some(is_fit)
}

fn compares(version: [u64; 3], comparator: &str) -> Option<bool> {
    if comparator == "*" {
        return Some(true);
    }
    let start = comparator.find(|char: char| char.is_ascii_digit() || char == 'v')?;
    let (operator, text) = comparator.split_at(start);
    let (bound, given) = numbers(text)?;
    Some(match operator {
        ">=" => version >= bound,
        ">" => version > bound,
        "<" => version < bound,
        "<=" => version <= bound,
        "^" => version >= bound && version[0] == bound[0],
        "~" => version >= bound && version[..2] == bound[..2],
        "" | "=" => version[..given] == bound[..given],
        _ => return None,
    })
}

/// Numbers of a version, and the count of those that it states. Pre-release parts are ignored.
fn numbers(text: &str) -> Option<([u64; 3], usize)> {
    let text = text.trim_start_matches('v');
    let text = text.split(['-', '+']).next()?;
    let (mut numbers, mut given) = ([0; 3], 0);
    for part in text.split('.').take(3) {
        if matches!(part, "x" | "X" | "*") {
            break;
        }
        numbers[given] = part.parse().ok()?;
        given += 1;
    }
    (given > 0).then_some((numbers, given))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// A folder of executable files with these contents.
    fn folder(files: &[(&str, &str)]) -> PathBuf {
        let name = format!("runnel-interpreter-{}", uuid::Uuid::new_v4());
        let root = std::env::temp_dir().canonicalize().unwrap().join(name);
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        root
    }

    #[test]
    fn finds_interpreters_behind_links_and_shims() {
        let root = folder(&[
            ("versions/22/bin/node", "binary"),
            ("versions/22/lib/x", ""),
        ]);
        symlink(root.join("versions/22/bin/node"), root.join("node")).unwrap();
        let node = root.join("node");
        let real = root.join("versions/22/bin/node");
        let shim = format!("#!{}\n", node.display());
        for (name, text) in [
            ("plain", format!("#!{}\nlet a", node.display())),
            (
                "options",
                format!("#!/usr/bin/env -S A=1 {} --flag\n", node.display()),
            ),
            ("of-shim", format!("#!{}\n", root.join("shim").display())),
        ] {
            let script = root.join(name);
            for (path, text) in [(&script, &text), (&root.join("shim"), &shim)] {
                std::fs::write(path, text).unwrap();
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
            let files = files_of(&script);
            for file in [&node, &real, &root.join("versions/22/lib")] {
                assert!(files.contains(file), "{name}: {files:?}");
            }
        }
        assert_eq!(files_of(&real), Vec::<PathBuf>::new());
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn names_node_that_does_not_fit() {
        let package = r#"{"engines": {"node": ">=22.19.0"}}"#;
        let root = folder(&[
            ("node", ""),
            ("m/package.json", package),
            ("m/dist/main.mjs", ""),
        ]);
        let (node, main) = (root.join("node"), root.join("m/dist/main.mjs"));
        std::fs::write(&main, format!("#!{}\n", node.display())).unwrap();
        for (version, is_fit) in [("v18.19.1", false), ("v22.18.0", false), ("v22.19.0", true)] {
            std::fs::write(&node, format!("#!/bin/sh\necho {version}\n")).unwrap();
            let reason = unfit_node(&main);
            assert_eq!(reason.is_none(), is_fit, "{version}: {reason:?}");
            if let Some(reason) = reason {
                assert!(
                    reason.contains(">=22.19.0") && reason.contains(version),
                    "{reason}"
                );
            }
        }
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn reads_ranges_of_versions() {
        for (version, range, is_fit) in [
            ("v20.1.0", ">=20", Some(true)),
            ("v18.20.3", ">= 20.0.0", Some(false)),
            ("v20.18.0", "^20.19.0 || >=22.12.0", Some(false)),
            ("v22.12.0", "^20.19.0 || >=22.12.0", Some(true)),
            ("v21.0.0", ">=18 <21", Some(false)),
            ("v18.5.0", "18.x", Some(true)),
            ("v18.5.0", "*", Some(true)),
            ("v18.5.0", "~18.4", Some(false)),
            ("v18.5.0", "lts", None),
            ("", ">=20", None),
        ] {
            assert_eq!(fits(version, range), is_fit, "{version} in {range}");
        }
    }
}

//! Files of an installed command that its sandbox may read. Those of its interpreter: [`crate::interpreter`].

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Maximum folders above a program that are searched for its package.
const MAX_FOLDERS: usize = 6;

/// The command, its link target, and its npm package with adjacent packages. Other files of its folder stay closed.
pub(crate) fn files_of(command: &Path) -> Vec<PathBuf> {
    let Ok(real) = command.canonicalize() else {
        return Vec::new();
    };
    let is_modules = |path: &&Path| path.file_name() == Some(OsStr::new("node_modules"));
    // Dependencies are siblings of the package in `node_modules`, so the complete folder is needed.
    let folder = real.ancestors().find(is_modules);
    let folder = folder.or_else(|| {
        let mut folders = real.ancestors().skip(1).take(MAX_FOLDERS);
        folders.find(|folder| declares(folder, &real))
    });
    let folder = folder.map(Path::to_path_buf);
    [Some(command.to_path_buf()), Some(real), folder]
        .into_iter()
        .flatten()
        .collect()
}

/// True if the package of this folder lists the program in `bin`. A project that contains a program does not.
fn declares(folder: &Path, program: &Path) -> bool {
    let package = std::fs::read(folder.join("package.json")).ok();
    let package = package.and_then(|package| serde_json::from_slice::<Value>(&package).ok());
    let programs = match package.as_ref().map(|package| &package["bin"]) {
        Some(Value::String(path)) => vec![path.as_str()],
        Some(Value::Object(paths)) => paths.values().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let mut files = programs
        .iter()
        .filter_map(|path| folder.join(path).canonicalize().ok());
    files.any(|file| file == program)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn reads_the_package_of_a_command_and_no_folder_around_it() {
        let name = format!("runnel-installation-{}", uuid::Uuid::new_v4());
        let root = std::env::temp_dir().canonicalize().unwrap().join(name);
        for (path, text) in [
            ("project/package.json", r#"{"name": "project"}"#),
            ("project/claude", ""),
            ("project/harness.secret", "secret"),
            (
                "tool/package.json",
                r#"{"bin": {"tool": "./dist/main.js"}}"#,
            ),
            ("tool/dist/main.js", ""),
            ("lib/node_modules/a/cli.js", ""),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        for (command, folder) in [
            ("project/claude", None),
            ("tool/dist/main.js", Some("tool")),
            ("lib/node_modules/a/cli.js", Some("lib/node_modules")),
        ] {
            let mut files = files_of(&root.join(command));
            files.dedup();
            let expected = [Some(command), folder];
            let expected = expected.into_iter().flatten().map(|path| root.join(path));
            assert_eq!(files, expected.collect::<Vec<_>>());
        }
        fs::remove_dir_all(root).unwrap();
    }
}

//! Git settings that prevent the execution of programs named by a workspace's own configuration.
//!
//! Harnesses run `git status` and `git diff` at their start, before any permission. Git reads variables after all
//! files, so that a repository cannot override these settings.

use std::path::Path;
use std::process::{Command, Stdio};

/// Settings for every repository. Submodules are ignored, because Git clears the variables for them.
const FIXED: [(&str, &str); 10] = [
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.pager", "cat"),
    ("core.alternateRefsCommand", "true"),
    ("diff.ignoreSubmodules", "all"),
    ("gc.auto", "0"),
    ("log.showSignature", "false"),
    ("maintenance.auto", "false"),
    ("safe.bareRepository", "explicit"),
    ("submodule.recurse", "false"),
];
/// Maximum bytes of the names that a workspace configures. A larger configuration stops the run.
const MAX_NAMES: usize = 64 * 1024;

/// Git environment variables of a harness in this directory. Fails beyond [`MAX_NAMES`].
pub(crate) fn variables(directory: &Path) -> std::io::Result<Vec<(String, String)>> {
    let fixed = FIXED.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut settings = Vec::from(fixed);
    let names = configured_names(directory)?;
    // Drivers of filters and diffs have names of the repository's choice, so each is overridden by name.
    settings.extend(names.split('\0').filter_map(neutral));
    // A partial clone fetches missing objects by a program that its remote configures.
    let mut variables = vec![
        ("GIT_NO_LAZY_FETCH".to_owned(), "1".to_owned()),
        ("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string()),
    ];
    for (index, (name, value)) in settings.into_iter().enumerate() {
        variables.push((format!("GIT_CONFIG_KEY_{index}"), name));
        variables.push((format!("GIT_CONFIG_VALUE_{index}"), value));
    }
    Ok(variables)
}

/// Names of all settings of the repository and its included files, each followed by NUL. Empty without Git.
fn configured_names(directory: &Path) -> std::io::Result<String> {
    let output = Command::new("git")
        .args([
            "-c",
            // The repository may belong to the user of the harnesses.
            "safe.directory=*",
            "config",
            "--list",
            "--name-only",
            "-z",
        ])
        .current_dir(directory)
        .env_clear()
        .env("PATH", crate::executable::search_path())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else {
        return Ok(String::new());
    };
    // Fail closed: ignoring some names would leave their programs effective.
    if output.stdout.len() > MAX_NAMES {
        let message = "the Git configuration of the workspace is too large; remove settings from its .git/config";
        return Err(std::io::Error::other(message));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Override that replaces a program by one without effect; `None` for settings that name no program.
fn neutral(name: &str) -> Option<(String, String)> {
    let section = name.split('.').next()?;
    let value = match (section, name.rsplit('.').next()?) {
        ("filter", "clean" | "smudge" | "process") => "",
        ("filter", "required") => "false",
        ("diff", "textconv") => "cat",
        ("diff", "command" | "external") => "true",
        _ => return None,
    };
    Some((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn git(root: &Path, args: &[&str], env: &[(String, String)]) -> std::process::Output {
        let mut git = Command::new("git");
        git.args(args).current_dir(root).env_clear();
        git.env("PATH", crate::executable::search_path())
            .env("HOME", root)
            .env("GIT_AUTHOR_NAME", "a")
            .env("GIT_AUTHOR_EMAIL", "a@b.c")
            .env("GIT_COMMITTER_NAME", "a")
            .env("GIT_COMMITTER_EMAIL", "a@b.c");
        git.envs(env.iter().cloned())
            .output()
            .expect("git is installed")
    }

    #[test]
    fn git_executes_no_program_of_the_workspace() {
        let root = std::env::temp_dir().join(format!("runnel-git-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(root.join("hooks")).unwrap();
        git(&root, &["init", "-q"], &[]);
        let hook = root.join("hooks/post-index-change");
        std::fs::write(&hook, "#!/bin/sh\ntouch RAN\n").unwrap();
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::write(root.join("file"), "x").unwrap();
        std::fs::write(root.join(".gitattributes"), "file filter=evil diff=evil\n").unwrap();
        git(&root, &["add", "file"], &[]);
        git(&root, &["commit", "-qm", "one"], &[]);
        std::fs::write(
            root.join("more"),
            "[filter \"Evil.One\"]\n\tclean = touch RAN; cat\n",
        )
        .unwrap();
        let ran = root.join("RAN");
        for (key, value, attribute, command) in [
            (
                "core.fsmonitor",
                "touch RAN; false",
                "evil",
                &["status"][..],
            ),
            ("core.hooksPath", "hooks", "evil", &["reset"]),
            ("filter.evil.clean", "touch RAN; cat", "evil", &["status"]),
            (
                "filter.evil.process",
                "touch RAN; false",
                "evil",
                &["status"],
            ),
            ("diff.evil.textconv", "touch RAN; cat", "evil", &["diff"]),
            ("diff.evil.command", "touch RAN; cat", "evil", &["diff"]),
            ("diff.external", "touch RAN; cat", "none", &["diff"]),
            ("include.path", "../more", "Evil.One", &["status"]),
        ] {
            git(&root, &["config", key, value], &[]);
            let attributes = format!("file filter={attribute} diff={attribute}\n");
            std::fs::write(root.join(".gitattributes"), attributes).unwrap();
            // Same size as before, so that Git reads the content.
            std::fs::write(root.join("file"), "y").unwrap();
            let env = variables(&root).unwrap();
            let output = git(&root, command, &env);
            assert!(output.status.success(), "{key}: {output:?}");
            assert!(!ran.exists(), "{key} {command:?}");
            // Without the variables, the attack works.
            git(&root, command, &[]);
            assert!(ran.exists(), "{key} {command:?}");
            std::fs::remove_file(&ran).unwrap();
            git(&root, &["config", "--unset", key], &[]);
            std::fs::write(root.join("file"), "x").unwrap();
        }
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn large_configurations_are_refused() {
        let root = std::env::temp_dir().join(format!("runnel-git-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&root).unwrap();
        git(&root, &["init", "-q"], &[]);
        let sections: Vec<_> = (0..8_000)
            .map(|n| format!("[a \"{n}\"]\n\tb = c\n"))
            .collect();
        std::fs::write(root.join(".git/config"), sections.concat()).unwrap();
        assert!(variables(&root).is_err());
        std::fs::remove_dir_all(root).unwrap();
    }
}

//! Policy of the agent's mode: allow, refuse, or ask.

use std::path::{Component, Path, PathBuf};

use super::{ActionKind, Permission};
use crate::config::PermissionMode;
use crate::hash::short_hash;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ruling {
    Allow,
    Refuse,
    Ask,
}

/// Ruling of a mode on one permission.
pub(super) fn rule(mode: PermissionMode, permission: &Permission, workspace: &Path) -> Ruling {
    match (mode, permission.kind) {
        (PermissionMode::Full, _)
        | (PermissionMode::ReadOnly, ActionKind::Read | ActionKind::Fetch) => Ruling::Allow,
        (PermissionMode::ReadOnly, _) => Ruling::Refuse,
        (PermissionMode::AcceptEdits, ActionKind::Read | ActionKind::Edit)
            if is_inside(permission, workspace) && !configures_programs(permission, workspace) =>
        {
            Ruling::Allow
        }
        (PermissionMode::AcceptEdits | PermissionMode::Ask, _) => Ruling::Ask,
    }
}

/// Scope of "allow for this conversation": edits inside the workspace together, everything else exactly.
pub(super) fn key(permission: &Permission, workspace: &Path) -> String {
    let kind = permission.kind.as_str();
    if permission.kind == ActionKind::Edit
        && is_inside(permission, workspace)
        && !configures_programs(permission, workspace)
    {
        return format!("{kind}:workspace");
    }
    let mut exact = format!("{}\n{}", permission.title, permission.detail);
    for path in &permission.paths {
        exact.push('\n');
        exact.push_str(&path.to_string_lossy());
    }
    format!("{kind}:{}", short_hash(&exact))
}

/// True if all paths, at least one, are inside the workspace. Existing links are followed.
fn is_inside(permission: &Permission, workspace: &Path) -> bool {
    !permission.paths.is_empty()
        && permission.paths.iter().all(|path| {
            let path = resolved(&workspace.join(path));
            path.is_some_and(|path| path.starts_with(resolved(workspace).unwrap_or_default()))
        })
}

/// Names of files with commands that programs execute, in addition to all hidden files.
const CONFIGURATION: [&str; 2] = ["opencode.json", "opencode.jsonc"];

/// True if an edit touches a file that configures a program, such as `.git/config`, `.mcp.json` or `.envrc`. Such a
/// file can name commands that the program executes without a permission.
fn configures_programs(permission: &Permission, workspace: &Path) -> bool {
    let root = resolved(workspace).unwrap_or_default();
    permission.kind == ActionKind::Edit
        && permission.paths.iter().any(|path| {
            let path = workspace.join(path);
            let real = resolved(&path).unwrap_or_else(|| path.clone());
            // Parts above the workspace are the operator's and may be hidden folders.
            let inside = real.strip_prefix(&root).unwrap_or(&real);
            inside.components().any(|part| {
                let name = part.as_os_str().to_string_lossy();
                name.starts_with('.')
                    || CONFIGURATION
                        .iter()
                        .any(|file| name.eq_ignore_ascii_case(file))
            })
        })
}

/// Path without links and dots; missing parts are kept. `None` for `..` after a missing part, and for dangling links.
fn resolved(path: &Path) -> Option<PathBuf> {
    let mut there = path;
    let mut missing = Vec::new();
    loop {
        if let Ok(real) = there.canonicalize() {
            return Some(
                missing
                    .iter()
                    .rev()
                    .fold(real, |path, part| path.join(part)),
            );
        }
        // A dangling link: its target can be created anywhere later.
        if there.symlink_metadata().is_ok() {
            return None;
        }
        match there.components().next_back()? {
            Component::Normal(part) => missing.push(part.to_owned()),
            _ => return None,
        }
        there = there.parent()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission(kind: ActionKind, paths: &[&str]) -> Permission {
        Permission {
            kind,
            title: "do it".to_owned(),
            detail: "rm -rf /".to_owned(),
            paths: paths.iter().map(PathBuf::from).collect(),
        }
    }

    #[test]
    fn modes_decide_by_kind_and_path() {
        let root = std::env::temp_dir().join(format!("runnel-policy-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(root.join("w")).unwrap();
        let workspace = root.join("w");
        std::os::unix::fs::symlink("/etc", workspace.join("out")).unwrap();
        std::os::unix::fs::symlink("/nowhere", workspace.join("gone")).unwrap();
        let inside = permission(ActionKind::Edit, &["new/a.txt"]);
        let ruled = |mode, permission: &Permission| rule(mode, permission, &workspace);
        assert_eq!(ruled(PermissionMode::AcceptEdits, &inside), Ruling::Allow);
        assert_eq!(ruled(PermissionMode::Ask, &inside), Ruling::Ask);
        assert_eq!(ruled(PermissionMode::ReadOnly, &inside), Ruling::Refuse);
        assert_eq!(ruled(PermissionMode::Full, &inside), Ruling::Allow);
        for outside in ["../x", "/etc/passwd", "out/passwd", "gone/x", "new/../../x"] {
            let edit = permission(ActionKind::Edit, &["a", outside]);
            assert_eq!(
                ruled(PermissionMode::AcceptEdits, &edit),
                Ruling::Ask,
                "{outside}"
            );
        }
        std::os::unix::fs::symlink(".git", workspace.join("innocent")).unwrap();
        std::fs::create_dir_all(workspace.join(".git")).unwrap();
        for file in [
            ".git/config",
            ".mcp.json",
            "a/.envrc",
            ".claude/settings.json",
            "opencode.json",
            "innocent/config",
        ] {
            let edit = permission(ActionKind::Edit, &["a", file]);
            assert_eq!(
                ruled(PermissionMode::AcceptEdits, &edit),
                Ruling::Ask,
                "{file}"
            );
            assert_ne!(key(&edit, &workspace), key(&inside, &workspace), "{file}");
        }
        assert_eq!(
            ruled(
                PermissionMode::AcceptEdits,
                &permission(ActionKind::Edit, &[])
            ),
            Ruling::Ask
        );
        assert_eq!(
            ruled(
                PermissionMode::AcceptEdits,
                &permission(ActionKind::Execute, &["a"])
            ),
            Ruling::Ask
        );
        assert_eq!(
            ruled(PermissionMode::ReadOnly, &permission(ActionKind::Read, &[])),
            Ruling::Allow
        );
        assert_eq!(
            ruled(
                PermissionMode::ReadOnly,
                &permission(ActionKind::Other, &[])
            ),
            Ruling::Refuse
        );
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn conversation_approval_covers_exact_command() {
        let workspace = Path::new("/tmp");
        let one = key(&permission(ActionKind::Execute, &[]), workspace);
        let mut other = permission(ActionKind::Execute, &[]);
        other.detail = "rm -rf /home".to_owned();
        assert_ne!(one, key(&other, workspace));
        let edits = ["a", "b"].map(|path| key(&permission(ActionKind::Edit, &[path]), workspace));
        assert_eq!(edits[0], edits[1]);
    }
}

//! Validation of registered skills, and their `SKILL.md`.

use protocol::admin::Fault;
use protocol::skill::{NewSkill, SkillFile};
use serde_json::Value;

/// Maximum bytes of one skill's content.
pub const SKILL_BYTES: usize = 256 * 1024;
/// Maximum additional files of one skill.
pub const SKILL_FILES: usize = 20;
/// Maximum skills that runs of one agent may register.
pub const AGENT_SKILLS: u64 = 50;
/// Maximum bytes of a skill's name.
pub const NAME_BYTES: usize = 64;
/// Maximum characters of a description.
pub const DESCRIPTION_CHARS: usize = 1024;
/// Maximum bytes of a file path.
pub const PATH_BYTES: usize = 255;

/// Allowed names as a regular expression. ASCII only, so that no name can imitate an operator's skill.
pub const NAME_PATTERN: &str = "^[a-z0-9]+([_-][a-z0-9]+)*$";
/// Allowed file paths as a regular expression: relative, and no part starts with a dot.
pub const PATH_PATTERN: &str = "^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$";

/// Returns all faults of a skill, with JSON pointers.
pub fn check_skill(skill: &NewSkill) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !is_name(&skill.skill_name) {
        let message = "must be 1 to 64 of a-z and 0-9 in words that `-` or `_` joins";
        faults.push(Fault::new("/skill_name", message));
    }
    let description = skill.description.trim();
    if description.is_empty() || description.chars().count() > DESCRIPTION_CHARS {
        let message = "must describe the purpose of the skill in 1 to 1024 characters";
        faults.push(Fault::new("/description", message));
    }
    if skill.content.trim().is_empty() {
        faults.push(Fault::new("/content", "must contain the instructions"));
    } else if begins_with_front_matter(&skill.content) {
        // The gateway writes the front matter; a second one would override the description.
        let message = "must be without front matter: that is made of skill_name and description";
        faults.push(Fault::new("/content", message));
    }
    check_files(&skill.files, &mut faults);
    if bytes_of(skill) > SKILL_BYTES {
        faults.push(Fault::new(
            "",
            "is larger than 256 KiB in all; keep less in it",
        ));
    }
    faults
}

fn check_files(files: &[SkillFile], faults: &mut Vec<Fault>) {
    if files.len() > SKILL_FILES {
        faults.push(Fault::new("/files", "must be at most 20"));
        return;
    }
    for (index, file) in files.iter().enumerate() {
        let at = format!("/files/{index}/path");
        // File systems without case would let one file replace the other.
        let same = |one: &SkillFile| one.path.eq_ignore_ascii_case(&file.path);
        if !is_path(&file.path) {
            let message = "must be a relative path of A-Z, a-z, 0-9, `.`, `_`, `-` and `/`, and no part \
                           of it may begin with a dot";
            faults.push(Fault::new(at, message));
        } else if file.path.eq_ignore_ascii_case("SKILL.md") {
            // The gateway writes this file from `content`.
            faults.push(Fault::new(at, "is made of content; choose another"));
        } else if files[..index].iter().any(same) {
            faults.push(Fault::new(at, "is used twice"));
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_word = |word: &str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        !word.is_empty() && word.bytes().all(is_plain)
    };
    name.len() <= NAME_BYTES && name.split(['-', '_']).all(is_word)
}

fn is_path(path: &str) -> bool {
    let is_part = |part: &str| {
        let is_plain =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_plain)
    };
    path.len() <= PATH_BYTES && path.split('/').all(is_part)
}

fn begins_with_front_matter(content: &str) -> bool {
    // A byte order mark and blank lines are no content to YAML parsers.
    let first = content.trim_start_matches('\u{feff}').trim_start().lines();
    first.take(1).any(|line| line.trim_end() == "---")
}

/// Returns the bytes of a skill's content.
pub fn bytes_of(skill: &NewSkill) -> usize {
    let files = skill.files.iter();
    let files = files.map(|file| file.path.len() + file.content.len());
    skill.description.len() + skill.content.len() + files.sum::<usize>()
}

/// Returns the `SKILL.md` of a skill.
pub fn skill_md(name: &str, description: &str, content: &str) -> String {
    // A JSON text is also a YAML text, with escaped quotes and line breaks.
    let description = Value::from(description);
    format!("---\nname: {name}\ndescription: {description}\n---\n\n{content}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(changes: &serde_json::Value, pointers: &[&str]) {
        let mut skill =
            json!({"skill_name": "brief", "description": "Makes it short.", "content": "Cut."});
        let changes = changes.as_object().unwrap().clone();
        skill.as_object_mut().unwrap().extend(changes.clone());
        let faults = check_skill(&serde_json::from_value(skill).unwrap());
        let found: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(found, pointers, "{changes:?}");
    }

    #[test]
    fn reports_skill_faults_by_pointer() {
        check(&json!({}), &[]);
        for name in ["a", "a-b_c", "7", &"a".repeat(64)] {
            check(&json!({ "skill_name": name }), &[]);
        }
        for name in [
            "",
            "A",
            "a b",
            "-a",
            "a-",
            "a--b",
            "ä",
            "a/b",
            "a.b",
            "a\n",
            &"a".repeat(65),
        ] {
            check(&json!({ "skill_name": name }), &["/skill_name"]);
        }
        for description in ["", " \n", &"a".repeat(1025)] {
            check(&json!({ "description": description }), &["/description"]);
        }
        check(&json!({"description": "ä".repeat(1024)}), &[]);
        for content in ["", " ", "---\nname: x\n---\nBody", "\u{feff}\n--- \nx: 1"] {
            check(&json!({ "content": content }), &["/content"]);
        }
        check(&json!({"content": "Cut.\n---\nAnd more."}), &[]);
    }

    #[test]
    fn rejects_file_paths_outside_skill() {
        let file = |path: &str| json!({"path": path, "content": ""});
        for path in ["a", "a/b.md", "A_-/0.b", "x..y"] {
            check(&json!({"files": [file(path)]}), &[]);
        }
        for path in [
            "",
            "/a",
            "../a",
            "a/../b",
            "a/..",
            "a/./b",
            "a//b",
            "a/",
            ".a",
            "a\\b",
            "C:a",
            "a b",
            "ä",
            "SKILL.md",
            "skill.MD",
            &"a".repeat(256),
        ] {
            check(&json!({"files": [file(path)]}), &["/files/0/path"]);
        }
        check(
            &json!({"files": [file("a"), file("b"), file("A")]}),
            &["/files/2/path"],
        );
        let many = |count: usize| {
            let files: Vec<_> = (0..count).map(|n| file(&format!("f{n}"))).collect();
            json!({ "files": files })
        };
        check(&many(20), &[]);
        check(&many(21), &["/files"]);
    }

    #[test]
    fn skill_size_includes_all_files() {
        let with = |bytes: usize| {
            let half = "a".repeat(bytes / 2);
            json!({"description": "d", "content": half, "files": [{"path": "f", "content": half}]})
        };
        check(&with(SKILL_BYTES - 2), &[]);
        check(&with(SKILL_BYTES), &[""]);
    }

    #[test]
    fn description_never_escapes_front_matter() {
        let text = skill_md("brief", "One.\n---\nname: \"other\"", "Cut.");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "---",
                "name: brief",
                r#"description: "One.\n---\nname: \"other\"""#,
                "---",
                "",
                "Cut."
            ]
        );
    }
}

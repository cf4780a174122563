//! Layout of help texts: groups of commands, and lines that fit a terminal.

use std::fmt::Write as _;

use anstyle::Style;
use clap::Command;
use clap::builder::StyledStr;

/// Commands by what a person wants to do.
pub(super) const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Run",
        &["dev", "serve", "send", "pause", "resume", "backup"],
    ),
    (
        "Look",
        &[
            "runs",
            "conversations",
            "interactions",
            "actions",
            "approvals",
            "budgets",
            "changes",
            "limits",
            "pauses",
            "explain",
            "health",
        ],
    ),
    (
        "Configure",
        &[
            "check-config",
            "login",
            "logout",
            "agents",
            "endpoints",
            "schedules",
            "sources",
            "webhooks",
            "kb",
            "token",
            "workspace",
            "keys",
            "migrate-config",
        ],
    ),
    (
        "Develop",
        &["conform", "graph", "openapi", "completions", "man"],
    ),
];
/// Maximum length of a line of text, without the names of options.
const COLUMNS: usize = 84;

/// The command with its groups, and with short lines in all help texts.
pub(super) fn arranged(command: Command) -> Command {
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n{}\n{}\n{{options}}{{after-help}}",
        grouped(&command),
        heading("Options")
    );
    with_short_lines(command.help_template(template))
}

fn heading(text: &str) -> String {
    let style = Style::new().bold().underline();
    format!("{style}{text}:{style:#}")
}

/// The commands with the first sentence of their texts.
fn grouped(command: &Command) -> String {
    let bold = Style::new().bold();
    let mut text = String::new();
    for (group, names) in GROUPS {
        let _ = writeln!(text, "\n{}", heading(group));
        let commands = names
            .iter()
            .filter_map(|name| command.find_subcommand(name));
        for command in commands {
            let about = command.get_about().map(ToString::to_string);
            let about = about.unwrap_or_default();
            // The rest of the text is in the help of the command itself.
            let sentence = about.split(". ").next().unwrap_or_default();
            let sentence = sentence.trim_end_matches('.').replace('`', "");
            let _ = writeln!(
                text,
                "  {bold}{:<15}{bold:#} {sentence}",
                command.get_name()
            );
        }
    }
    text
}

fn with_short_lines(mut command: Command) -> Command {
    if let Some(about) = command.get_about() {
        let about = wrapped(about);
        command = command.about(about);
    }
    if let Some(about) = command.get_long_about() {
        let about = wrapped(about);
        command = command.long_about(about);
    }
    command = command.mut_args(|mut argument| {
        if let Some(help) = argument.get_help() {
            let help = wrapped(help);
            argument = argument.help(help);
        }
        if let Some(help) = argument.get_long_help() {
            let help = wrapped(help);
            argument = argument.long_help(help);
        }
        argument
    });
    command.mut_subcommands(with_short_lines)
}

/// Breaks the lines of a text between words.
fn wrapped(text: &StyledStr) -> StyledStr {
    let text = text.to_string();
    let lines: Vec<_> = text.lines().map(wrapped_line).collect();
    lines.join("\n").into()
}

fn wrapped_line(line: &str) -> String {
    let mut wrapped = String::new();
    let mut column = 0;
    for word in line.split_inclusive(' ') {
        let length = word.trim_end().chars().count();
        if column > 0 && column + length > COLUMNS {
            wrapped.truncate(wrapped.trim_end().len());
            wrapped.push('\n');
            column = 0;
        }
        wrapped.push_str(word);
        column += word.chars().count();
    }
    wrapped
}

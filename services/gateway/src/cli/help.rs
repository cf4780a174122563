//! Help texts, completions and manual pages, all from the command line's definition.

mod layout; // groups of commands, line lengths

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anstyle::Style;
use anyhow::Context as _;
use clap::builder::StyledStr;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use super::Cli;
use cli::output;

#[derive(clap::Args)]
pub(super) struct CompletionsArguments {
    /// The shell.
    shell: Shell,
}

#[derive(clap::Args)]
pub(super) struct ManArguments {
    /// Write a page for each command into this directory, which must exist. Default: print the page of `runnel`.
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
}

/// The command line with its help texts: words in backticks are bold on terminals and plain elsewhere.
pub(super) fn command() -> Command {
    without_backticks(Cli::command())
}

fn without_backticks(mut command: Command) -> Command {
    if let Some(about) = command.get_about() {
        let about = emphasized(about);
        command = command.about(about);
    }
    if let Some(about) = command.get_long_about() {
        let about = emphasized(about);
        command = command.long_about(about);
    }
    if let Some(after) = command.get_after_help() {
        let after = emphasized(after);
        command = command.after_help(after);
    }
    command = command.mut_args(|mut argument| {
        if let Some(help) = argument.get_help() {
            let help = emphasized(help);
            argument = argument.help(help);
        }
        if let Some(help) = argument.get_long_help() {
            let help = emphasized(help);
            argument = argument.long_help(help);
        }
        argument
    });
    command.mut_subcommands(without_backticks)
}

fn emphasized(text: &StyledStr) -> StyledStr {
    let bold = Style::new().bold();
    let text = text.ansi().to_string();
    let mut emphasized = String::new();
    for (index, part) in text.split('`').enumerate() {
        // Every second part is between backticks.
        if index % 2 == 1 {
            let _ = write!(emphasized, "{bold}{part}{bold:#}");
        } else {
            emphasized += part;
        }
    }
    emphasized.into()
}

/// The command line for a terminal: commands in groups, short lines.
pub(super) fn command_for_terminal() -> Command {
    without_backticks(layout::arranged(Cli::command()))
}

/// Prints the completion script of a shell.
pub(super) fn completions(arguments: &CompletionsArguments) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command(), "runnel", &mut script);
    output::piece(&String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

/// Prints the manual page of `runnel`, or writes those of all commands.
pub(super) fn man(arguments: &ManArguments) -> anyhow::Result<ExitCode> {
    let Some(directory) = &arguments.out else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command()).render(&mut page)?;
        output::piece(&String::from_utf8_lossy(&page));
        return Ok(ExitCode::SUCCESS);
    };
    clap_mangen::generate_to(command(), directory)
        .with_context(|| format!("cannot write into {}; create it first", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_one_group() {
        let mut listed: Vec<_> = layout::GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .collect();
        listed.sort_unstable();
        let command = command();
        let mut commands: Vec<_> = command.get_subcommands().collect();
        commands.retain(|command| !command.is_hide_set());
        let mut names: Vec<_> = commands.iter().map(|command| command.get_name()).collect();
        names.sort_unstable();
        assert!(listed.into_iter().eq(names.iter()), "{names:?}");
    }

    #[test]
    fn root_help_shows_groups_in_order() {
        let help = command_for_terminal().render_long_help().to_string();
        let found = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text}: {help}"));
        let parts = [
            "Run:",
            "\n  dev ",
            "Look:",
            "\n  runs ",
            "Configure:",
            "Develop:",
            "Options:",
            "--json",
            "Exit codes:",
        ];
        assert!(parts.map(found).is_sorted(), "{help}");
    }

    #[test]
    fn help_lines_are_short() {
        let mut command = command_for_terminal();
        command.build();
        let mut texts = Vec::new();
        help_of(&command, &mut texts);
        let usage = |line: &&str| !line.starts_with("Usage:");
        let lines = texts.iter().flat_map(|text| text.lines().filter(usage));
        let long: Vec<_> = lines.filter(|line| line.chars().count() > 120).collect();
        assert_eq!(long, [""; 0]);
    }

    fn help_of(command: &Command, texts: &mut Vec<String>) {
        texts.push(command.clone().render_long_help().to_string());
        for inner in command.get_subcommands() {
            help_of(inner, texts);
        }
    }

    #[test]
    fn help_texts_have_no_backticks() {
        let mut command = command();
        command.build();
        let mut texts = Vec::new();
        help_of(&command, &mut texts);
        assert!(texts.len() > 20, "{}", texts.len());
        for text in texts {
            assert!(!text.contains('`'), "{text}");
        }
    }

    fn bare_arguments(command: &Command, found: &mut Vec<String>) {
        let bare = command.get_arguments().filter(|argument| {
            let help = argument.get_help().map(ToString::to_string);
            help.is_none_or(|help| help.is_empty())
        });
        found.extend(bare.map(|argument| format!("{} {}", command.get_name(), argument.get_id())));
        for inner in command
            .get_subcommands()
            .filter(|inner| !inner.is_hide_set())
        {
            bare_arguments(inner, found);
        }
    }

    #[test]
    fn every_argument_has_a_help_text() {
        let mut found = Vec::new();
        bare_arguments(&command(), &mut found);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn command_line_is_consistent() {
        command().debug_assert();
    }
}

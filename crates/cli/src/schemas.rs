//! Schemas of what commands print. Who asks for one need not say what the command would be about: what is missing is filled in, with
//! something that can be parsed and of which nothing is done.

use crate::arguments::Arguments;
use ashlar_env::say;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Error, Parser};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, Write};

/// What stands for an argument that is missing, one after another until one is taken: of few values, those that are possible come first.
const PLACEHOLDERS: [&str; 5] = ["1", "x", "raid1", "single", "MLC-A"];
/// More than it takes to fill in all that any command wants.
const TRIES: usize = 64;

/// Reads the command line. An error ends the program, as do `--help` and `--version`.
pub fn read(arguments: Vec<OsString>) -> Arguments {
    complete(arguments).unwrap_or_else(|error| std::process::exit(tell(&error)))
}

/// Prints an error, or the help or version that was asked for; the exit code.
fn tell(error: &Error) -> i32 {
    match error.print().and_then(|()| io::stdout().flush()) {
        Err(lost) if !error.use_stderr() && lost.kind() != io::ErrorKind::BrokenPipe => {
            say::error(format_args!("ashlar: cannot write to standard output: {lost}"));
            2
        }
        _ => error.exit_code(),
    }
}

fn complete(arguments: Vec<OsString>) -> Result<Arguments, Error> {
    let asks = arguments.iter().any(|argument| argument == "--json-schema");
    let first = match Arguments::try_parse_from(&arguments) {
        Err(error) if asks && error.kind() == ErrorKind::MissingRequiredArgument => error,
        done => return done,
    };
    let placeholders = || VecDeque::from(PLACEHOLDERS.map(String::from));
    let (mut filled, mut missing, mut values) = (arguments, strings(&first, ContextKind::InvalidArg), placeholders());
    for _ in 0..TRIES {
        let (Some(argument), Some(value)) = (missing.first(), values.pop_front()) else { break };
        let tried: Vec<OsString> = filled.iter().cloned().chain(option(argument)).chain([value.into()]).collect();
        match Arguments::try_parse_from(&tried) {
            Ok(done) => return Ok(done),
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
                (filled, missing, values) = (tried, strings(&error, ContextKind::InvalidArg), placeholders());
            }
            Err(error) => {
                strings(&error, ContextKind::ValidValue).into_iter().take(1).for_each(|value| values.push_front(value))
            }
        }
    }
    Err(first)
}

/// What an error says of arguments: which are missing (`<PATH>...`, `--device <PATH>`), or what they may be.
fn strings(error: &Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::Strings(all)) => all.clone(),
        Some(ContextValue::String(one)) => vec![one.clone()],
        _ => Vec::new(),
    }
}

/// The option with which a missing argument is given; `None`: by its place. Of several that exclude each other, the first.
fn option(argument: &str) -> Option<OsString> {
    let argument = argument.trim_start_matches('<');
    let end = argument.find([' ', '|', '>', '=']).unwrap_or(argument.len());
    argument.starts_with("--").then(|| OsString::from(&argument[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, CommandFactory};

    /// All commands that do something, as they are called.
    fn leaves(command: &Command, path: &[String], found: &mut Vec<Vec<String>>) {
        let below: Vec<&Command> = command.get_subcommands().filter(|below| below.get_name() != "help").collect();
        for below in &below {
            leaves(below, &[path, &[below.get_name().to_string()]].concat(), found);
        }
        if below.is_empty() || !command.is_subcommand_required_set() {
            found.push(path.to_vec());
        }
    }

    #[test]
    fn the_schema_of_every_command_can_be_asked_for() {
        let mut all = Vec::new();
        leaves(&Arguments::command(), &["ashlar".into()], &mut all);
        assert!(all.len() > 60, "{all:?}");
        let refused: Vec<String> = all
            .into_iter()
            .map(|command| [command, vec!["--json-schema".into()]].concat())
            .filter_map(|command| complete(command.iter().map(OsString::from).collect()).err())
            .map(|error| error.to_string())
            .collect();
        assert!(refused.is_empty(), "{}", refused.join("\n"));
    }

    #[test]
    fn who_asks_for_no_schema_must_say_everything() {
        let read = |text: &str| complete(text.split(' ').map(OsString::from).collect()).err().map(|error| error.kind());
        assert_eq!(read("ashlar survey"), Some(ErrorKind::MissingRequiredArgument));
        assert_eq!(read("ashlar survey --json-schema --frob"), Some(ErrorKind::UnknownArgument));
        assert_eq!(read("ashlar survey --json-schema"), None);
    }
}

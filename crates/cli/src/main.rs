//! The program `ui-message-stream`: inspects UI message streams and chat requests on the command
//! line.
//!
//! Exit codes: 0, no findings; 1, a finding; 2, the command failed or its arguments are wrong.

mod check;
mod completions;
mod input;
mod listen;
mod parse_request;
mod reader;
mod record;
mod recording;
mod reduce;
mod replay;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand};

use crate::reader::Reader;

/// Looks at UI message streams (AI SDK v6) and at chat requests.
#[derive(Debug, Parser)]
#[command(name = "ui-message-stream", version, about, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reports what is wrong with a stream. Prints nothing if the real client accepts it.
    Check(check::Arguments),
    /// Prints the message that the real client holds after it has read a stream.
    Reduce(reduce::Arguments),
    /// Prints what a chat request asks for, and the decisions in it.
    ParseRequest(parse_request::Arguments),
    /// Serves recorded streams to a front end under development, one after the other.
    Replay(replay::Arguments),
    /// Forwards requests of a front end to a backend, and writes each exchange to a file.
    Record(record::Arguments),
    /// Prints a script that lets a shell complete the commands and options.
    Completions(completions::Arguments),
}

/// A stream, and the message that it continues.
#[derive(Debug, Args)]
struct StreamArguments {
    /// A file of server-sent events or JSON lines; standard input if there is none, or `-`.
    file: Option<PathBuf>,
    /// A file with the assistant message, as JSON, that the stream continues.
    #[arg(long, value_name = "FILE")]
    message: Option<PathBuf>,
    /// The function of the client that reads the stream. The functions handle a second `start` and
    /// an `error` differently. The default is `chat` for the response to a POST, which is
    /// server-sent events or what follows a request in a recording. It is `read-ui-message-stream`
    /// for other JSON lines.
    #[arg(long, value_enum)]
    reader: Option<Reader>,
}

/// The reason why a command failed. The exit code is 2.
type CliError = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments = Arguments::try_parse().unwrap_or_else(|error| {
        match unknown_command(&error) {
            Some(message) => eprintln!("{message}"),
            // Exits with 0 for `--help`, and with 2 if the arguments are wrong.
            None => error.exit(),
        }
        std::process::exit(2)
    });
    let result = match arguments.command {
        Command::Check(arguments) => check::run(&arguments),
        Command::Reduce(arguments) => reduce::run(&arguments),
        Command::ParseRequest(arguments) => parse_request::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Record(arguments) => record::run(arguments),
        Command::Completions(arguments) => completions::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        // The reader of the findings, for example `head`, has closed the pipe.
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if kind != Some(io::ErrorKind::BrokenPipe) {
            eprintln!("{error}");
        }
        ExitCode::from(2)
    })
}

/// Returns the message for a command that does not exist, if another one was probably meant: the one
/// with a similar name, or `check` if a file was named.
fn unknown_command(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let suggestion = match error.get(ContextKind::SuggestedSubcommand) {
        _ if Path::new(name).is_file() => format!("check {name}"),
        Some(ContextValue::String(similar)) => similar.clone(),
        Some(ContextValue::Strings(similar)) => similar.first()?.clone(),
        _ => return None,
    };
    Some(format!("there is no command `{name}`; did you mean `{suggestion}`?"))
}

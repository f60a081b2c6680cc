//! The command `check`: reports what is wrong with a stream.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use serde_json::json;
use ui_message_stream::UiMessage;
use ui_message_stream::checker::{Rule, Severity, Violation};
use ui_message_stream::chunk::Version;

use crate::input::{Input, Item};
use crate::reader::Reader;
use crate::{CliError, StreamArguments};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    stream: StreamArguments,
    /// The oldest version of the client that must read the stream, for example `6.0.0`. A chunk type
    /// or a key that this version does not know is an error.
    #[arg(long, value_name = "VERSION", value_parser = version)]
    client: Option<Version>,
    /// Also reports probable mistakes that cause no error in the client, for example a text part
    /// without its end.
    #[arg(long)]
    warnings: bool,
    /// Prints each finding as a JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, CliError> {
    let input = Input::open(&arguments.stream)?;
    let start = |message: Option<UiMessage>, is_response| {
        let reader = arguments.stream.reader.unwrap_or(Reader::default_for(is_response));
        let checker = reader.checker(message.as_ref());
        match arguments.client {
            Some(version) => checker.with_oldest_client(version),
            None => checker,
        }
    };
    let mut checker = start(input.message.clone(), input.is_response());
    let mut findings = Findings {
        arguments,
        out: io::stdout().lock(),
        must_end: input.is_response(),
        has_any: false,
    };
    let is_json_lines = !input.is_response();
    let mut has_bare_chunks = false;
    // The number of the stream's last line so far.
    let mut last = None;
    input.for_each(|item| {
        match item {
            Item::StreamStart { line, message, is_response } => {
                let before = std::mem::replace(&mut checker, start(message, is_response));
                if let Some(last) = last.replace(line) {
                    for violation in before.finish() {
                        findings.print(last, &violation)?;
                    }
                }
                findings.must_end = is_response;
            }
            Item::Data { line, data } => {
                last = Some(line);
                findings.must_end &= data != "[DONE]";
                for violation in checker.handle_data(data) {
                    findings.print(line, &violation)?;
                }
            }
            Item::BareLine { .. } if is_json_lines => has_bare_chunks = true,
            Item::BareLine { line } => {
                last = Some(line);
                for violation in checker.handle_bare_line() {
                    findings.print(line, &violation)?;
                }
            }
            Item::Truncated { line } => {
                last = Some(line);
                for violation in checker.handle_truncated() {
                    findings.print(line, &violation)?;
                }
            }
        }
        Ok(())
    })?;
    for violation in checker.finish() {
        findings.print(last.unwrap_or(1), &violation)?;
    }
    if has_bare_chunks && !findings.has_any && arguments.stream.reader.is_none() {
        eprintln!(
            "the chunks are read as JSON lines; `useChat` reads only server-sent events: write \
             `data: ` before each chunk and a blank line after it"
        );
    }
    Ok(ExitCode::from(u8::from(findings.has_any)))
}

struct Findings<'a, W> {
    arguments: &'a Arguments,
    out: W,
    /// Whether the stream is a response, and has had no `[DONE]` so far. If it has no end either, it
    /// was cut off.
    must_end: bool,
    has_any: bool,
}

impl<W: Write> Findings<'_, W> {
    fn print(&mut self, line: usize, violation: &Violation) -> io::Result<()> {
        let is_error = violation.rule.severity() == Severity::Error;
        let is_reported = match violation.rule {
            // The client is silent too, so no output would look like a success.
            Rule::NoChunks | Rule::MissingDataPrefix => true,
            Rule::NoFinish if self.must_end => true,
            _ => is_error || self.arguments.warnings,
        };
        if !is_reported {
            return Ok(());
        }
        self.has_any = true;
        if self.arguments.json {
            let finding = json!({
                "line": line,
                "code": violation.rule.code(),
                "severity": if is_error { "error" } else { "warning" },
                "subject": violation.subject,
                "why": violation.rule.why(),
                "remedy": violation.rule.remedy(),
            });
            return writeln!(self.out, "{finding}");
        }
        if io::stdout().is_terminal() {
            let colour = if is_error { 31 } else { 33 };
            write!(self.out, "\x1b[1mline {line}:\x1b[0m \x1b[{colour}m")?;
            let text = violation.to_string();
            let (code, rest) = text.split_once(':').unwrap_or((&text, ""));
            return writeln!(self.out, "{code}:\x1b[0m{rest}");
        }
        writeln!(self.out, "line {line}: {violation}")
    }
}

/// Parses `5`, `6`, `6.0.197`, `7` or `7.0.15`.
fn version(text: &str) -> Result<Version, String> {
    let numbers: Result<Vec<u16>, _> = text.split('.').map(str::parse).collect();
    match numbers.as_deref() {
        Ok([5, ..]) => Ok(Version::V5),
        Ok([6] | [6, 0] | [6, 0, 0]) => Ok(Version::V6),
        Ok([6, 0, patch]) => Ok(Version::V6Patch(*patch)),
        Ok([7] | [7, 0] | [7, 0, 0]) => Ok(Version::V7),
        Ok([7, 0, patch]) => Ok(Version::V7Patch(*patch)),
        _ => Err("a version of ai@5, ai@6 or ai@7, such as 6.0.197".to_owned()),
    }
}

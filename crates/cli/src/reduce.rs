//! The command `reduce`: prints the message that a stream produces.

use std::borrow::Cow;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use ui_message_stream::chunk::ChunkReader;

use crate::input::{Input, Item};
use crate::reader::Reader;
use crate::{CliError, StreamArguments};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    stream: StreamArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, CliError> {
    let input = Input::open(&arguments.stream)?;
    let start = |message, is_response| {
        let reader = arguments.stream.reader.unwrap_or(Reader::default_for(is_response));
        reader.reducer(message)
    };
    // The message before the current stream.
    let mut before = input.message.clone();
    let mut reader = ChunkReader::default();
    let mut reducer = start(before.clone(), input.is_response());
    // Whether a chunk of the current stream failed, and whether any chunk of the file failed.
    let mut has_failed = false;
    let mut any_has_failed = false;
    input.for_each(|item| {
        match item {
            Item::StreamStart { message, is_response, .. } => {
                before = message.clone();
                (reader, reducer) = (ChunkReader::default(), start(message, is_response));
                has_failed = false;
            }
            Item::Data { line, data }
                if !has_failed && !reducer.has_stopped() && data != "[DONE]" =>
            {
                let result = match reader.read(data) {
                    Ok(received) => reducer.push(&received).map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                };
                if let Err(error) = result {
                    eprintln!("line {line}: {error}: {}", excerpt(data));
                    (has_failed, any_has_failed) = (true, true);
                }
            }
            Item::Data { .. } | Item::BareLine { .. } | Item::Truncated { .. } => {}
        }
        Ok(())
    })?;
    let mut out = BufWriter::new(io::stdout().lock());
    // If the stream changes nothing, the client still holds the message.
    let message = reducer.rendered().or(before.map(Cow::Owned));
    serde_json::to_writer(&mut out, &message).map_err(io::Error::from)?;
    writeln!(out)?;
    out.flush()?;
    Ok(ExitCode::from(u8::from(any_has_failed)))
}

/// Returns enough of a chunk to identify it.
fn excerpt(data: &str) -> String {
    match data.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &data[..end]),
        None => data.to_owned(),
    }
}

//! `reduce`: the message that a stream comes to.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use ui_message_stream::chunk::Received;

use crate::input::{Input, Item};
use crate::{StreamArguments, Trouble};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    stream: StreamArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Trouble> {
    let input = Input::open(&arguments.stream)?;
    let start = |message| arguments.stream.reader.reducer(message);
    let mut reducer = start(input.message.clone());
    // By the present stream, and by any in the file.
    let (mut has_thrown, mut any_has_thrown) = (false, false);
    input.for_each(|item| {
        match item {
            Item::Beginning { message, .. } => {
                reducer = start(message);
                has_thrown = false;
            }
            Item::Data { line, data }
                if !has_thrown && !reducer.has_stopped() && data != "[DONE]" =>
            {
                let taken = match Received::parse(data) {
                    Ok(received) => reducer.push(&received).map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                };
                if let Err(error) = taken {
                    eprintln!("line {line}: {error}: {}", beginning(data));
                    (has_thrown, any_has_thrown) = (true, true);
                }
            }
            Item::Data { .. } | Item::Unfinished { .. } => {}
        }
        Ok(())
    })?;
    let mut out = BufWriter::new(io::stdout().lock());
    serde_json::to_writer(&mut out, &reducer.shown()).map_err(io::Error::from)?;
    writeln!(out)?;
    out.flush()?;
    Ok(ExitCode::from(u8::from(any_has_thrown)))
}

/// Enough of a chunk to know it by.
fn beginning(data: &str) -> String {
    match data.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &data[..end]),
        None => data.to_owned(),
    }
}

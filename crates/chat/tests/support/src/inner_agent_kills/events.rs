//! [`Events`]: the file to which all processes write what they do.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use ui_message_stream::approval::RecordId;

/// What a process has done, or is about to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// This server requests the approval of the call of this record.
    Asks(u64, RecordId),
    /// A user of this server begins to send a message or answers in a chat. The second number is that of the turn.
    Begins(u64, u64, String),
    /// The turn has ended, and nothing in its chat is executed any more.
    Ended(u64, u64),
    /// A user answers the question for this call of a chat: whether it is approved.
    Answers(String, String, bool),
    /// This server has run a tool in a chat, on this path.
    Ran(u64, String, String, String),
    /// The agent that is this call goes on with the answers at this server.
    GoesOn(u64, String),
    /// The server was killed.
    Killed(u64),
}

/// The file, in the folder that all processes share.
#[derive(Debug, Clone)]
pub(super) struct Events(PathBuf);

impl Events {
    pub(super) fn in_folder(folder: impl Into<OsString>) -> Self {
        Events(PathBuf::from(folder.into()).join("events"))
    }

    /// Appends an event with one write. All lines have 64 bytes, so that none crosses a page of the file: a kill
    /// could cut it there.
    pub(super) fn append(&self, event: &Event) {
        let line = match event {
            Event::Asks(server, record) => format!("asks {server} {record}"),
            Event::Begins(server, turn, chat) => format!("begins {server} {turn} {chat}"),
            Event::Ended(server, turn) => format!("ended {server} {turn}"),
            Event::Answers(chat, call, approved) => format!("answers {chat} {call} {approved}"),
            Event::Ran(server, tool, chat, path) => format!("ran {server} {tool} {chat} {path}"),
            Event::GoesOn(server, call) => format!("goes-on {server} {call}"),
            Event::Killed(server) => format!("killed {server}"),
        };
        let line = format!("{line:63}\n");
        assert_eq!(line.len(), 64, "{line}");
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0).unwrap();
        assert_eq!(file.write(line.as_bytes()).unwrap(), line.len());
    }

    /// Returns all events in their order.
    pub(super) fn read(&self) -> Vec<Event> {
        let text = fs::read_to_string(&self.0).unwrap();
        text.lines().map(|line| parse(line).unwrap_or_else(|| panic!("{line}"))).collect()
    }

    /// Returns the lines about a chat, and about the ends of turns and servers, with their numbers.
    pub(super) fn about(&self, chat: &str) -> String {
        let text = fs::read_to_string(&self.0).unwrap();
        let lines = text.lines().enumerate().filter(|(_, line)| {
            let mut words = line.split_whitespace();
            words.any(|word| word == chat || word == "ended" || word == "killed")
        });
        let lines: Vec<String> =
            lines.map(|(at, line)| format!("{at} {}", line.trim_end())).collect();
        lines.join("\n")
    }
}

fn parse(line: &str) -> Option<Event> {
    let words: Vec<&str> = line.split_whitespace().collect();
    Some(match words[..] {
        ["asks", server, record] => Event::Asks(server.parse().ok()?, record.parse().ok()?),
        ["begins", server, turn, chat] => {
            Event::Begins(server.parse().ok()?, turn.parse().ok()?, chat.into())
        }
        ["ended", server, turn] => Event::Ended(server.parse().ok()?, turn.parse().ok()?),
        ["answers", chat, call, approved] => {
            Event::Answers(chat.into(), call.into(), approved.parse().ok()?)
        }
        ["ran", server, tool, chat, path] => {
            Event::Ran(server.parse().ok()?, tool.into(), chat.into(), path.into())
        }
        ["goes-on", server, call] => Event::GoesOn(server.parse().ok()?, call.into()),
        ["killed", server] => Event::Killed(server.parse().ok()?),
        _ => return None,
    })
}

//! What a store costs that holds many chats and many open questions: a turn, a delta, a list, an inbox, a sweep, the
//! start of another server, and the bytes of a chat and of a question.
//!
//! `cargo bench -p demo --bench scale` fills each store with 20 000 chats and 2 000 questions. Stores and
//! numbers are arguments:
//!   cargo bench -p demo --bench scale -- sqlite redis --chats 1000000 --questions 100000
//!
//! Prints a Markdown table with a column for each store. Redis syncs its file once a second, and Postgres syncs
//! nothing, so their waits are those of a server with a fast disk; SQLite syncs as it does for users. The Redis
//! Cluster has three nodes, and a cell names the CPU of each.

mod fill;
mod measure;
mod store;

use std::time::Duration;

use self::fill::Size;
use self::measure::Measured;
use self::store::{Kind, StartedStore};

#[tokio::main]
async fn main() {
    let (kinds, size) = arguments();
    let mut columns = Vec::new();
    for kind in kinds {
        let Some(store) = StartedStore::start(kind).await else {
            println!("{kind:?} is not installed");
            continue;
        };
        let filled = fill::fill(&store, size).await;
        columns.push((kind, measure::measure(&store, size, filled).await));
    }
    print(size, &columns);
}

/// Returns the stores and the numbers that the command line names.
fn arguments() -> (Vec<Kind>, Size) {
    let mut size = Size { chats: 20_000, questions: 2_000 };
    let mut kinds = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let number = arguments.next().and_then(|number| number.parse().ok());
            number.unwrap_or_else(|| panic!("{argument} needs a number"))
        };
        match &*argument {
            "--chats" => size.chats = number(),
            "--questions" => size.questions = number(),
            // Cargo adds it.
            "--bench" => {}
            name => {
                let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
                kinds.push(kind.unwrap_or_else(|| panic!("no store `{name}`: {:?}", Kind::ALL)));
            }
        }
    }
    if kinds.is_empty() {
        kinds.extend(Kind::ALL);
    }
    (kinds, size)
}

fn print(size: Size, columns: &[(Kind, Measured)]) {
    println!("\n{} chats, {} open questions\n", size.chats, size.questions);
    let row = |name: &str, cell: &dyn Fn(&Measured) -> String| {
        let cells: Vec<_> = columns.iter().map(|(_, measured)| cell(measured)).collect();
        println!("| {name} | {} |", cells.join(" | "));
    };
    println!("| | {} |", columns.iter().map(|it| it.0.name()).collect::<Vec<_>>().join(" | "));
    println!("|---|{}", "---|".repeat(columns.len()));
    row("bytes of an idle chat", &|it| it.chat_bytes.to_string());
    row("bytes of an open question", &|it| it.question_bytes.to_string());
    row("first turn of a chat, ms (median, 99 %)", &|it| it.first_turn.waits());
    row("next turn of a chat, ms", &|it| it.next_turn.waits());
    row("first turn, 16 at once: CPU µs of the server", &|it| it.busy_turn.server_cpu());
    row("… CPU µs of the store", &|it| it.busy_turn.store_cpu());
    row("… turns a second", &|it| it.busy_turn.a_second());
    row("first turn alone: bytes written", &|it| it.first_turn.bytes());
    row("… operations of the store", &|it| it.first_turn.operations());
    row("a delta of 50 streams with 50 a second: CPU µs of the server", &|it| {
        it.delta.server_cpu()
    });
    row("… CPU µs of the store", &|it| it.delta.store_cpu());
    row("… bytes written", &|it| it.delta.bytes());
    row("… operations of the store", &|it| it.delta.operations());
    row("list of 20 chats, ms", &|it| it.list.waits());
    row("page of 100 questions of an inbox, ms", &|it| it.inbox.waits());
    row("the same for one tool, ms", &|it| it.inbox_of_tool.waits());
    row("claims of questions, 16 at once: a second", &|it| it.claim.a_second());
    row("… CPU µs of the server", &|it| it.claim.server_cpu());
    row("… CPU µs of the store", &|it| it.claim.store_cpu());
    row("sweep that finds nothing, ms", &|it| millis(it.sweep));
    row("start of another server, ms", &|it| millis(it.start));
}

fn millis(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}

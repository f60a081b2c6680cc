//! What a store costs that holds many chats and many open questions: a turn, a delta, a list, an inbox, a sweep, the
//! start of another server, and the bytes of a chat and of a question.
//!
//! `cargo bench -p demo --bench scale` fills each store with 20 000 chats and 2 000 questions. Stores and
//! numbers are arguments:
//!   cargo bench -p demo --bench scale -- sqlite redis --chats 1000000 --questions 100000
//!
//! Prints a table of `docs/scale.md`, with a column for each store. Redis syncs its file once a second, and Postgres syncs
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
    println!(
        "| | {} |",
        columns.iter().map(|column| column.0.name()).collect::<Vec<_>>().join(" | ")
    );
    println!("|---|{}", "---|".repeat(columns.len()));
    row("an idle chat with two short messages, bytes", &|figures| figures.chat_bytes.to_string());
    row("an open question, bytes", &|figures| figures.question_bytes.to_string());
    row("a turn, 16 at once, CPU µs of the server", &|figures| figures.busy_turn.server_cpu());
    row("… of the store", &|figures| figures.busy_turn.store_cpu());
    row("a turn, one at a time, operations of the store", &|figures| figures.turn.operations());
    row("… bytes written", &|figures| figures.turn.bytes());
    row("… ms (median, 99 %)", &|figures| figures.turn.waits());
    row("a delta, CPU µs of the server", &|figures| figures.delta.server_cpu());
    row("… of the store", &|figures| figures.delta.store_cpu());
    row("… operations of the store", &|figures| figures.delta.operations());
    row("a list of 20 chats, ms", &|figures| figures.list.waits());
    row("a page of 100 questions, ms", &|figures| figures.inbox.waits());
    row("claims a second, 16 at once", &|figures| figures.claim.a_second());
    row("a sweep that finds nothing, ms", &|figures| millis(figures.sweep));
    row("start of another server, ms", &|figures| millis(figures.start));
}

fn millis(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}

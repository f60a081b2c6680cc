//! `bench-arms ARM PORT DELTAS`: serves one arm. A paced response has so many deltas.

mod adapter;
mod agent;
mod chats;
mod chunk;
mod events;
mod frames;
mod log;
mod sse;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("the arguments are: ARM PORT DELTAS");
    let (arm, port, deltas) = (next(), next(), next());
    let port = port.parse().expect("PORT is a number");
    let deltas = deltas.parse().expect("DELTAS is a number");
    bench_work::listen(port, || match &*arm {
        "frames-16" => frames::routes(16, deltas),
        "frames-1" => frames::routes(1, deltas),
        "reply" => adapter::direct(deltas),
        "own-task" => adapter::own_task(deltas),
        "chats" => chats::routes(deltas),
        "agent" => agent::routes(),
        "sse" => sse::routes(deltas),
        "sse-log" => log::routes(deltas),
        _ => panic!("there is no arm {arm}"),
    })
}

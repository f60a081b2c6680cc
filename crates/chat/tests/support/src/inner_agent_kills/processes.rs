//! [`kill_at_random`]: starts and kills the servers.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use test_support::external_processes::DataFolder;
use test_support::rng::Dice;
use tokio::time::sleep;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream_chat::store::LogStore;

use super::checks::Checks;
use super::events::{Event, Events};
use super::users::{LEASE, Users};
use super::{SEED, chats, kills};

/// Starts and kills servers at random, `KILLS` times (at least 20), and checks what they have done. `server` is
/// the program that serves, and `open` opens the store when all servers are killed. Returns the counts.
pub async fn kill_at_random<S: LogStore + LedgerStore + 'static>(
    server: impl Fn() -> Command,
    open: impl AsyncFnOnce() -> Arc<S>,
) -> String {
    let folder = DataFolder::new();
    let events = Events::in_folder(folder.path());
    let start = |number: u64| {
        let mut server = server();
        server.env("INNER_AGENTS", folder.path()).env("SERVER", number.to_string());
        Process::start(server, number)
    };
    let mut random = Dice::new(SEED, u64::MAX);
    let mut running: [Option<Process>; 2] = [None, None];
    let (mut killed, mut started) = (0, 0);
    while killed < kills() {
        let one = random.below(2);
        match running[one].take() {
            Some(process) => {
                process.kill(&events);
                killed += 1;
            }
            None => {
                running[one] = Some(start(started));
                started += 1;
            }
        }
        sleep(Duration::from_millis(random.below(400) as u64)).await;
    }
    for process in running.into_iter().flatten() {
        process.kill(&events);
        killed += 1;
    }
    let store = open().await;
    // Of runs, and of approved calls.
    sleep(2 * LEASE).await;
    let users = Users::new(events.clone(), started, store.clone());
    let ids = (0..chats()).map(|number| format!("chat{number}"));
    let finished = stream::iter(ids).map(async |id| users.finish(&id).await).buffer_unordered(8);
    let chats: Vec<_> = finished.filter_map(async |chat| chat).collect().await;
    let counts = Checks::new(&*store, &events, chats).await.check();
    format!("{killed} servers killed; {counts}")
}

/// The process of a server. It is killed when this value is dropped.
struct Process(Child, u64);

impl Process {
    /// Starts a server, and waits until it serves.
    fn start(mut command: Command, number: u64) -> Self {
        let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap(), number);
        let mut printed = BufReader::new(process.0.stdout.take().unwrap());
        let mut first = String::new();
        printed.read_line(&mut first).unwrap();
        assert_eq!(first, "serving\n");
        // A server ends when it can print no more, also if this test is killed.
        std::thread::spawn(move || io::copy(&mut printed, &mut io::sink()));
        process
    }

    fn kill(mut self, events: &Events) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the server has ended");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        events.append(&Event::Killed(self.1));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

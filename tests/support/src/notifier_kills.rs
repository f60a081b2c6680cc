//! Servers with a notifier are killed with SIGKILL at random moments, while the notifier works, fails, is
//! slow, or is down. Each event of each approval request is delivered at least once, no other event is
//! delivered, and the first deliveries of the events of one request are in their order.
//!
//! A test of a store starts its own program as these servers. Up to two run at once on one ledger. The
//! ledger of all processes is the real store with a later time, because a lease takes 30 seconds or more: the
//! test sets by how much. So a lease can also end while its server still delivers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::time::{sleep, timeout};
use ui_message_stream::approval::store::{
    Inserted, LedgerStore, LedgerStoreError, ListRecords, ListedRecords, PendingLimits, RecordList,
    Snapshot, VersionedRecord,
};
use ui_message_stream::approval::{
    ApprovalDecision, ApprovalEvent, ApprovalNotice, ApprovalRecord, Approvals, ApprovedCall,
    DefinitionDigest, KeyRing, Notifier, Principal, Progress, RecordId, ToolInfo, ToolOutcome,
    Toolbox,
};
use ui_message_stream::{BoxError, BoxFuture, Json};

use crate::external_processes::{DataFolder, number};
use crate::rng::Dice;

/// A server, in its process.
#[derive(Debug)]
pub struct Server {
    files: Files,
    number: u64,
}

impl Server {
    /// Returns `None` if this process is not such a server.
    pub fn from_environment() -> Option<Self> {
        let files = Files(std::env::var_os("NOTICES")?.into());
        Some(Server { files, number: crate::rng::setting("SERVER").unwrap() })
    }

    /// Requests and decides approvals, and delivers their events, until the process is killed.
    pub async fn serve(self, ledger: Arc<dyn LedgerStore>) {
        let Server { files, number } = self;
        let fates = Mutex::new(Dice::new(SEED, 2 * number));
        let approvals = approvals(ledger, &files, Some(fates));
        tokio::join!(deliver(&approvals), request(&approvals, Dice::new(SEED, 2 * number + 1)));
    }
}

async fn deliver(approvals: &Approvals) {
    let mut new_events = approvals.new_events();
    loop {
        while approvals.deliver_due().await.unwrap() {}
        approvals.expire_due().await.unwrap();
        let _ = timeout(Duration::from_millis(50), new_events.next()).await;
    }
}

async fn request(approvals: &Approvals, mut random: Dice) {
    let input = Json::parse("{}").unwrap();
    loop {
        let chat = format!("chat {}", random.below(1_000_000));
        let chat = approvals.for_chat(&ada(), &chat.into());
        let issued = chat.request_approval(&"m".into(), &"call".into(), TOOL, &input, None).await;
        let issued = issued.unwrap();
        println!("requested");
        match random.below(10) {
            answer @ 0..6 => {
                let decision = ApprovalDecision::new(issued.approval_id, answer < 4);
                let groups = approvals.group_by_message(&ada(), vec![decision]).await.unwrap();
                for group in groups {
                    let chat = approvals.for_chat(&ada(), &group.chat_id);
                    let mut resolved = chat.resolve(group.plan(), &[]).await.unwrap();
                    while resolved.next().await.is_some() {}
                }
            }
            6 | 7 => drop(approvals.revoke(issued.record).await.unwrap()),
            // It stays pending until it expires.
            _ => {}
        }
        pause(&mut random, 20).await;
    }
}

/// Starts and kills servers at random, `KILLS` times (at least 20), and checks what they have delivered. `server` is the
/// program that serves, and `open` opens the store when all servers are killed. Returns the counts.
pub async fn kill_at_random(
    server: impl Fn() -> Command,
    open: impl AsyncFnOnce() -> Arc<dyn LedgerStore>,
) -> String {
    let folder = DataFolder::new();
    let files = Files(folder.path().to_owned());
    let mut random = Dice::new(SEED, u64::MAX);
    let mut running: [Option<Process>; 2] = [None, None];
    let (kills, mut killed, mut started) = (number("KILLS", 20).max(20), 0, 0);
    while killed < kills {
        files.set_down(random.chance(25));
        files.pass_time([0, 31, 31, 300, 1_800][random.below(5)]);
        let one = random.below(2);
        match running[one].take() {
            Some(process) => {
                process.kill();
                killed += 1;
            }
            None => {
                running[one] = Some(Process::start(server(), &files, started));
                started += 1;
            }
        }
        pause(&mut random, 400).await;
    }
    for process in running.into_iter().flatten() {
        process.kill();
        killed += 1;
    }
    let unanswered = files.lines(DELIVERED).len() - files.lines(ANSWERED).len();
    let store = open().await;
    let records = deliver_the_rest(store, &files).await;
    let counts = check(&records, &files);
    assert!(unanswered > 0, "no server was killed while it delivered");
    format!("{killed} servers killed, {unanswered} deliveries had no answer; {counts}")
}

/// Delivers what is left with a notifier that works, and returns all records.
async fn deliver_the_rest(store: Arc<dyn LedgerStore>, files: &Files) -> Vec<ApprovalRecord> {
    files.set_down(false);
    let approvals = approvals(Arc::clone(&store), files, None);
    let requested: BTreeSet<RecordId> =
        files.lines(REQUESTED).iter().map(|id| id.parse().unwrap()).collect();
    let requested: Vec<RecordId> = requested.into_iter().collect();
    // The calls of lost servers get their outcomes.
    files.pass_time(2 * MAX_LEASE);
    for VersionedRecord { record, .. } in store.load(&requested).await.unwrap().records {
        let id = record.approval_id(&keys(), record.requested_at).unwrap();
        approvals.for_chat(&ada(), &record.chat_id).outcomes(&[id]).await.unwrap();
    }
    while approvals.deliver_due().await.unwrap() {}
    let left = store.read_list((&RecordList::to_notify()).into()).await.unwrap().records;
    assert!(left.is_empty(), "not delivered: {left:?}");
    let records = store.load(&requested).await.unwrap().records;
    records.into_iter().map(|stored| stored.record).collect()
}

/// Compares what was delivered with the events of all records. Returns the counts.
fn check(records: &[ApprovalRecord], files: &Files) -> String {
    let delivered = files.lines(DELIVERED);
    // The first deliveries of each record, in their order.
    let mut firsts: BTreeMap<RecordId, Vec<&str>> = BTreeMap::new();
    for line in &delivered {
        let id = line.split_once('-').unwrap().0.parse().unwrap();
        let firsts = firsts.entry(id).or_default();
        if !firsts.contains(&&**line) {
            firsts.push(line);
        }
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for record in records {
        let events = ApprovalEvent::all_of(record).into_iter().map(|(event, _)| name(event));
        let events: Vec<String> = events
            .inspect(|event| *counts.entry(event.clone()).or_default() += 1)
            .enumerate()
            .map(|(number, event)| format!("{}-{number} {event}", record.id))
            .collect();
        assert_eq!(firsts.remove(&record.id).unwrap_or_default(), events, "{record:?}");
    }
    assert!(firsts.is_empty(), "there are no such records: {firsts:?}");
    let events: usize = counts.values().sum();
    let repeated = delivered.len() - events;
    assert!(repeated > 0, "no event was delivered again");
    assert!(events > records.len(), "no request has two events");
    format!("{events} events of {} requests, {repeated} repeated: {counts:?}", records.len())
}

fn approvals(ledger: Arc<dyn LedgerStore>, files: &Files, fates: Option<Mutex<Dice>>) -> Approvals {
    Approvals::new(Tool)
        .with_keys(keys())
        .with_ledger(Arc::new(LaterLedger { ledger, files: files.clone() }))
        .with_approval_ttl(Duration::from_secs(3_600))
        .with_notifier(FileNotifier { files: files.clone(), fates })
}

/// A notifier that appends each event to a file. It is down, fails, or is slow.
#[derive(Debug)]
struct FileNotifier {
    files: Files,
    /// It never fails if there are none.
    fates: Option<Mutex<Dice>>,
}

impl Notifier for FileNotifier {
    fn notify<'a>(&'a self, notice: &'a ApprovalNotice) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let random = |end| {
                let fates = self.fates.as_ref().map(|fates| fates.lock().unwrap());
                fates.map_or(0, |mut fates| fates.below(end))
            };
            if self.files.is_down() {
                return Err("it is down".into());
            }
            sleep(Duration::from_millis(random(10) as u64)).await;
            let event = name(notice.event);
            self.files.append(DELIVERED, &format!("{} {event}", notice.id()));
            let answer = match random(10) {
                8 | 9 => Err("the answer is lost".into()),
                6 | 7 => {
                    sleep(Duration::from_millis(100 + random(400) as u64)).await;
                    Ok(())
                }
                _ => Ok(()),
            };
            self.files.append(ANSWERED, &notice.id());
            answer
        })
    }
}

/// A ledger whose time is later than that of its store. It writes the ids of all requests to a file first.
#[derive(Debug)]
struct LaterLedger {
    ledger: Arc<dyn LedgerStore>,
    files: Files,
}

impl LedgerStore for LaterLedger {
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> BoxFuture<'a, Result<Inserted, LedgerStoreError>> {
        records.iter().for_each(|record| self.files.append(REQUESTED, &record.id.to_string()));
        self.ledger.insert_all(records, limits)
    }

    fn load<'a>(
        &'a self,
        ids: &'a [RecordId],
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        Box::pin(async move {
            let Snapshot { now, records } = self.ledger.load(ids).await?;
            Ok(Snapshot { now: now.after(self.files.passed_time()), records })
        })
    }

    fn read_list<'a>(
        &'a self,
        list: ListRecords<'a>,
    ) -> BoxFuture<'a, Result<ListedRecords, LedgerStoreError>> {
        Box::pin(async move {
            let ListedRecords { now, records, next } = self.ledger.read_list(list).await?;
            Ok(ListedRecords { now: now.after(self.files.passed_time()), records, next })
        })
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        self.ledger.compare_and_swap(record, revision)
    }
}

/// The only tool.
#[derive(Debug)]
struct Tool;

impl Toolbox for Tool {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        let definition = DefinitionDigest::new(name, "deletes a file", &Json::null());
        (name == TOOL).then(|| ToolInfo::new(definition))
    }

    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(async { true })
    }

    fn run(&self, call: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
        Box::pin(async {
            sleep(Duration::from_millis(20)).await;
            ToolOutcome::Output(call.input)
        })
    }
}

/// The folder of the files that all processes share.
#[derive(Debug, Clone)]
struct Files(PathBuf);

impl Files {
    /// Appends a line with one write. All lines have 64 bytes, so that none crosses a page of the file: a kill
    /// could cut it there.
    fn append(&self, file: &str, line: &str) {
        let line = format!("{line:63}\n");
        assert_eq!(line.len(), 64);
        let file = OpenOptions::new().create(true).append(true).open(self.path(file));
        assert_eq!(file.unwrap().write(line.as_bytes()).unwrap(), line.len());
    }

    fn lines(&self, file: &str) -> Vec<String> {
        let lines = fs::read_to_string(self.path(file)).unwrap_or_default();
        lines.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// Moves the time of the ledger on by so many seconds.
    fn pass_time(&self, seconds: u64) {
        let time = self.passed_time().as_secs() + seconds;
        // No process reads a part of the file.
        fs::write(self.path("new-time"), time.to_string()).unwrap();
        fs::rename(self.path("new-time"), self.path("time")).unwrap();
    }

    fn passed_time(&self) -> Duration {
        let seconds = fs::read_to_string(self.path("time")).ok();
        Duration::from_secs(seconds.map_or(0, |seconds| seconds.parse().unwrap()))
    }

    /// Sets whether the notifier of all servers is down.
    fn set_down(&self, is_down: bool) {
        match is_down {
            true => fs::write(self.path("down"), "").unwrap(),
            false => drop(fs::remove_file(self.path("down"))),
        }
    }

    fn is_down(&self) -> bool {
        self.path("down").exists()
    }

    fn path(&self, file: &str) -> PathBuf {
        Path::new(&self.0).join(file)
    }
}

/// The process of a server. It is killed when this value is dropped.
struct Process(Child);

impl Process {
    /// Starts a server, and waits until it has requested an approval.
    fn start(mut command: Command, files: &Files, number: u64) -> Self {
        command.env("NOTICES", &files.0).env("SERVER", number.to_string());
        let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut printed = BufReader::new(process.0.stdout.take().unwrap());
        let mut first = String::new();
        printed.read_line(&mut first).unwrap();
        assert_eq!(first, "requested\n");
        // A server ends when it can print no more, also if this test is killed.
        std::thread::spawn(move || io::copy(&mut printed, &mut io::sink()));
        process
    }

    fn kill(mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the server has ended");
        self.0.kill().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn pause(random: &mut Dice, milliseconds: usize) {
    sleep(Duration::from_millis(random.below(milliseconds) as u64)).await;
}

/// Returns the name of an event.
fn name(event: ApprovalEvent) -> String {
    json!(event).as_str().unwrap().to_owned()
}

fn keys() -> KeyRing {
    KeyRing::new(1, &crate::secret(7)).unwrap()
}

fn ada() -> Principal {
    Principal::new("ada")
}

const SEED: u64 = 30;
const TOOL: &str = "delete_file";

/// 30 seconds, doubled seven times.
const MAX_LEASE: u64 = 3_840;

const REQUESTED: &str = "requested";
const DELIVERED: &str = "delivered";
const ANSWERED: &str = "answered";

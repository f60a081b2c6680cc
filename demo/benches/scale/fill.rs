//! [`fill`]: many chats, and many open questions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use ui_message_stream::Json;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{Approvals, KeyRing, Principal, ToolList};
use ui_message_stream::id::ChatId;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, EntryKind, Epoch, Expected, ListedChat, LiveRunChange, LoadLog,
    LogKey, LogStore, PutSnapshot, Snapshot, StoredEntry, UserLimits,
};

use super::measure::Chats;
use super::store::{StartedStore, Stores};

/// How much a store holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) chats: usize,
    pub(crate) questions: usize,
}

impl Size {
    /// Returns how many users have the chats.
    pub(crate) fn users(self) -> usize {
        self.chats.div_ceil(CHATS_OF_A_USER).max(1)
    }
}

/// The bytes of a chat and of a question.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filled {
    pub(crate) chat_bytes: u64,
    pub(crate) question_bytes: u64,
}

/// Fills a store: each chat has two messages, and is as the sweeps leave it.
pub(crate) async fn fill(store: &StartedStore, size: Size) -> Filled {
    let stores = store.open().await;
    let template = template(&stores).await;
    let empty = store.bytes().await;
    let chats = (0..size.chats).map(|number| {
        let key =
            LogKey { owner: owner_of(number), chat: format!("chat-{number}").as_str().into() };
        copy(&*stores.logs, key, &template)
    });
    futures::stream::iter(chats).buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
    sweep_all(&*stores.logs).await;
    if let Some(pause) = store.pause_between_sweeps() {
        // Otherwise the server sweeps these chats while it is measured.
        tokio::time::sleep(pause).await;
        sweep_all(&*stores.logs).await;
    }
    let with_chats = store.bytes().await;
    let approvals = &approvals(stores.ledger);
    let questions = (0..size.questions).map(|number| ask(approvals, number));
    futures::stream::iter(questions).buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
    let with_questions = store.bytes().await;
    let share = |bytes: u64, count: usize| bytes / count.max(1) as u64;
    Filled {
        chat_bytes: share(with_chats.saturating_sub(empty), size.chats),
        question_bytes: share(with_questions.saturating_sub(with_chats), size.questions),
    }
}

/// Sweeps until there is nothing more to do. A sweep of Redis stops after 30 seconds, and the next one goes on.
pub(crate) async fn sweep_all(logs: &dyn LogStore) {
    loop {
        let begun = Instant::now();
        let left = logs.sweep().await.expect("a sweep");
        if left == Default::default() && begun.elapsed() < Duration::from_secs(30) {
            return;
        }
    }
}

/// A user of one tenant.
pub(crate) fn user(number: usize) -> Principal {
    Principal::new(format!("user-{number}")).with_tenant("acme")
}

/// The owner of a chat of the filled store.
pub(crate) fn owner_of(chat: usize) -> Principal {
    user(chat / CHATS_OF_A_USER)
}

/// The only member of the audience of each question.
pub(crate) fn team() -> Principal {
    Principal::new(TEAM).with_tenant("acme")
}

/// The approvals of all servers. Each question has the audience [`TEAM`].
pub(crate) fn approvals(ledger: Arc<dyn LedgerStore>) -> Approvals {
    let tools = TOOLS.iter().fold(ToolList::new(), |tools, name| {
        tools.tool(name, "Moves money between two accounts.", &Json::null())
    });
    let keys = KeyRing::new(1, b"0123456789abcdef0123456789abcdef").expect("a key");
    Approvals::new(tools)
        .with_keys(keys)
        .with_ledger(ledger)
        .with_audiences(
            |_| vec![TEAM.into()],
            |principal| match principal.id() {
                Some(id) if id == TEAM => vec![TEAM.into()],
                _ => Vec::new(),
            },
        )
        .authorize_decision(|principal, record| principal.tenant() == record.requester.tenant())
}

async fn ask(approvals: &Approvals, number: usize) {
    let requester = user(number / QUESTIONS_OF_A_USER);
    let chat = ChatId::from(&*format!("chat-{number}"));
    let input = r#"{"from":"DE02120300000000202051","to":"DE02500105170137075030","amount":1250}"#;
    let input = Json::parse(input).expect("it is JSON");
    let chat = approvals.for_chat(&requester, &chat);
    let tool = TOOLS[number % TOOLS.len()];
    let asked = chat.request_approval(&"msg".into(), &"call".into(), tool, &input, None).await;
    asked.expect("a question");
}

/// The log of a chat with one answer, and its snapshot.
async fn template(stores: &Stores) -> Snapshot {
    let owner = Principal::new("template");
    let key = LogKey { owner: owner.clone(), chat: "template".into() };
    Chats::open(stores.clone()).turn(&owner, "template").await;
    loop {
        let load = LoadLog { key: &key, has_frames: false, has_messages: true };
        let log = stores.logs.load(load).await.expect("a log").expect("a log");
        if let Some(snapshot) = log.snapshot {
            return snapshot;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Creates a chat with this snapshot.
async fn copy(logs: &dyn LogStore, key: LogKey, template: &Snapshot) {
    let bytes = Bytes::from_static(b"{}");
    let entries = vec![StoredEntry { kind: EntryKind::Control, bytes }; template.position as usize];
    let epoch = Epoch(7);
    let append = AppendLog {
        key: &key,
        expected: Expected::NoLog(epoch),
        entries: &entries,
        lease: None,
        only_lost: false,
        live_run: LiveRunChange::None,
        listed: Some(ListedChat { title: "What does the agent say?", has_questions: false }),
        keep_for: None,
        limits: UserLimits { chats: usize::MAX, runs: 16, unread: Duration::from_secs(30) },
        is_for_sink: false,
    };
    let appended = logs.append(append).await.expect("an append");
    assert!(matches!(appended, AppendResult::Appended { .. }), "{appended:?}");
    let put = PutSnapshot {
        key: &key,
        epoch,
        position: template.position,
        head: &template.head,
        unchanged: None,
        changed: &template.messages,
    };
    assert!(logs.put_snapshot(put).await.expect("a snapshot"), "the snapshot is stored");
}

/// The audience of each question, and the id of its only member.
const TEAM: &str = "finance";
const CHATS_OF_A_USER: usize = 1_000;
const QUESTIONS_OF_A_USER: usize = 50;
const TOOLS: [&str; 4] = ["transfer", "refund", "close", "open"];
/// How many operations fill the store at the same time.
const AT_ONCE: usize = 64;

//! [`Checks`]: compares what the servers have done with the chats and the ledger.

use std::collections::{HashMap, HashSet};
use std::fmt;

use test_support::eventually;
use test_support::kills::Journal;
use ui_message_stream::UserText;
use ui_message_stream::approval::store::{LedgerStore, RecordList, VersionedRecord};
use ui_message_stream::approval::{ApprovalRecord, ApprovalState, RecordId};
use ui_message_stream::message::{Role, ToolPart, ToolState, UiMessage};
use ui_message_stream_chat::Chat;

use super::ada;
use super::agent::{ANSWER, DELETED, TIDY, about};

/// Everything that has happened.
pub(super) struct Checks {
    chats: Vec<Chat>,
    journal: Journal,
    /// The approval requests by chat and call, each with the server that has asked.
    requests: HashMap<(String, String), (ApprovalRecord, u64)>,
    /// When each server was killed: the number of the event.
    killed: HashMap<u64, usize>,
    /// The servers that were killed during a turn, by chat.
    cut: HashMap<String, Vec<u64>>,
    /// When the answers to the question for a call were sent, and whether they approve it.
    answers: HashMap<(String, String), Vec<(usize, bool)>>,
    /// The calls of `janitor` that have gone on with the answers.
    gone_on: HashSet<String>,
    /// When and by which server a tool was run, by tool, chat and path.
    runs: HashMap<[String; 3], Vec<(usize, u64)>>,
}

/// How many calls of `janitor` have ended in which way.
#[derive(Debug, Default)]
struct Counts {
    done: usize,
    moved: usize,
    newer_message: usize,
    unknown_before_questions: usize,
    unknown_after_answers: usize,
    /// Of these, the calls that have not gone on.
    not_gone_on: usize,
    interrupted: usize,
    unseen: usize,
    approved: usize,
    denied: usize,
}

impl Checks {
    pub(super) async fn new(ledger: &impl LedgerStore, journal: Journal, chats: Vec<Chat>) -> Self {
        check_pending(ledger, &chats).await;
        let mut all = Checks {
            chats,
            journal,
            requests: HashMap::new(),
            killed: HashMap::new(),
            cut: HashMap::new(),
            answers: HashMap::new(),
            gone_on: HashSet::new(),
            runs: HashMap::new(),
        };
        let (mut turns, mut asked) = (HashMap::new(), HashMap::new());
        for (at, line) in all.journal.lines().into_iter().enumerate() {
            let words: Vec<&str> = line.split(' ').collect();
            let server: u64 = words[1].parse().unwrap();
            match (words[0], &words[2..]) {
                ("started" | "renewed", _) => {}
                ("killed", []) => drop(all.killed.insert(server, at)),
                ("asks", [record]) => drop(asked.insert(record.parse().unwrap(), server)),
                ("begins", [turn, chat]) => {
                    drop(turns.insert((server, turn.to_string()), chat.to_string()))
                }
                ("ended", [turn]) => drop(turns.remove(&(server, turn.to_string())).unwrap()),
                ("answers", [chat, call, approves]) => {
                    let answers = all.answers.entry((chat.to_string(), call.to_string()));
                    answers.or_default().push((at, approves.parse().unwrap()));
                }
                ("ran", [tool, chat, path]) => {
                    let run = [*tool, chat, path].map(str::to_owned);
                    all.runs.entry(run).or_default().push((at, server));
                }
                ("goes-on", [call]) => {
                    let is_new = all.gone_on.insert(call.to_string());
                    assert!(is_new, "{call} has gone on twice with its answers");
                }
                _ => panic!("{line}"),
            }
        }
        for ((server, _), chat) in turns {
            all.cut.entry(chat).or_default().push(server);
        }
        let ids: Vec<RecordId> = asked.keys().copied().collect();
        for ids in ids.chunks(64) {
            for VersionedRecord { record, .. } in ledger.load(ids).await.unwrap().records {
                let call = (record.chat_id.to_string(), record.tool_call_id.to_string());
                let asker = asked[&record.id];
                all.requests.insert(call, (record, asker));
            }
        }
        all
    }

    /// Checks everything. Returns the counts.
    pub(super) fn check(&self) -> String {
        let mut counts = Counts::default();
        let mut calls = HashSet::new();
        for chat in &self.chats {
            for (at, message) in chat.messages.iter().enumerate() {
                let is_last = !chat.messages.iter().skip(at).any(|it| it.role == Role::User);
                for call in message.tool_parts().filter(|part| part.outer_call().is_none()) {
                    self.check_call(chat, message, call, is_last, &mut counts);
                    assert!(calls.insert(call.tool_call_id.to_string()));
                }
            }
        }
        for ([tool, chat, path], runs) in &self.runs {
            let [call, ..] = path.split('/').collect::<Vec<_>>()[..] else { panic!("{path}") };
            assert_eq!(runs.len(), 1, "{tool} {chat} {path} has run again");
            match &**tool {
                "delete" => self.check_approved(chat, path, runs[0].0),
                // Its server was killed before the call was in the log.
                "look" if !calls.contains(call) => counts.unseen += 1,
                _ => assert!(calls.contains(call), "{tool} {chat} {path} is not in the chat"),
            }
        }
        for ((chat, call), (record, _)) in &self.requests {
            match record.state {
                ApprovalState::Denied { .. } => counts.denied += 1,
                ApprovalState::Completed { .. } => counts.approved += 1,
                _ => {}
            }
            let name = call.rsplit("__").next().unwrap();
            let path = format!("{}/{name}", call.strip_suffix(&format!("__{name}")).unwrap());
            let runs = self.runs_of("delete", chat, &path).len();
            match record.state {
                ApprovalState::Completed { .. } => assert_eq!(runs, 1, "{record:?}"),
                ApprovalState::OutcomeUnknown { .. } => {}
                _ => assert_eq!(runs, 0, "{record:?}"),
            }
        }
        // A server may be killed after the last answer and before its call goes on. That is rare: several times as many
        // calls go on elsewhere.
        let Counts { not_gone_on, moved, .. } = counts;
        assert!(4 * not_gone_on <= moved, "{not_gone_on} calls have not gone on, {moved} have");
        assert!(counts.moved > 0, "no call went on at another server than the one that has asked");
        counts.to_string()
    }

    fn check_call(
        &self,
        chat: &Chat,
        message: &UiMessage,
        call: &ToolPart,
        is_last: bool,
        counts: &mut Counts,
    ) {
        let (id, call_id) = (chat.id.as_str(), call.tool_call_id.as_str());
        let context = || format!("{id}, {call_id}: {message:#?}\n{}", about(&self.journal, id));
        let parts = message.tool_parts();
        let inner = parts.filter(|part| part.outer_call().as_ref() == Some(&call.tool_call_id));
        let inner: Vec<&ToolPart> = inner.collect();
        let of = |part: &ToolPart| (id.to_owned(), part.tool_call_id.to_string());
        // Those that the user has seen: their server was not killed while it asked.
        let asked = inner
            .iter()
            .filter(|part| part.approval_id().is_some() || self.answers.contains_key(&of(part)));
        let asked: Vec<_> = asked.map(|part| of(part)).collect();
        let answered = asked.iter().map(|call| Some(self.answers.get(call)?.first()?.0));
        // When all questions had an answer.
        let answered: Option<usize> =
            answered.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
        let cut = self.cut.get(id).into_iter().flatten();
        let is_cut = cut.map(|server| self.killed[server]).any(|at| Some(at) > answered);
        let sweeps = self.runs_of("sweep", id, call_id);
        match &call.state {
            ToolState::OutputAvailable { output, .. } => {
                assert_eq!(output.as_ref().unwrap().as_str(), format!("{TIDY:?}"), "{}", context());
                assert_eq!(inner.len(), DELETED.len(), "{}", context());
                assert_eq!(self.runs_of("look", id, call_id).len(), 1, "{}", context());
                assert_eq!(sweeps.len(), 1, "{}", context());
                counts.done += 1;
                let (at, server) = sweeps[0];
                let askers = asked.iter().filter_map(|call| Some(self.requests.get(call)?.1));
                let is_other = |asker| {
                    asker != server && self.killed.get(&asker).is_some_and(|killed| *killed < at)
                };
                counts.moved += usize::from(!asked.is_empty() && askers.into_iter().all(is_other));
            }
            ToolState::OutputError { error_text, .. }
                if error_text == UserText::OutcomeUnknown.text() =>
            {
                if asked.is_empty() && is_cut {
                    counts.unknown_before_questions += 1;
                } else if answered.is_some() && is_cut {
                    counts.unknown_after_answers += 1;
                    let has_gone_on = self.gone_on.contains(call_id);
                    counts.not_gone_on += usize::from(!has_gone_on);
                } else {
                    assert!(!is_last, "no server was lost that could have gone on: {}", context());
                    counts.interrupted += 1;
                }
            }
            // A newer message ends the run of the call, or the call while it waits. It may be lost with its server.
            ToolState::OutputError { error_text, .. } => {
                assert!(!is_last || is_cut, "{}", context());
                match &**error_text {
                    "This tool call gave no result." => counts.interrupted += 1,
                    text if text.contains("was closed without an answer") => {
                        counts.newer_message += 1
                    }
                    _ => panic!("{}", context()),
                }
            }
            _ => panic!("it has no result: {}", context()),
        }
        if is_last && !is_cut {
            assert!(matches!(call.state, ToolState::OutputAvailable { .. }), "{}", context());
            assert!(message.last_text().contains(ANSWER), "{}", context());
        }
        let has_result = inner.iter().all(|part| part.is_settled());
        assert!(has_result, "a call inside has no result: {}", context());
    }

    /// Checks that a deletion was approved before it ran.
    fn check_approved(&self, chat: &str, path: &str, ran: usize) {
        let answers = self.answers.get(&(chat.to_owned(), path.replace('/', "__")));
        let mut answers = answers.into_iter().flatten();
        let is_approved = answers.any(|(at, approves)| *approves && *at < ran);
        assert!(is_approved, "delete {chat} {path} has run without an approval");
    }

    fn runs_of(&self, tool: &str, chat: &str, path: &str) -> &[(usize, u64)] {
        self.runs.get(&[tool, chat, path].map(str::to_owned)).map_or(&[], |runs| runs)
    }
}

/// Checks that each question that a message shows was answered or closed. A server that ends a lost run revokes
/// those that no message shows. If it is killed before that, they expire.
async fn check_pending(ledger: &impl LedgerStore, chats: &[Chat]) {
    let is_shown = |record: &ApprovalRecord| {
        let chat = chats.iter().find(|chat| chat.id == record.chat_id);
        let mut parts = chat.into_iter().flat_map(|chat| chat.messages.iter());
        parts.any(|message| {
            message.id == record.message_id
                && message.tool_parts().any(|part| {
                    part.tool_call_id == record.tool_call_id && part.approval_id().is_some()
                })
        })
    };
    let list = RecordList::of_requester(&ada());
    let is_closed = async || {
        let pending = ledger.read_list((&list).into()).await.unwrap().records;
        !pending.iter().any(|VersionedRecord { record, .. }| is_shown(record))
    };
    eventually(is_closed).await;
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { done, moved, newer_message, interrupted, .. } = self;
        let Counts { unknown_before_questions, unknown_after_answers, not_gone_on, .. } = self;
        let Counts { approved, denied, unseen, .. } = self;
        write!(
            f,
            "{done} calls of the agent done, {moved} of them at another server than the killed one that had \
             asked; {newer_message} ended by a newer message while they waited, {interrupted} while they ran; \
             not known: {unknown_before_questions} killed before they asked, {unknown_after_answers} after the \
             answers, {not_gone_on} of them before they went on; {approved} inner calls approved, {denied} denied; {unseen} calls began and were not logged"
        )
    }
}

//! One process that is killed at one point: the state of its approval before and after a restart.

use std::fmt;
use std::process::Stdio;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;
use ui_message_stream::Json;
use ui_message_stream::UserText;
use ui_message_stream::approval::store::{LedgerStore, RecordList};
use ui_message_stream::approval::{ApprovalState, Principal, RecordId};
use ui_message_stream::message::ToolState;
use ui_message_stream::testing::Conversation;
use ui_message_stream_redis::{RedisOptions, RedisStore};

use super::effects::EffectLog;
use super::points::Point;

/// The lease of a claim. After a crash, another process can claim the approval when it has expired.
pub(crate) const LEASE: Duration = Duration::from_millis(500);

/// A process to kill at one point.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trial {
    pub(crate) number: usize,
    pub(crate) point: Point,
    pub(crate) idempotent: bool,
}

/// The status of the approval after the process was killed, and after another was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Observed {
    after_kill: Status,
    after_restart: Status,
}

/// The status of an approval: its state in the ledger, and the counts of the effect log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Status {
    state: State,
    attempts: usize,
    effects: usize,
}

/// The state in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Pending,
    Claimed,
    Done,
    Unknown,
}

impl Trial {
    /// Runs the trial. Panics if a status is not the expected one.
    pub(crate) async fn run(&self, redis: &str) -> Observed {
        let name = format!("ui-message-stream-effects-{}-{}", std::process::id(), self.number);
        let effects = EffectLog::at(std::env::temp_dir().join(name));
        let prefix = format!("trial-{}:", self.number);
        let ledger = RedisOptions::new().with_prefix(&*prefix).connect(redis).await.unwrap();
        let start = async |point: Option<Point>| {
            let point = point.map_or("", Point::name);
            Program::start(&[
                ("KILLED_AT", point),
                ("REDIS", redis),
                ("PREFIX", &prefix),
                ("EFFECTS", effects.path().to_str().unwrap()),
                ("IDEMPOTENT", &self.idempotent.to_string()),
            ])
            .await
        };

        let mut first = start(Some(self.point)).await;
        let mut chat = first.chat();
        chat.send("Delete my notes").await;
        let messages = chat.messages().to_vec();
        let record = pending(&ledger).await;
        let kill = async {
            first.wait_for(self.point).await;
            first.kill().await;
        };
        tokio::join!(chat.approve("delete_file"), kill);
        drop(chat);
        let after_kill = self.status(&ledger, &effects, record).await;
        self.check_after_kill(after_kill);

        let second = start(None).await;
        // The page was loaded again, and the user approves again.
        let mut chat = second.chat().with_messages(messages);
        chat.approve("delete_file").await;
        assert_eq!(chat.error(), None, "{self:?}");
        let after_restart = self.status(&ledger, &effects, record).await;
        let shown = &chat.tool_call("delete_file").state;
        self.check_after_restart(after_kill, after_restart, shown);

        chat.send("And those too").await;
        let next = pending(&ledger).await;
        chat.approve("delete_file").await;
        assert_eq!(chat.error(), None, "{self:?}");
        let shown = &chat.tool_call("delete_file").state;
        assert!(matches!(shown, ToolState::OutputAvailable { .. }), "{self:?}: {shown:?}");
        let next_status = self.status(&ledger, &effects, next).await;
        assert_eq!(next_status, Status { state: State::Done, attempts: 1, effects: 1 }, "{self:?}");
        assert_eq!(self.status(&ledger, &effects, record).await, after_restart, "{self:?}");
        std::fs::remove_file(effects.path()).unwrap();
        Observed { after_kill, after_restart }
    }

    async fn status(&self, ledger: &RedisStore, effects: &EffectLog, record: RecordId) -> Status {
        let stored = ledger.load(&[record]).await.unwrap().records.remove(0).record;
        let state = match stored.state {
            ApprovalState::Pending => State::Pending,
            ApprovalState::Claimed { .. } => State::Claimed,
            ApprovalState::Completed { .. } => State::Done,
            ApprovalState::OutcomeUnknown { .. } => State::Unknown,
            other => panic!("{self:?}: {other:?}"),
        };
        let attempts = effects.count(&format!("attempt {record}"));
        let effects = effects.count(&format!("effect {record}"));
        assert!(effects <= 1, "{self:?}: {effects} effects");
        assert!(self.idempotent || attempts <= 1, "{self:?}: {attempts} attempts");
        Status { state, attempts, effects }
    }

    fn check_after_kill(&self, after_kill: Status) {
        let (state, effects) = match self.point {
            Point::AnswerReceived | Point::PermissionAsked | Point::BeforeClaim => {
                (State::Pending, Some(0))
            }
            Point::AfterClaim | Point::ToolBegun => (State::Claimed, Some(0)),
            // The tool is running, so its effect may have happened.
            Point::BeforeRenewal => (State::Claimed, None),
            Point::EffectWritten | Point::EffectDone | Point::BeforeOutcome => {
                (State::Claimed, Some(1))
            }
            Point::AfterOutcome | Point::BeforeEmission | Point::AfterEmission => {
                (State::Done, Some(1))
            }
        };
        assert_eq!(after_kill.state, state, "{self:?}");
        assert!(
            effects.is_none_or(|effects| effects == after_kill.effects),
            "{self:?}: {after_kill:?}"
        );
    }

    fn check_after_restart(&self, after_kill: Status, after_restart: Status, shown: &ToolState) {
        let is_unknown = after_kill.state == State::Claimed && !self.idempotent;
        let expected = if is_unknown {
            Status { state: State::Unknown, ..after_kill }
        } else {
            let runs_now = after_kill.state != State::Done;
            let attempts = after_kill.attempts + usize::from(runs_now);
            Status { state: State::Done, attempts, effects: 1 }
        };
        assert_eq!(after_restart, expected, "{self:?}");
        match shown {
            ToolState::OutputAvailable { output, .. } if !is_unknown => {
                assert_eq!(output, &Some(Json::string("deleted")), "{self:?}");
            }
            ToolState::OutputError { error_text, .. } if is_unknown => {
                assert_eq!(error_text, UserText::OutcomeUnknown.text(), "{self:?}");
            }
            other => panic!("{self:?} shows {other:?}"),
        }
    }
}

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Observed { after_kill, after_restart } = self;
        write!(f, "after the kill: {after_kill}; after the restart: {after_restart}")
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status { state, attempts, effects } = self;
        write!(f, "{state:?}, attempts {attempts}, effects {effects}")
    }
}

/// Returns the only pending approval request.
async fn pending(ledger: &RedisStore) -> RecordId {
    let pending = ledger
        .read_list((&RecordList::of_requester(&Principal::anonymous())).into())
        .await
        .unwrap()
        .records;
    assert_eq!(pending.len(), 1);
    pending[0].record.id
}

/// The server, as a process.
struct Program {
    process: Child,
    output: Lines<BufReader<ChildStdout>>,
    url: String,
}

impl Program {
    async fn start(settings: &[(&str, &str)]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .envs(settings.iter().copied())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = output.next_line().await.unwrap().unwrap();
        Program { process, output, url }
    }

    fn chat(&self) -> Conversation<'static> {
        let client = Client::builder(TokioExecutor::new()).build_http::<String>();
        Conversation::with_service(&self.url, async move |request: Request<String>| {
            let response = match client.request(request).await {
                Ok(response) => response.map(|body| Body::new(body.map_err(axum::Error::new))),
                // The server was killed before it sent a response.
                Err(error) => Response::builder()
                    .status(StatusCode::BAD_GATEWAY)
                    .body(Body::from(error.to_string()))
                    .unwrap(),
            };
            Ok::<_, std::convert::Infallible>(response)
        })
    }

    /// Waits until the server has reached this point.
    async fn wait_for(&mut self, point: Point) {
        let line = timeout(TIMEOUT, self.output.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("the server does not reach {point:?}")).unwrap();
        assert_eq!(line, Some(format!("at {}", point.name())));
    }

    /// Kills the server with SIGKILL.
    async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }
}

const TIMEOUT: Duration = Duration::from_secs(60);

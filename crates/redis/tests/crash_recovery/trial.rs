//! One process, killed at one point, and what is so before and after another takes its place.

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
use ui_message_stream::approval::store::{LedgerStore, PendingFilter};
use ui_message_stream::approval::{ApprovalState, OUTCOME_UNKNOWN, Principal, RecordId};
use ui_message_stream::message::ToolState;
use ui_message_stream::testing::Conversation;
use ui_message_stream_redis::RedisLedger;

use super::effects::EffectLog;
use super::points::Point;

/// After a crash everybody waits for so long.
pub(crate) const LEASE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Trial {
    pub(crate) number: usize,
    pub(crate) point: Point,
    pub(crate) idempotent: bool,
}

/// What was so when the process was dead, and in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ended {
    dead: Standing,
    end: Standing,
}

/// What is so of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    state: State,
    attempts: usize,
    effects: usize,
}

/// What the ledger says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Pending,
    Claimed,
    Done,
    Unknown,
}

impl Trial {
    /// Runs it, failing where anything is not as it has to be.
    pub(crate) async fn run(&self, redis: &str) -> Ended {
        let name = format!("ui-message-stream-effects-{}-{}", std::process::id(), self.number);
        let effects = EffectLog::at(std::env::temp_dir().join(name));
        let prefix = format!("trial-{}:", self.number);
        let ledger = RedisLedger::connect(redis).await.unwrap().with_prefix(&*prefix);
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
        let asked = chat.messages().to_vec();
        let record = pending(&ledger).await;
        let killed = async {
            first.comes_to(self.point).await;
            first.kill().await;
        };
        tokio::join!(chat.approve("delete_file"), killed);
        drop(chat);
        let dead = self.standing(&ledger, &effects, record).await;
        self.is_as_it_must_be_when_dead(dead);

        let second = start(None).await;
        // The page was loaded again, and the person gives the same answer.
        let mut chat = second.chat().with_messages(asked);
        chat.approve("delete_file").await;
        assert_eq!(chat.error(), None, "{self:?}");
        let end = self.standing(&ledger, &effects, record).await;
        let shown = &chat.tool_call("delete_file").state;
        self.is_as_it_must_be_in_the_end(dead, end, shown);

        chat.send("And those too").await;
        let next = pending(&ledger).await;
        chat.approve("delete_file").await;
        assert_eq!(chat.error(), None, "{self:?}");
        let shown = &chat.tool_call("delete_file").state;
        assert!(matches!(shown, ToolState::OutputAvailable { .. }), "{self:?}: {shown:?}");
        let went_on = self.standing(&ledger, &effects, next).await;
        assert_eq!(went_on, Standing { state: State::Done, attempts: 1, effects: 1 }, "{self:?}");
        assert_eq!(self.standing(&ledger, &effects, record).await, end, "{self:?}");
        std::fs::remove_file(effects.path()).unwrap();
        Ended { dead, end }
    }

    async fn standing(
        &self,
        ledger: &RedisLedger,
        effects: &EffectLog,
        record: RecordId,
    ) -> Standing {
        let kept = ledger.load(&[record]).await.unwrap().records.remove(0).record;
        let state = match kept.state {
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
        Standing { state, attempts, effects }
    }

    fn is_as_it_must_be_when_dead(&self, dead: Standing) {
        let (state, effects) = match self.point {
            Point::AnswerReceived | Point::PermissionAsked | Point::BeforeClaim => {
                (State::Pending, Some(0))
            }
            Point::AfterClaim | Point::ToolBegun => (State::Claimed, Some(0)),
            // The tool runs meanwhile.
            Point::BeforeRenewal => (State::Claimed, None),
            Point::EffectWritten | Point::EffectDone | Point::BeforeOutcome => {
                (State::Claimed, Some(1))
            }
            Point::AfterOutcome | Point::BeforeEmission | Point::AfterEmission => {
                (State::Done, Some(1))
            }
        };
        assert_eq!(dead.state, state, "{self:?}");
        assert!(effects.is_none_or(|effects| effects == dead.effects), "{self:?}: {dead:?}");
    }

    fn is_as_it_must_be_in_the_end(&self, dead: Standing, end: Standing, shown: &ToolState) {
        let is_lost = dead.state == State::Claimed && !self.idempotent;
        let expected = if is_lost {
            Standing { state: State::Unknown, ..dead }
        } else {
            let runs_now = dead.state != State::Done;
            let attempts = dead.attempts + usize::from(runs_now);
            Standing { state: State::Done, attempts, effects: 1 }
        };
        assert_eq!(end, expected, "{self:?}");
        match shown {
            ToolState::OutputAvailable { output, .. } if !is_lost => {
                assert_eq!(output, &Some(Json::string("deleted")), "{self:?}");
            }
            ToolState::OutputError { error_text, .. } if is_lost => {
                assert_eq!(error_text, OUTCOME_UNKNOWN, "{self:?}");
            }
            other => panic!("{self:?} shows {other:?}"),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ended { dead, end } = self;
        write!(f, "dead: {dead}; then: {end}")
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Standing { state, attempts, effects } = self;
        write!(f, "{state:?}, attempts {attempts}, effects {effects}")
    }
}

/// The one question that waits for an answer.
async fn pending(ledger: &RedisLedger) -> RecordId {
    let pending =
        ledger.pending(PendingFilter::Requester(&Principal::anonymous())).await.unwrap().records;
    assert_eq!(pending.len(), 1);
    pending[0].record.id
}

/// The server, as a process.
struct Program {
    process: Child,
    said: Lines<BufReader<ChildStdout>>,
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
        let mut said = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = said.next_line().await.unwrap().unwrap();
        Program { process, said, url }
    }

    fn chat(&self) -> Conversation<'static> {
        let client = Client::builder(TokioExecutor::new()).build_http::<String>();
        Conversation::with_service(&self.url, async move |request: Request<String>| {
            let response = match client.request(request).await {
                Ok(response) => response.map(|body| Body::new(body.map_err(axum::Error::new))),
                // Killed before it said anything.
                Err(error) => Response::builder()
                    .status(StatusCode::BAD_GATEWAY)
                    .body(Body::from(error.to_string()))
                    .unwrap(),
            };
            Ok::<_, std::convert::Infallible>(response)
        })
    }

    async fn comes_to(&mut self, point: Point) {
        let said = timeout(PATIENCE, self.said.next_line()).await;
        let said = said.unwrap_or_else(|_| panic!("it does not come to {point:?}")).unwrap();
        assert_eq!(said, Some(format!("at {}", point.name())));
    }

    /// SIGKILL.
    async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

//! The creation and the settings of a [`ChatServer`].

use std::sync::Arc;
use std::time::Duration;

use super::agent::ChatAgent;
use super::folds::Folds;
use super::followers::Followers;
use super::hints::Hints;
use super::inner::Inner;
use super::loads::Loads;
use super::log::client::ClientSettings;
use super::message_sink::MessageSink;
use super::readers::Readers;
use super::run_counts::RunCounters;
use super::server::ChatServer;
use super::shutdown::Shutdown;
use super::sink::Sink;
use super::store::{InMemoryLogStore, LogStore};
use super::sweeps;
use super::tail::Tails;
use super::ticks::Ticks;
use super::{HistoryImport, PostedHistory};
use crate::ChatLimits;
use ui_message_stream::approval::Approvals;
use ui_message_stream::chunk::Version;

impl ChatServer {
    /// Creates a server whose conversations this agent answers. The conversations are stored in an
    /// [`InMemoryLogStore`].
    ///
    /// # Panics
    /// If the approvals are [stateless](Approvals::stateless_replayable). A chat server asks the
    /// ledger for the outcomes of earlier turns and lists pending approvals, which needs records.
    pub fn new(agent: impl ChatAgent, approvals: Approvals) -> Self {
        assert!(
            !approvals.is_stateless(),
            "a `ChatServer` needs approvals with a ledger: use `Approvals::new` instead of \
             `Approvals::stateless_replayable`"
        );
        ChatServer(
            Arc::new(Inner {
                agent: Arc::new(agent),
                approvals,
                logs: Arc::new(InMemoryLogStore::new()),
                is_sweeping: Arc::default(),
                limits: ChatLimits::default(),
                posted_history: PostedHistory::default(),
                has_warned_of_kept: Arc::default(),
                history_import: HistoryImport::default(),
                clients: ClientSettings::default(),
                run_lease: RUN_LEASE,
                ticks: Ticks::new(APPEND_INTERVAL),
                hints: Hints::default(),
                run_counters: RunCounters::default(),
                readers: Readers::default(),
                followers: Followers::default(),
                tails: Tails::default(),
                loads: Loads::default(),
                folds: Folds::default(),
                mending: Arc::default(),
                shutdown: Shutdown::default(),
                sink: None,
            }),
            None,
        )
    }

    /// Sets whether a new message keeps the stored messages that the posted history lacks. The
    /// default is [`PostedHistory::Keep`].
    #[must_use]
    pub fn with_posted_history(self, posted_history: PostedHistory) -> Self {
        self.configure(|inner| inner.posted_history = posted_history)
    }

    /// Sets what is imported from the history in a request whose conversation the server does not
    /// have. The default is [`HistoryImport::Texts`].
    #[must_use]
    pub fn with_history_import(self, history_import: HistoryImport) -> Self {
        self.configure(|inner| inner.history_import = history_import)
    }

    /// Sets the oldest version of the AI SDK (npm package `ai`) that the clients of this server use.
    /// The default is [`Version::V6`], which serves `ai@6` and `ai@7`.
    ///
    /// The clients of [`Version::V5`] know no approvals. For them, a call that needs approval gets
    /// the error [`UserText::NotAnswerable`](ui_message_stream::UserText::NotAnswerable) as its result, and no approval
    /// is requested. This holds for complete responses, too.
    ///
    /// An approval that the agent requests with approvals of its own is revoked. They must have the
    /// same ledger as those of the server.
    ///
    /// A run may be read by pages of several versions. Each gets what its own knows; only a run that a page of
    /// [`Version::V5`] began is written for that version.
    #[must_use]
    pub fn with_version(self, version: Version) -> Self {
        self.configure(|inner| inner.clients.set_version(version))
    }

    /// Sets the name of the request header in which a page sends its version of the AI SDK, for a server whose pages
    /// use several versions. A page without it has the version of [`with_version`](Self::with_version).
    ///
    /// The page sends the header with every request, also when it reads an answer that is being written:
    ///
    /// ```ts
    /// import { version } from 'ai/package.json';
    /// new DefaultChatTransport({ headers: { 'ai-sdk-version': version } });
    /// ```
    ///
    /// `ChatPolicy::cors` and `chatRoute()` of the npm package know the name
    /// [`AI_SDK_VERSION`](ui_message_stream::policy::AI_SDK_VERSION) alone.
    ///
    /// `chat_routes` reads it. A host with routes of its own calls [`for_version`](Self::for_version).
    ///
    /// If pages of several versions show one conversation, an approval that a newer page can
    /// give stays pending. A page of [`Version::V5`] shows its call without a result.
    ///
    /// ```
    /// use ui_message_stream::policy::AI_SDK_VERSION;
    /// use ui_message_stream_chat::ChatServer;
    ///
    /// fn for_all_pages(chats: ChatServer) -> ChatServer {
    ///     chats.with_version_from(AI_SDK_VERSION)
    /// }
    /// # let _ = for_all_pages;
    /// ```
    #[must_use]
    pub fn with_version_from(self, header: &str) -> Self {
        self.configure(|inner| inner.clients.set_version_header(header))
    }

    /// Disables approval requests, for clients that show none. A call that needs approval gets the
    /// error [`UserText::NotAnswerable`](ui_message_stream::UserText::NotAnswerable) as its result, and no approval is
    /// requested. Approvals that were requested before can still be given.
    #[must_use]
    pub fn without_approvals(self) -> Self {
        self.configure(|inner| inner.clients.disable_approvals())
    }

    /// Sets the store of the conversations. Servers that share conversations have to share it. Call it
    /// before the first request: conversations in the previous store are not moved.
    #[doc(alias = "database")]
    #[doc(alias = "persist")]
    #[must_use]
    pub fn with_store(self, store: Arc<dyn LogStore>) -> Self {
        self.configure(|inner| {
            inner.logs = store;
            inner.folds = Folds::default();
            inner.followers = Followers::default();
        })
    }

    /// Sets what gets the messages of each chat when its run has ended, and when messages or the chat are
    /// edited or deleted: for a host that keeps tables of its own. See [`MessageSink`].
    ///
    /// The store keeps what the sink has not got. Each server with a sink looks for that when it starts (in a
    /// runtime of tokio, else with its first request), and then each 15 seconds, so that nothing is lost if a
    /// server fails. Servers that share a store have to have sinks of the same tables, or some of the changes
    /// reach the tables late. At most 16 chats are delivered at once, and of those whose last delivery took too long
    /// at most 4.
    #[doc(alias = "on_finish")]
    #[must_use]
    pub fn with_message_sink(self, sink: impl MessageSink) -> Self {
        self.configure(|inner| inner.sink = Some(Arc::new(Sink::new(Arc::new(sink)))))
    }

    /// Sets the lease of a run. If the server of a run fails, another server ends or resumes the run when
    /// the lease has passed and was not renewed for a further quarter of it, at most 2.5 seconds: the store
    /// may have been away. A run renews its lease at each third of it. The default is 10 seconds.
    /// A lease has at least 100 milliseconds and at most an hour: other values are replaced by the
    /// nearest of these.
    #[must_use]
    pub fn with_run_lease(self, lease: Duration) -> Self {
        self.configure(|inner| inner.run_lease = lease.clamp(MIN_RUN_LEASE, MAX_RUN_LEASE))
    }

    /// Sets how often the text of a run is appended to its log. Text that comes after a pause is appended at once, and
    /// what follows at most once in each interval, so that a store has fewer writes. Tool calls, results and ends
    /// are appended at once, with the text before them, and so is all text when the server is shut down. The default is 50
    /// milliseconds. An interval has at most a second: longer ones are replaced by this.
    ///
    /// The readers of this server get text at once, before it is stored, and those of other servers when it is appended.
    /// If the server is lost, or another server ends the run, the text of the last interval is lost, also if a reader
    /// has got it. Tool calls, results and ends are never shown before they are stored. With [`Duration::ZERO`], each delta
    /// is appended when the store has stored the one before, and readers get only what is stored.
    ///
    /// All servers of a store should have the same interval, or all of them zero. A client that continues at a server of
    /// an older version than the one before has to load the conversation.
    #[must_use]
    pub fn with_append_interval(self, interval: Duration) -> Self {
        self.configure(|inner| inner.ticks.interval = interval.min(MAX_APPEND_INTERVAL))
    }

    /// Sets the limits of the conversations and their runs. Call it before the first request. The limits
    /// of approval requests are those of [`Approvals::with_limits`].
    ///
    /// They apply with every store. What a store in memory keeps is limited by the store, for example
    /// by [`InMemoryLogStore::with_max_store_bytes`].
    #[must_use]
    pub fn with_limits(self, limits: ChatLimits) -> Self {
        self.configure(|inner| inner.limits = limits)
    }

    fn configure(self, set: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Inner::clone(&self.0);
        set(&mut inner);
        // What the sink has got of another store is of no use.
        inner.sink = inner.sink.map(|sink| Arc::new(sink.anew()));
        inner.is_sweeping = Arc::default();
        let inner = Arc::new(inner);
        sweeps::start(&inner);
        ChatServer(inner, self.1)
    }
}

/// The default interval of the appends of a run.
const APPEND_INTERVAL: Duration = Duration::from_millis(50);

/// A server that is lost loses the text of an interval.
const MAX_APPEND_INTERVAL: Duration = Duration::from_secs(1);

/// The default lease of a run.
const RUN_LEASE: Duration = Duration::from_secs(10);

/// A shorter lease is renewed more often than it helps.
const MIN_RUN_LEASE: Duration = Duration::from_millis(100);

/// A client waits for a run whose server has failed until the lease has passed, and up to four seconds more.
const MAX_RUN_LEASE: Duration = Duration::from_secs(60 * 60);

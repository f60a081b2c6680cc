//! [`Rule`]: the mistakes that a stream can contain. Each rule states what the client does and how
//! the author of the backend fixes it. A [`Violation`] is a rule that a stream breaks.

use std::fmt;

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The rule that is broken.
    pub rule: Rule,
    /// The chunk or part that breaks the rule: `text-delta of part "0"`.
    pub subject: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { rule, subject } = self;
        write!(f, "{}: {subject}: {}; {}", rule.code(), rule.why(), rule.remedy())
    }
}

/// The severity of a broken rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// The client throws and reads nothing more of the stream.
    Error,
    /// The client accepts the stream, but it is almost certainly a mistake.
    Warning,
}

words! { unlisted Severity { Error "error" Warning "warning" } }

/// Generates the enum and its tables from one list.
macro_rules! rules {
    ($(
        $(#[$doc:meta])*
        $rule:ident $severity:ident $code:literal
            why $why:literal
            remedy $remedy:literal
    )*) => {
        /// A rule for streams. The errors are what `ai@6.0.326` throws at. A kind or key at which
        /// only an older client throws is an error only if the checker is set to check for that
        /// client.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Rule {
            $( $(#[$doc])* $rule, )*
        }

        impl Rule {
            /// All rules, errors first.
            pub const ALL: &'static [Rule] = &[$(Rule::$rule),*];

            /// Returns the name of the rule in findings.
            pub fn code(self) -> &'static str {
                match self { $(Rule::$rule => $code),* }
            }

            /// Returns the severity of the rule.
            pub fn severity(self) -> Severity {
                match self { $(Rule::$rule => Severity::$severity),* }
            }

            /// Returns what the client does if the rule is broken, or the consequence.
            pub fn why(self) -> &'static str {
                match self { $(Rule::$rule => $why),* }
            }

            /// Returns what the author of the backend should do.
            pub fn remedy(self) -> &'static str {
                match self { $(Rule::$rule => $remedy),* }
            }
        }
    };
}

rules! {
    /// The data of an event is not a JSON object.
    NotJson Error "not-json"
        why "the client cannot parse it and drops everything after it"
        remedy "write each chunk as one line of JSON after `data: `"
    /// Several chunks stand in one event.
    MissingBlankLine Error "missing-blank-line"
        why "the client joins the lines into one text, cannot parse it and drops everything after it"
        remedy "write a blank line after each `data` line"
    /// The stream has the format of `ai@4`: `0:"text"`.
    Ai4Stream Error "ai-4-stream"
        why "it has the format of ai@4, of which later versions of the client show nothing"
        remedy "write each chunk as server-sent event: `data: {\"type\":\"text-delta\",…}` and a blank line"
    /// A key that the client's JSON reader refuses.
    PrototypeKey Error "prototype-key"
        why "the client's JSON reader refuses `__proto__` and `constructor.prototype` anywhere"
        remedy "strip or rename such keys in tool inputs, outputs and data"
    /// A chunk type that `ai@6` does not have, or an older client for which the stream is checked.
    UnknownKind Error "unknown-kind"
        why "the client's schema has no such chunk"
        remedy "send application data as `data-<name>`, and no chunk of a later major version of ai"
    /// A field is missing or has a wrong type.
    InvalidField Error "invalid-field"
        why "the client's schema refuses it"
        remedy "send the field as the protocol has it; leave an absent one out, never send `null` for it"
    /// A key that an older client does not know.
    UnknownKey Error "unknown-key"
        why "clients before 6.0.231 refuse the whole stream over a key that they do not know"
        remedy "leave it out, or send it as a `data-<name>` part"
    /// A text or reasoning delta or end for a part that is not open.
    PartNotOpen Error "part-not-open"
        why "the client has no such part open in this step and throws"
        remedy "send `text-start` or `reasoning-start` with this id first, in the same step"
    /// A tool input delta before the start of the call's input.
    InputNotStarted Error "input-not-started"
        why "the client has no such call streaming and throws"
        remedy "send `tool-input-start` first"
    /// A result or an approval request for a call that the message does not hold.
    UnknownToolCall Error "unknown-tool-call"
        why "the client finds no part with this tool call id in the message and throws"
        remedy "announce the call with `tool-input-available`, or continue the message that holds it"
    /// Metadata that cannot be merged.
    UnmergeableMetadata Error "unmergeable-metadata"
        why "the client throws while it merges an object into metadata that is none"
        remedy "send message metadata as objects only"

    /// The stream ends within an event.
    UnfinishedEvent Warning "unfinished-event"
        why "the client drops an event that no blank line ends"
        remedy "write a blank line after every event, the last one too"
    /// A line holds a JSON object without `data:` before it.
    MissingDataPrefix Warning "missing-data-prefix"
        why "the client skips a line that does not begin with `data:`"
        remedy "write `data: ` before each chunk"
    /// A chunk follows the end of the stream.
    AfterFinish Warning "after-finish"
        why "the client goes on reading, and shows what comes after the end"
        remedy "send `finish` last, once; the end of a step is `finish-step`"
    /// A chunk follows an `error` chunk.
    AfterError Warning "after-error"
        why "`useChat` stops reading at `error`"
        remedy "close what is open before `error`"
    /// A second `start` chunk.
    SecondStart Warning "second-start"
        why "the client renames or empties the message"
        remedy "send `start` once, first"
    /// The continued message gets another id.
    OtherMessageId Warning "other-message-id"
        why "the client shows a second message and leaves the first as it was"
        remedy "send the id of the continued message; none will do where a POST is answered"
    /// A part is still open when its step or the stream ends.
    PartLeftOpen Warning "part-left-open"
        why "the part stays `streaming` in the history"
        remedy "send its end before `finish-step`"
    /// A tool's input is incomplete at the end of its step or of the stream.
    InputLeftOpen Warning "input-left-open"
        why "the call stays `input-streaming` for ever"
        remedy "send `tool-input-available` or `tool-input-error` in the same step"
    /// A tool input delta after the end of the input.
    InputAfterItsEnd Warning "input-after-its-end"
        why "the client drops the output, and shows the call as `input-streaming` again"
        remedy "send every `tool-input-delta` before `tool-input-available` or `tool-input-error`"
    /// A preliminary output without a final output.
    OutputLeftPreliminary Warning "output-left-preliminary"
        why "the call never counts as done"
        remedy "send the output once more without `preliminary`"
    /// A call has no output, although a later step has content.
    CallWithoutOutput Warning "call-without-output"
        why "the client shows the call as running for ever, and models refuse a history with it"
        remedy "send `tool-output-available` or `tool-output-error` before the next `start-step`"
    /// A second result for a call that already has one.
    AlreadySettled Warning "already-settled"
        why "the client replaces the result that it shows"
        remedy "send one final result a call"
    /// An approval request for a call that already has its result, or with an id that the request for another
    /// call has.
    UnanswerableApproval Warning "unanswerable-approval"
        why "nobody can answer it, or one answer is taken for both"
        remedy "ask once a call, under an id of its own, while the call has no result"
    /// An approval request for a call whose input is no object.
    HiddenInput Warning "hidden-input"
        why "assistant-ui shows `{}` in place of such an input, and the user approves what is not shown"
        remedy "give the tool an object as its input: `{\"path\":\"notes.txt\"}`"
    /// A denial that no user decided.
    DenialWithoutQuestion Warning "denial-without-question"
        why "`validateUIMessages` refuses a denied part whose approval is not a no"
        remedy "send `tool-output-error` where the server refuses"
    /// One call is sent both as static and as dynamic.
    DynamicMismatch Warning "dynamic-mismatch"
        why "the client makes a second part of it"
        remedy "send the same `dynamic` on every chunk of a call"
    /// A call id is used for a second call.
    RepeatedToolCall Warning "repeated-tool-call"
        why "the client writes the second call over the first, in any step before 6.0.235"
        remedy "make tool call ids unique within a message"
    /// The stream ends in a state in which the client resubmits without end.
    EndlessResubmission Warning "endless-resubmission"
        why "`sendAutomaticallyWhen` fires at once, and again after the same answer"
        remedy "follow tool results with a step that has content, or with `error`"
    /// The page has to execute a call of the last step, beside a denied one.
    NeverResubmitted Warning "never-resubmitted"
        why "neither helper for `sendAutomaticallyWhen` counts a denied call as done, so the page never sends the output"
        remedy "send `tool-output-error` where the server refuses; where a user denies, let the page leave out denied calls"
    /// The stream holds no chunk. The response may be an HTML page, or not a stream at all.
    NoChunks Warning "no-chunks"
        why "the client shows nothing, neither a message nor an error"
        remedy "write each chunk after `data: ` and a blank line behind it; refuse with a status of 400 or more"
    /// The stream ends without `finish`, `error` or `abort`.
    NoFinish Warning "no-finish"
        why "the client shows what it has read as the whole message, even if the stream was cut off"
        remedy "end with `finish`, `error` or `abort`; if the backend does, find out what closed the connection"
}

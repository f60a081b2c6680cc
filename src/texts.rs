//! [`UserText`]: the texts that people read in a chat, in one table that a host can replace.

use std::fmt;
use std::sync::OnceLock;

/// Defines [`UserText`]: for each text its meaning, its name and its English form.
macro_rules! user_texts {
    ($($(#[doc = $doc:literal])+ $name:ident = $english:literal,)+) => {
        /// A text that this crate, or one of the crates beside it, shows to people in a chat: why an answer or a
        /// tool call has no result.
        ///
        /// Each is English. A host that writes another language [replaces](Self::replace) them at its start.
        ///
        /// A text is for display only: a tool may fail with the same text, so no code may compare it. What has
        /// happened to a call is a [`DeferredOutcome`](crate::approval::DeferredOutcome).
        ///
        /// Not among them are texts for models, of which a page may show some as the error of a call (an input that does
        /// not fit the schema), and those of refused requests, for which a page writes its own text by their status.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum UserText {
            $($(#[doc = $doc])+ #[doc = ""] #[doc = concat!("“", $english, "”")] $name,)+
        }

        impl UserText {
            /// All texts, for a host that translates them.
            pub const ALL: &[UserText] = &[$(UserText::$name,)+];

            /// Returns the text in English.
            pub const fn in_english(self) -> &'static str {
                match self {
                    $(UserText::$name => $english,)+
                }
            }
        }
    };
}

user_texts! {
    /// The answer failed, and the host does not say why.
    AnswerFailed = "An error occurred.",
    /// The server of an answer was lost.
    AnswerInterrupted = "The server was interrupted. The answer is not complete.",
    /// The model ended before the answer was complete.
    AnswerCutOff = "The model broke off. The answer is not complete.",
    /// The model ended its answer without text, reasoning, a file or a call.
    AnswerEmpty = "The model gave no answer.",
    /// The answer is not of the type that the agent was to return.
    AnswerOfWrongType = "The answer is not in the form that it was to have.",

    /// A tool failed, and the error has no text for people.
    ToolFailed = "The tool failed.",
    /// A tool was stopped by its timeout.
    ToolTimedOut = "The tool took too long and was stopped. What it did until then is not known.",
    /// The output of a tool exceeds its limit.
    OutputTooLarge = "The tool returned more than can be shown.",
    /// The output of a tool is of a kind that the protocol does not have.
    OutputNotShown = "The tool returned what cannot be shown.",
    /// The server of an MCP tool does not answer, or was lost before the call. The name of the server precedes
    /// the text.
    ToolServerGone = "This tool call was not executed: the tool server is away.",
    /// The server of an MCP tool was lost during the call. The name of the server precedes the text.
    ToolServerLost = "The tool server went away. What the tool did until then is not known.",

    /// The model ended in the input of a call.
    InputCutOff = "The input of this tool call was cut off.",
    /// The model failed, or its response was cut off, before a call began.
    NotStarted = "This tool call was not executed: the model broke off.",
    /// The answer ended without the result of a call.
    NoResult = "This tool call gave no result.",
    /// The outcome of a call was lost.
    OutcomeUnknown = "It is not known whether this tool call was executed. Verify before repeating it.",

    /// A call may not be executed. The text is the same for every reason.
    Refused = "This tool call was not executed.",
    /// The requester of a call is not authorized to make it.
    NotPermitted = "This tool call was not executed: it is not permitted.",
    /// A call was approved, and its answer ended before it ran.
    ApprovedButNotRun = "This tool call was approved, but it did not run.",
    /// The approval of a call arrived with or after a newer message.
    Lapsed = "This tool call was approved, but not executed: a newer message arrived before the approval.",
    /// A call was not approved or denied in time.
    Expired = "This tool call was not executed: nobody approved it in time.",
    /// A newer message has closed the approval request of a call.
    Superseded = "This tool call was not executed: a new message was sent instead of an answer.",
    /// The reason of a denial that the user did not write: a newer message counts as one, as
    /// [`OnNewMessage::Deny`](crate::approval::OnNewMessage::Deny) says.
    DeniedByMessage = "The user sent a new message instead of an answer.",
    /// The approval request of a call was revoked.
    Revoked = "This tool call was not executed: it is no longer permitted.",
    /// The approval request of a call was lost.
    Forgotten = "This tool call was not executed: the server does not know this question any more. Ask again, and approve the new question.",

    /// The client cannot answer approval requests.
    NotAnswerable = "This tool needs an approval, which cannot be given here. It did not run.",
    /// The approval of a call could not be requested.
    NotRequested = "This tool call was not executed: nobody could be asked to approve it.",
    /// The description for the person who approves is too long.
    DescriptionTooLong = "This tool call was not executed: what the user would have to read is too long.",
    /// The user has too many pending approval requests.
    TooManyPending = "This tool call was not executed: too many questions wait.",

    /// Another call of the step asks for inner calls, beside which none is executed.
    RunsAlone = "This tool call was not executed, because other calls of the same step wait for the user. Make it again when they have results.",
    /// A tool suspended its call, and the user cannot be asked for its inner calls.
    InnerCallsNotAsked = "The tool stopped: the user cannot be asked for what it needs.",
    /// An inner call needs an approval where none can be requested.
    InnerCallNotAsked = "This call was not executed: the user cannot be asked for it here.",
    /// The inner calls of a call were closed: by a newer message, or because their time has passed.
    InnerCallsClosed = "This tool call was not completed, because what it asked the user was closed without an answer. What it has done until then is not known here.",
    /// An agent that is a tool reached its maximum number of steps.
    InnerAgentStepLimit = "The agent stopped: it made as many steps as it may.",
    /// An agent that is a tool failed.
    InnerAgentFailed = "The agent failed.",
    /// An agent that is a tool called a tool of the client.
    InnerAgentNeedsClient = "The agent stopped: it called a tool that only the client of a chat can execute.",
}

static REPLACED: OnceLock<Box<[Option<Box<str>>]>> = OnceLock::new();

impl UserText {
    /// Replaces texts in this process, for example by those of another language. `of` is called once for each
    /// text, and returns `None` for one that stays English. Call it before the first request.
    ///
    /// Texts are stored with the messages and approvals in which they are shown, so it does not change those of
    /// earlier messages. For users of several languages, a page translates by the `status` of `data-approval`
    /// and by how the answer ended.
    ///
    /// ```
    /// use ui_message_stream::UserText;
    ///
    /// UserText::replace(|text| match text {
    ///     UserText::Expired => Some("Nicht ausgeführt: niemand hat rechtzeitig zugestimmt."),
    ///     UserText::ToolFailed => Some("Das Werkzeug ist gescheitert."),
    ///     _ => None,
    /// })?;
    /// assert_eq!(UserText::ToolFailed.text(), "Das Werkzeug ist gescheitert.");
    /// assert_eq!(UserText::NoResult.text(), UserText::NoResult.in_english());
    /// # Ok::<_, ui_message_stream::TextsReplacedError>(())
    /// ```
    ///
    /// # Errors
    /// [`TextsReplacedError`] if the texts of this process were replaced before. Nothing changes.
    pub fn replace<T: Into<Box<str>>>(
        of: impl Fn(UserText) -> Option<T>,
    ) -> Result<(), TextsReplacedError> {
        let texts = UserText::ALL.iter().map(|&text| of(text).map(Into::into)).collect();
        REPLACED.set(texts).map_err(|_| TextsReplacedError(()))
    }

    /// Returns the text that people read: the host's if it has [replaced](Self::replace) it, else the English one.
    pub fn text(self) -> &'static str {
        let replaced = REPLACED.get().and_then(|texts| texts.get(self as usize)?.as_deref());
        replaced.unwrap_or(self.in_english())
    }
}

impl fmt::Display for UserText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The texts of a process can be replaced once.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error(
    "the texts of this process were replaced before; call `UserText::replace` once, for all texts"
)]
pub struct TextsReplacedError(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_has_its_own_place_in_the_table_and_its_own_words() {
        for (at, &text) in UserText::ALL.iter().enumerate() {
            assert_eq!(text as usize, at, "{text:?}");
            let same = UserText::ALL.iter().filter(|other| other.in_english() == text.in_english());
            assert_eq!(same.count(), 1, "{text:?}");
            assert!(text.in_english().ends_with('.'), "{text:?}");
        }
    }
}

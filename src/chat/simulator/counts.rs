//! [`Counts`]: what happened in the interleavings.

macro_rules! counts {
    ($($name:ident,)*) => {
        #[derive(Default, Debug)]
        pub(super) struct Counts {
            $(pub(super) $name: u64,)*
        }

        impl Counts {
            pub(super) fn add(&mut self, other: &Counts) {
                $(self.$name += other.$name;)*
            }

            /// Returns what never happened, except what is rare.
            pub(super) fn unreached(&self) -> Vec<&'static str> {
                let mut all = vec![$((stringify!($name), self.$name),)*];
                all.retain(|(name, count)| *count == 0 && *name != "claimed_in_vain");
                all.into_iter().map(|(name, _)| name).collect()
            }
        }
    };
}

counts! {
    turns,
    // Runs that the conversation named, and those of them that continue a message.
    runs,
    continued,
    // Runs that were taken, and those of them whose lease had passed.
    taken,
    mended,
    // Saves of a message up to the end of a step, lost runs that were resumed, readers that went on in
    // the run that resumes, and lost runs that ended with an error.
    kept,
    resumed,
    followed,
    interrupted,
    // Effects of approvals, those of them that a provider had, and approvals that were claimed for a
    // provider and not sent.
    effects,
    sent,
    claimed_in_vain,
    // Requests that a new message closed.
    closed,
    // Outputs of calls that the client executes.
    outputs,
    // Responses.
    joined,
    stored,
    refused,
    unnamed_edits,
    failed,
    // The user has too many runs.
    too_many,
    refused_appends,
    conflicts,
    // Conversations that were deleted, and revocations of all their requests.
    deleted,
    revoked,
    // Failures, and runs that a server handed over before it ended.
    crashes,
    handed_over,
    given_up,
    ledger_faults,
    long_jumps,
    removed_logs,
    // Readers that reconnect after a failure, and conversations whose users send answers again.
    reconnected,
    repaired,
    steps,
}

impl Counts {
    /// Whether something has failed, so that users may have to send their answers again.
    pub(super) fn has_failed(&self) -> bool {
        let Counts { crashes, failed, too_many, given_up, ledger_faults, long_jumps, .. } = self;
        crashes + failed + too_many + given_up + ledger_faults + long_jumps > 0
    }
}

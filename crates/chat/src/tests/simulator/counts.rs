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

            /// Returns what never happened.
            pub(super) fn unreached(&self) -> Vec<&'static str> {
                let mut all = vec![$((stringify!($name), self.$name),)*];
                all.retain(|(_, count)| *count == 0);
                all.into_iter().map(|(name, _)| name).collect()
            }
        }
    };
}

counts! {
    turns,
    steps,
    // Runs by how they began and ended.
    runs,
    continued,
    stopped,
    replaced,
    limits,
    failed_runs,
    interrupted,
    resumed,
    // Effects of approvals, and those of them that a provider had.
    effects,
    sent,
    // What approved calls showed before their results: entries of outputs, and parts.
    preliminary_outputs,
    parts_of_calls,
    // How often frames waited for the next append.
    paced,
    // Results that a turn appended to the run of another one, or to none.
    late_results,
    // Calls that a new message closed.
    closed,
    // Responses.
    joined,
    stored,
    received_before,
    unnamed_edits,
    unknown_calls,
    failed,
    too_many,
    nothing,
    // Stores.
    conflicts,
    lost_replies,
    late_operations,
    loads,
    loads_with_frames,
    snapshots,
    trimmed,
    deleted,
    // Failures.
    crashes,
    handed_over,
    ledger_faults,
    unstored_answers,
    // Requests of clients that cannot answer them.
    revoked,
    // Text that readers were shown before it was stored, and ends of runs that waited until it was. Readers whose text was lost: they read another end, or have
    // to load the chat. Readers that go on in text that is not stored yet.
    shown_early,
    hurried,
    closed_early,
    have_to_load,
    continued_early,
    // Readers that read the end, and readers whose entries were gone.
    read_to_end,
    gone,
    mended,
}

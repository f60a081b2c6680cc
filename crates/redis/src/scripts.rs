//! The scripts that Redis runs. Each is one atomic step, and each touches keys of one hash slot
//! only.
//!
//! A script whose reply was lost is run again. So each recognizes what its first run has done, and
//! returns the same reply.

use std::sync::LazyLock;

use redis::Script;

/// Declares a script, which consists of these files.
macro_rules! script {
    ($name:ident, $($file:literal),+) => {
        pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+))
        });
    };
}

script!(CHAT_SAVE, "chat_save");
script!(CHAT_RELOAD, "chat_reload");
script!(CHAT_LIST, "chat_list");
script!(CHAT_DELETE, "chat_delete");

script!(RUN_BEGIN, "run", "run_begin");
script!(RUN_APPEND, "run", "run_append");
script!(RUN_READ, "run", "run_read");
script!(RUN_TAKE, "run", "run_take");

script!(LEDGER_LOAD, "ledger_clock", "ledger_load");
script!(LEDGER_PENDING, "ledger_clock", "ledger_pending");
script!(LEDGER_INSERT, "ledger_clock", "ledger_identity", "ledger_write", "ledger_insert");
script!(LEDGER_SWAP, "ledger_clock", "ledger_identity", "ledger_write", "ledger_swap");
script!(LEDGER_LIST, "ledger_list");
script!(LEDGER_CHAT_INDEXES, "ledger_chat_indexes");
script!(LEDGER_DELETE, "ledger_delete");

script!(GUARD_FIRST, "guard_first");
script!(GUARD_SET, "guard_set");

script!(PING, "ping");

script!(USER_LIST, "user_list");
script!(USER_DELETE, "user_delete");

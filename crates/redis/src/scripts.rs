//! The scripts that Redis runs. Each is one atomic step, and each touches keys of one hash slot
//! only.
//!
//! A script whose reply was lost is run again. Each script of the ledger recognizes what its first run
//! has done, and returns the same reply. A script that changes a log finds another log then, and
//! refuses. Those that delete a user count what is left.

use std::sync::LazyLock;

use redis::{Cmd, ToRedisArgs};

/// The text of a script.
pub(crate) struct Script {
    text: &'static str,
    /// The digest by which Redis knows the text.
    digest: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Script { text, digest: redis::Script::new(text).get_hash().to_owned() }
    }

    /// Begins an invocation with this key.
    pub(crate) fn key(&self, key: impl ToRedisArgs) -> Invocation<'_> {
        let mut invocation = self.prepare_invoke();
        invocation.key(key);
        invocation
    }

    /// Begins an invocation without keys.
    pub(crate) fn prepare_invoke(&self) -> Invocation<'_> {
        Invocation { script: self, arguments: Arguments::default() }
    }
}

/// A script with its keys and arguments.
pub(crate) struct Invocation<'a> {
    script: &'a Script,
    pub(crate) arguments: Arguments,
}

/// The keys and arguments of a script.
#[derive(Default)]
pub(crate) struct Arguments {
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
}

impl Arguments {
    pub(crate) fn key(&mut self, key: impl ToRedisArgs) -> &mut Self {
        key.write_redis_args(&mut self.keys);
        self
    }

    pub(crate) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        arg.write_redis_args(&mut self.args);
        self
    }

    /// Adds others after these.
    pub(crate) fn extend(&mut self, others: Self) {
        self.keys.extend(others.keys);
        self.args.extend(others.args);
    }
}

impl Invocation<'_> {
    pub(crate) fn key(&mut self, key: impl ToRedisArgs) -> &mut Self {
        self.arguments.key(key);
        self
    }

    pub(crate) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.arguments.arg(arg);
        self
    }

    /// Returns a script for the node of the keys, which changes nothing.
    pub(crate) fn probe(&self) -> Invocation<'static> {
        EXISTS.key(self.arguments.keys.first().map(Vec::as_slice).unwrap_or_default())
    }

    /// Returns the command that runs the script if Redis has its text.
    pub(crate) fn by_digest(&self) -> Cmd {
        self.command("EVALSHA", &self.script.digest)
    }

    /// Returns the command that sends the text, too. In Redis Cluster it goes to the node of the
    /// keys, as [`by_digest`](Self::by_digest) does. `SCRIPT LOAD` goes to all nodes, and fails if
    /// one of them is not there.
    pub(crate) fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        let Arguments { keys, args } = &self.arguments;
        command.arg(script).arg(keys.len()).arg(keys).arg(args);
        command
    }
}

/// Declares a script, which consists of these files.
macro_rules! script {
    ($name:ident, $($file:literal),+) => {
        pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+))
        });
    };
}

/// A script that publishes what it changes.
pub(crate) struct PublishingScript {
    to_channels: Script,
    to_shard_channels: Script,
}

impl PublishingScript {
    /// Returns the script that publishes to the channels of the node of its keys, or that publishes to all nodes.
    pub(crate) fn to_shard_channels(&self, is_to_shard: bool) -> &Script {
        if is_to_shard { &self.to_shard_channels } else { &self.to_channels }
    }
}

/// Declares a script that publishes, which consists of `publish.lua`, and of these files before and after it.
macro_rules! publishing_script {
    ($name:ident, [$($before:literal)?], $file:literal) => {
        pub(crate) static $name: LazyLock<PublishingScript> = LazyLock::new(|| PublishingScript {
            to_channels: publishing_script!("PUBLISH", [$($before)?], $file),
            to_shard_channels: publishing_script!("SPUBLISH", [$($before)?], $file),
        });
    };
    ($command:literal, [$($before:literal)?], $file:literal) => {
        Script::new(concat!(
            "local PUBLISH = '", $command, "'\n",
            $(include_str!(concat!("scripts/", $before, ".lua")),)?
            include_str!("scripts/publish.lua"),
            include_str!(concat!("scripts/", $file, ".lua")),
        ))
    };
}

script!(LOG_LOAD, "log", "log_load");
script!(LOG_READ, "log", "log_read");
script!(LOG_MESSAGES, "log", "log_messages");
publishing_script!(LOG_APPEND, ["log"], "log_append");
publishing_script!(LOG_FRAMES, [], "log_frames");
script!(LOG_SNAPSHOT, "log", "log_snapshot");
publishing_script!(LOG_DELETE, ["log"], "log_delete");
publishing_script!(LOG_RENAME, ["log"], "log_rename");
script!(LOG_LIST, "log", "log_list");
publishing_script!(LOG_TRIM, ["log"], "log_trim");
script!(LOG_CHATS, "log_chats");

script!(DELIVERY_ADD, "delivery_add");
script!(DELIVERY_LOAD, "log", "delivery_load");
script!(DELIVERY_NOTE, "log", "delivery_note");

script!(SWEEP_ADD, "sweep_add");

script!(DUE_NEXT, "due_next");
script!(DUE_DONE, "due_done");

script!(LEDGER_LOAD, "ledger_clock", "ledger_load");
script!(LEDGER_LIST, "ledger_clock", "ledger_list");
script!(
    LEDGER_INSERT,
    "ledger_clock",
    "ledger_identity",
    "ledger_write",
    "ledger_elsewhere",
    "ledger_insert"
);
script!(
    LEDGER_SWAP,
    "ledger_clock",
    "ledger_identity",
    "ledger_write",
    "ledger_elsewhere",
    "ledger_swap"
);
script!(LEDGER_PUT, "ledger_clock", "ledger_write", "ledger_put");
script!(LEDGER_FORGET, "ledger_forget");
script!(LEDGER_IDS, "ledger_ids");
script!(LEDGER_LISTS, "ledger_lists");
script!(LEDGER_DELETE, "ledger_elsewhere", "ledger_delete");
#[cfg(feature = "cluster")]
script!(LEDGER_OLDER, "ledger_older");

script!(GUARD_FIRST, "guard_first");
script!(GUARD_SET, "guard_set");

script!(PING, "ping");

script!(CAN_PUBLISH_TO_SHARD, "can_publish_to_shard");

script!(EXISTS, "exists");

script!(USER_MARK, "user_mark");

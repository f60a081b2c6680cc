//! The scripts that Redis runs. Each is one atomic step, and each touches keys of one hash slot
//! only.
//!
//! A script whose reply was lost is run again, but for steps that write rows. Each script of the ledger recognizes what
//! its first run has done, and returns the same reply. Those that delete a user count what is left.

use std::sync::LazyLock;

use redis::{Cmd, ToRedisArgs};

/// The text of a script.
pub(crate) struct Script {
    text: &'static str,
    /// The digest by which Redis knows the text.
    digest: String,
    /// Whether it may be run a second time.
    is_repeatable: bool,
}

impl Script {
    fn new(text: &'static str, is_repeatable: bool) -> Self {
        Script { text, digest: redis::Script::new(text).get_hash().to_owned(), is_repeatable }
    }

    /// Begins an invocation with this key.
    pub(crate) fn key(&self, key: impl ToRedisArgs) -> Invocation<'_> {
        let mut invocation = self.prepare_invoke();
        invocation.key(key);
        invocation
    }

    /// Begins an invocation without keys.
    pub(crate) fn prepare_invoke(&self) -> Invocation<'_> {
        self.with(vec![Arguments::default()])
    }

    /// Returns an invocation with these arguments, one after the other.
    pub(crate) fn with(&self, arguments: Vec<Arguments>) -> Invocation<'_> {
        Invocation { script: self, arguments }
    }
}

/// A script with its keys and arguments.
pub(crate) struct Invocation<'a> {
    script: &'a Script,
    pub(crate) arguments: Vec<Arguments>,
}

/// The keys and arguments of a script.
#[derive(Default)]
pub(crate) struct Arguments {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) args: Vec<Vec<u8>>,
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
}

impl Invocation<'_> {
    pub(crate) fn key(&mut self, key: impl ToRedisArgs) -> &mut Self {
        self.last().key(key);
        self
    }

    pub(crate) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.last().arg(arg);
        self
    }

    fn last(&mut self) -> &mut Arguments {
        self.arguments.last_mut().expect("an invocation has arguments")
    }

    pub(crate) fn is_repeatable(&self) -> bool {
        self.script.is_repeatable
    }

    /// Returns a script for the node of the keys, which changes nothing.
    pub(crate) fn probe(&self) -> Invocation<'static> {
        let mut keys = self.arguments.iter().flat_map(|arguments| &arguments.keys);
        EXISTS.key(keys.next().map(Vec::as_slice).unwrap_or_default())
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
        let count = self.arguments.iter().map(|arguments| arguments.keys.len()).sum::<usize>();
        command.arg(script).arg(count);
        for arguments in &self.arguments {
            command.arg(&arguments.keys);
        }
        for arguments in &self.arguments {
            command.arg(&arguments.args);
        }
        command
    }
}

/// Declares a script, which consists of these files.
macro_rules! script {
    ($name:ident, $($file:literal),+) => {
        pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+), true)
        });
    };
}

#[cfg(feature = "chat")]
macro_rules! steps {
    ($name:ident, $publish:literal, $is_repeatable:literal) => {
        static $name: LazyLock<Script> = LazyLock::new(|| {
            let text =
                concat!("local PUBLISH = ", $publish, "\n", include_str!("scripts/steps.lua"));
            Script::new(text, $is_repeatable)
        });
    };
}

#[cfg(feature = "chat")]
steps!(READS, "nil", true);
#[cfg(feature = "chat")]
steps!(WRITES_TO_SHARD, "'SPUBLISH'", false);
#[cfg(feature = "chat")]
steps!(WRITES_TO_ALL, "'PUBLISH'", false);

/// Returns the script that runs steps over rows. Those that write are published to the channels of the node of its keys,
/// or of all nodes.
#[cfg(feature = "chat")]
pub(crate) fn steps(is_read: bool, is_to_shard: bool) -> &'static Script {
    match (is_read, is_to_shard) {
        (true, _) => &READS,
        (false, true) => &WRITES_TO_SHARD,
        (false, false) => &WRITES_TO_ALL,
    }
}

/// Whether a command may be sent a second time, if the reply to the first one was lost.
#[cfg(feature = "cluster")]
pub(crate) fn is_repeatable(command: &Cmd) -> bool {
    #[cfg(feature = "chat")]
    let writes: [&Script; 2] = [&WRITES_TO_SHARD, &WRITES_TO_ALL];
    #[cfg(not(feature = "chat"))]
    let writes: [&Script; 0] = [];
    let script = command.args_iter().nth(1);
    let is = |text: &str| script == Some(redis::Arg::Simple(text.as_bytes()));
    !writes.iter().any(|script| is(&script.digest) || is(script.text))
}

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
#[cfg(feature = "chat")]
script!(LEDGER_MARK, "ledger_mark");
#[cfg(feature = "cluster")]
script!(LEDGER_OLDER, "ledger_older");

script!(GUARD_FIRST, "guard_first");
script!(GUARD_SET, "guard_set");

script!(PING, "ping");

script!(CAN_PUBLISH_TO_SHARD, "can_publish_to_shard");

script!(EXISTS, "exists");

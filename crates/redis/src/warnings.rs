//! [`check`]: warns if the configuration of Redis may lose data.

use redis::{Cmd, Value};

use crate::connection::{Connection, with_timeout};

/// Logs a warning if Redis may evict keys, if it loses writes when it is killed, and if
/// these settings cannot be read.
pub(crate) async fn check(connection: &Connection, is_durable: bool) {
    let (memory, persistence, fsync) = tokio::join!(
        texts(connection, &["INFO", "memory"]),
        texts(connection, &["INFO", "persistence"]),
        texts(connection, &["CONFIG", "GET", "appendfsync"]),
    );
    check_eviction(&memory);
    check_persistence(&persistence, &fsync, is_durable);
}

fn check_eviction(memory: &[String]) {
    let policies: Vec<&str> = fields(memory, "maxmemory_policy:").collect();
    match policies.iter().find(|policy| **policy != "noeviction") {
        Some(policy) => tracing::warn!(
            policy,
            "this Redis may evict chats and approvals, which are lost then: set maxmemory-policy \
             to noeviction"
        ),
        None if policies.is_empty() => tracing::warn!(
            "the maxmemory-policy of Redis cannot be read; it should be noeviction: else Redis may \
             evict chats and approvals"
        ),
        None => {}
    }
}

fn check_persistence(persistence: &[String], fsync: &[String], is_durable: bool) {
    let enabled: Vec<&str> = fields(persistence, "aof_enabled:").collect();
    // The reply is the name of the setting and its value.
    let fsync = fsync.iter().map(String::as_str).filter(|text| *text != "appendfsync");
    let fsync: Vec<&str> = fsync.collect();
    let loses_writes = enabled.iter().any(|enabled| *enabled != "1")
        || fsync.iter().any(|fsync| *fsync != "always");
    if is_durable && loses_writes {
        tracing::warn!(
            "this Redis is declared durable, but its settings say that it loses writes: after a \
             restart an approved call may be executed a second time; set appendonly to yes and \
             appendfsync to always, or remove `RedisOptions::assume_durable`"
        );
    }
    if enabled.iter().any(|enabled| *enabled != "1") {
        tracing::warn!(
            declared_durable = is_durable,
            "a restart of this Redis loses chats and approvals: set appendonly to yes"
        );
    } else if let Some(fsync) = fsync.iter().find(|fsync| **fsync != "always") {
        tracing::warn!(
            fsync,
            declared_durable = is_durable,
            "a restart of this Redis may lose the last chats and approvals: set appendfsync to \
             always"
        );
    } else if enabled.is_empty() || is_durable && fsync.is_empty() {
        tracing::warn!(
            declared_durable = is_durable,
            "the persistence settings of Redis cannot be read: appendonly should be yes, and \
             appendfsync always"
        );
    }
}

/// Returns all texts in the reply to a command, or none if it fails. Redis Cluster replies for each
/// of its nodes.
async fn texts(connection: &Connection, words: &[&str]) -> Vec<String> {
    let ((mut connection, _), mut command) = (connection.current(), Cmd::new());
    command.arg(words);
    let mut found = Vec::new();
    if let Ok(reply) = with_timeout(command.query_async::<Value>(&mut connection)).await {
        collect(reply, &mut found);
    }
    found
}

fn collect(reply: Value, texts: &mut Vec<String>) {
    match reply {
        Value::BulkString(bytes) => texts.extend(String::from_utf8(bytes)),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => texts.push(text),
        Value::Array(values) => values.into_iter().for_each(|value| collect(value, texts)),
        Value::Map(pairs) => pairs.into_iter().for_each(|(_, value)| collect(value, texts)),
        _ => {}
    }
}

/// Returns the values of a field in the texts.
fn fields<'a>(texts: &'a [String], name: &str) -> impl Iterator<Item = &'a str> {
    texts.iter().flat_map(|text| text.lines()).filter_map(move |line| line.strip_prefix(name))
}

//! Approvals in a Redis Cluster: each in the bucket of its requester, and the lists of many requesters, which name
//! too many records and never too few.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures::future::{join_all, poll_immediate};
use test_support::contention::{self, InsertOne, claim_for};
use test_support::external_processes::redis_cluster::RedisCluster;
use test_support::within_patience;
use tokio::task::yield_now;
use tokio::time::sleep;
use ui_message_stream::approval::store::{
    ApprovalUse, LedgerStore, LedgerStoreError, ListRecords, PendingLimits, RecordList,
    ReplayGuard, update,
};
use ui_message_stream::approval::{
    ApprovalRecord, ApprovalState, NoticeDelivery, Principal, RecordId, RecordedDecision,
    RevocationReason, Stepped,
};
use ui_message_stream_redis::{RedisOptions, RedisStore, RedisStoreError};

use crate::backend::keys;

#[tokio::test]
async fn approvals_are_on_all_nodes_and_each_is_with_the_others_of_its_requester() {
    let Some(cluster) = RedisCluster::start() else { return };
    let store = connect(&cluster).await;
    let records: Vec<_> = (0..12).map(|number| record(&user(number), 1)).collect();
    for record in &records {
        assert!(store.insert(record).await.unwrap());
        assert!(store.insert(&self::record(&record.requester, 2)).await.unwrap());
        let until = record.expires_at;
        let used = store.set_if_absent(record.id, ApprovalUse::Denied, until).await.unwrap();
        assert_eq!(used, None);
    }
    for kind in
        [":record:", ":use:", ":all:", ":list:requester:", ":list:pending", ":list:to-notify"]
    {
        let nodes = cluster.nodes().iter();
        let nodes = nodes.filter(|node| keys(node).iter().any(|key| key.contains(kind)));
        assert_eq!(nodes.count(), 3, "{kind}");
    }
    let used: BTreeSet<_> = all_keys(&cluster).iter().map(|key| slot(&cluster, key)).collect();
    assert!(used.len() > 12, "{used:?}");
    for record in &records {
        let with_it = |key: &String| {
            key.contains(&record.id.to_string())
                || key.ends_with(RecordList::of_requester(&record.requester).as_str())
        };
        let mut with_it: Vec<String> = all_keys(&cluster).into_iter().filter(with_it).collect();
        assert_eq!(with_it.len(), 3, "{with_it:?}");
        with_it.iter_mut().for_each(|key| *key = slot(&cluster, key));
        with_it.dedup();
        assert_eq!(with_it.len(), 1, "{with_it:?}");
    }
}

#[tokio::test]
async fn approvals_of_many_requesters_are_listed_decided_and_deleted_and_leave_no_places() {
    let Some(cluster) = RedisCluster::start() else { return };
    let store = connect(&cluster).await;
    let mut records: Vec<_> = (0..20).map(|number| record(&user(number), 1)).collect();
    for record in &records {
        assert!(store.insert(record).await.unwrap());
    }
    records.sort_by_key(|record| (record.expires_at, record.id));
    let ids: Vec<RecordId> = records.iter().map(|record| record.id).collect();
    for list in lists() {
        for limit in [1, 7, 20, 64] {
            let mut listed = listed(&store, ListRecords { limit, ..(&list).into() }).await;
            // The events are listed by the time of the request.
            listed.sort_by_key(|id| ids.iter().position(|it| it == id));
            assert_eq!(listed, ids, "{list:?} {limit}");
        }
    }
    assert_eq!(places(&cluster, ":list:requester:").len(), 3 * 20);

    let hour = Duration::from_secs(3600);
    for (number, id) in ids.iter().enumerate().take(16) {
        match number % 4 {
            0 => {
                let (_, claimed) = claim_for(&store, *id, 1, hour).await.unwrap().unwrap();
                assert!(matches!(claimed, Stepped::Granted(_)));
            }
            1 => {
                let deny = |record: &ApprovalRecord, now| {
                    record.deny(&RecordedDecision::new(record.requester.clone(), now))
                };
                update(&store, *id, deny).await.unwrap().unwrap();
            }
            2 => {
                let expire = |record: &ApprovalRecord, _| record.expire(record.expires_at);
                update(&store, *id, expire).await.unwrap().unwrap();
            }
            _ => {
                let revoke =
                    |record: &ApprovalRecord, now| record.revoke(RevocationReason::ByHost, now);
                assert!(update(&store, *id, revoke).await.unwrap().unwrap().1);
            }
        }
    }
    for list in &lists()[..2] {
        assert_eq!(listed(&store, list.into()).await, ids[16..], "{list:?}");
    }
    assert_eq!(listed(&store, (&RecordList::to_notify()).into()).await.len(), 20);
    // The lists of the audience: all, of the chat, and of the tool.
    for (list, left) in [(":pending", 4), (":audience:", 3 * 4), (":to-notify", 20)] {
        assert_eq!(places(&cluster, list).len(), left, "{list}");
    }

    for record in &records {
        let deleted = store.delete_user(&record.requester).await.unwrap();
        assert_eq!(deleted.approvals, 1);
    }
    assert_eq!(all_keys(&cluster), Vec::<String>::new());
}

#[tokio::test]
async fn of_many_claims_and_leases_at_once_each_leaves_one_place_in_each_list() {
    let Some(cluster) = RedisCluster::start() else { return };
    let stores = [connect(&cluster).await, connect(&cluster).await];
    for number in 0..10 {
        let record = record(&user(number), 1);
        assert!(stores[0].insert(&record).await.unwrap());
        let leases =
            (0..8).map(|number| update(&stores[number % 2], record.id, NoticeDelivery::lease));
        let leased = join_all(leases).await;
        let leased = leased
            .into_iter()
            .filter(|leased| leased.as_ref().unwrap().as_ref().unwrap().1.is_some());
        assert_eq!(leased.count(), 1);
        let minute = Duration::from_secs(60);
        let claims =
            (0..8).map(|number| claim_for(&stores[number % 2], record.id, number as u8, minute));
        let claims = join_all(claims).await;
        let is_granted = |claim: &Stepped| matches!(claim, Stepped::Granted(_));
        let granted = claims
            .into_iter()
            .filter(|claim| is_granted(&claim.as_ref().unwrap().as_ref().unwrap().1));
        assert_eq!(granted.count(), 1);
    }
    let left = [":pending", ":audience:", ":to-notify"].map(|list| places(&cluster, list).len());
    assert_eq!(left, [0, 0, 10]);
}

#[tokio::test]
async fn an_insertion_that_stops_before_the_record_leaves_places_that_readers_remove() {
    let Some(cluster) = RedisCluster::start() else { return };
    let store = connect(&cluster).await;
    let (kept, stopped) = (record(&user(0), 1), record(&user(1), 1));
    assert!(store.insert(&kept).await.unwrap());
    let of_many = |cluster| {
        let lists = [":pending", ":audience:", ":to-notify"];
        lists.map(|list| places(cluster, list).len()).iter().sum::<usize>()
    };
    assert_eq!(of_many(&cluster), 5);
    let is_put = || of_many(&cluster) == 10;
    stop_when(store.insert(&stopped), is_put).await;
    assert!(store.load(&[stopped.id]).await.unwrap().records.is_empty());
    for left in [10, 5] {
        // The record may still be written: the places stay.
        for list in lists().iter().chain(&parts_of_audience()) {
            assert_eq!(listed(&store, list.into()).await, [kept.id], "{list:?}");
        }
        assert_eq!(of_many(&cluster), left);
        // The place of a record that shows it stays.
        make_older(&cluster);
    }

    // It is inserted later, and two clients have stopped before.
    stop_when(store.insert(&stopped), is_put).await;
    assert!(store.insert(&stopped).await.unwrap());
    assert_eq!(of_many(&cluster), 15);
    assert!(store.insert(&stopped).await.unwrap());
    assert_eq!(of_many(&cluster), 15, "a repetition leaves no places");
    for list in lists().iter().chain(&parts_of_audience()) {
        for limit in [1, 64] {
            let page = ListRecords { limit, ..list.into() };
            let listed: BTreeSet<_> = listed(&store, page).await.into_iter().collect();
            assert_eq!(listed, BTreeSet::from([kept.id, stopped.id]), "{list:?}");
        }
    }
}

#[tokio::test]
async fn a_claim_that_stops_after_the_record_leaves_places_that_readers_remove() {
    let Some(cluster) = RedisCluster::start() else { return };
    let store = connect(&cluster).await;
    let (kept, claimed) = (record(&user(0), 1), record(&user(1), 1));
    for record in [&kept, &claimed] {
        assert!(store.insert(record).await.unwrap());
    }
    let key = all_keys(&cluster).into_iter().find(|key| key.ends_with(&claimed.id.to_string()));
    let revision = format!("HGET {} revision", key.unwrap());
    let claim = claim_for(&store, claimed.id, 1, Duration::from_secs(60));
    stop_when(claim, || command(&cluster, &revision) == "1").await;
    let of_many = || [":pending", ":audience:"].map(|list| places(&cluster, list).len());
    for left in [[2, 6], [1, 3]] {
        for list in lists()[..2].iter().chain(&parts_of_audience()) {
            assert_eq!(listed(&store, list.into()).await, [kept.id], "{list:?}");
        }
        assert_eq!(of_many(), left);
        make_older(&cluster);
    }
    let claimed = store.load(&[claimed.id]).await.unwrap().records.remove(0);
    assert!(matches!(claimed.record.state, ApprovalState::Claimed { .. }));
}

#[tokio::test]
async fn a_list_names_each_record_that_is_pending_while_others_are_written_and_replies_are_lost() {
    let Some((_cluster, proxies)) = RedisCluster::start_behind_proxies() else { return };
    let options = || RedisOptions::new().connect_cluster(proxies.iter().map(|proxy| &proxy.url));
    let (writer, reader) = (options().await.unwrap(), options().await.unwrap());
    let pending = std::sync::Mutex::new(BTreeSet::new());
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::SeqCst;
    let write = async {
        let writes = (0..8_u8).map(async |number| {
            for round in 0..10 {
                let record = record(&user(number.into()), round);
                if round % 3 == 0 {
                    proxies[usize::from(number) % 3].lose_replies(1);
                }
                // Its reply may be lost again, with that of another one.
                while writer.insert(&record).await.is_err() {}
                pending.lock().unwrap().insert(record.id);
                while update(&writer, record.id, NoticeDelivery::lease).await.is_err() {}
                if round % 2 == 0 {
                    continue;
                }
                pending.lock().unwrap().remove(&record.id);
                let minute = Duration::from_secs(60);
                while claim_for(&writer, record.id, 1, minute).await.is_err() {}
            }
        });
        join_all(writes.collect::<Vec<_>>()).await;
        is_done.store(true, order);
    };
    let read = async {
        loop {
            let is_last = is_done.load(order);
            for list in &lists()[..2] {
                let before = pending.lock().unwrap().clone();
                let page = ListRecords { limit: 16, ..list.into() };
                let listed = loop {
                    if let Ok(listed) = try_listed(&reader, page).await {
                        break BTreeSet::from_iter(listed);
                    }
                };
                let after = pending.lock().unwrap().clone();
                let mut missing = before.intersection(&after).filter(|id| !listed.contains(id));
                assert_eq!(missing.next(), None, "{list:?}");
                assert!(!is_last || listed == after);
            }
            if is_last {
                return;
            }
        }
    };
    within_patience(async { tokio::join!(write, read) }).await;
    assert_eq!(pending.lock().unwrap().len(), 8 * 5);
}

#[tokio::test]
async fn an_id_names_a_bucket_and_nothing_else() {
    let Some(cluster) = RedisCluster::start() else { return };
    let store = connect(&cluster).await;
    let record = record(&user(0), 1);
    assert!(store.insert(&record).await.unwrap());
    let stored = all_keys(&cluster);
    let forged = [
        RecordId::of_requester(&user(0), [2; 16]),
        // The same bytes in another bucket.
        RecordId::of_requester(&user(1), [1; 16]),
    ];
    assert_eq!(forged[0].bucket(), record.id.bucket());
    for forged in forged {
        assert!(store.load(&[forged]).await.unwrap().records.is_empty());
        let claimed = claim_for(&store, forged, 1, Duration::from_secs(60)).await.unwrap();
        assert!(claimed.is_none());
        let mut of_forged = record.clone();
        of_forged.id = forged;
        assert!(!store.compare_and_swap(&of_forged, 0).await.unwrap());
    }
    assert_eq!(store.load(&[record.id, forged[0], forged[1]]).await.unwrap().records.len(), 1);
    // It would not be found with the others of its requester, nor counted.
    let mut foreign = record.clone();
    foreign.id = forged[1];
    let refused = store.insert_all(&[record, foreign], PendingLimits::NONE).await.unwrap_err();
    let refused = std::error::Error::source(&refused).unwrap().to_string();
    assert!(refused.contains("create it with `RecordId::of_requester`"), "{refused}");
    assert_eq!(all_keys(&cluster), stored);
}

#[tokio::test]
async fn the_restart_of_a_node_voids_the_requests_in_its_buckets_and_no_others() {
    let Some(mut cluster) = RedisCluster::start() else { return };
    let store = connect(&cluster).await;
    let records: Vec<_> = (0..12).map(|number| record(&user(number), 1)).collect();
    for record in &records {
        assert!(store.insert(record).await.unwrap());
    }
    let stored_at_it = keys(&cluster.nodes()[1]).join(" ");
    let is_at_it = |record: &&ApprovalRecord| stored_at_it.contains(&record.id.to_string());
    let at_it = records.iter().filter(is_at_it).count();
    assert!((1..12).contains(&at_it));
    cluster.node_mut(1).kill();
    cluster.node_mut(1).start_again();
    cluster.wait_until_complete();
    for record in &records {
        let again = async {
            loop {
                match claim_for(&store, record.id, 1, Duration::from_secs(60)).await {
                    Ok(claimed) => return claimed.unwrap(),
                    // The connection does not know yet that the node is back.
                    Err(_) => sleep(Duration::from_millis(50)).await,
                }
            }
        };
        let (record, claimed) = within_patience(again).await;
        let is_granted = matches!(claimed, Stepped::Granted(_));
        assert_eq!(is_granted, !is_at_it(&&record), "{claimed:?}");
        let is_unknown = matches!(record.state, ApprovalState::OutcomeUnknown { .. });
        assert_eq!(is_unknown, is_at_it(&&record));
    }
}

#[tokio::test]
async fn approvals_of_a_version_that_kept_all_in_one_slot_are_refused_by_name_at_start() {
    let Some(cluster) = RedisCluster::start() else { return };
    let older = "{ui-message-stream:}";
    let id = RecordId::from_bytes([1; 16]);
    for write in [
        format!("HSET {older}record:{id} record {{}}"),
        format!("HSET {older}use:{id} name claimed"),
        format!("ZADD {older}list:pending 0 1"),
        format!("ZADD {older}all:ada 0 1"),
        // A server of that version is at work.
        format!("SET {older}clock 1"),
    ] {
        // What is not of approvals is as it was.
        command(&cluster, &format!("ZADD {older}sweep 0 1"));
        connect(&cluster).await;
        command(&cluster, &write);
        let options = RedisOptions::new();
        let refused = options.clone().connect_cluster(cluster.urls()).await.unwrap_err();
        assert!(matches!(refused, RedisStoreError::OlderApprovals(_)), "{write}: {refused:?}");
        let text = refused.to_string();
        assert!(text.contains(&format!("{older}record:*")), "{text}");
        options.with_prefix("other:").connect_cluster(cluster.urls()).await.unwrap();
        command(&cluster, &format!("DEL {}", write.split(' ').nth(1).unwrap()));
    }
}

async fn connect(cluster: &RedisCluster) -> RedisStore {
    RedisOptions::new().connect_cluster(cluster.urls()).await.unwrap()
}

fn user(number: usize) -> Principal {
    Principal::new(format!("user {number}"))
}

/// Creates a pending approval with an audience and an event to deliver.
fn record(requester: &Principal, number: u8) -> ApprovalRecord {
    let mut record = contention::record(RecordId::of_requester(requester, [number; 16]));
    record.requester = requester.clone();
    record.audience = vec!["team".into()];
    record.delivery = Some(NoticeDelivery::default());
    record
}

/// Returns the lists of many requesters: of pending records, of the audience, and of events.
fn lists() -> [RecordList; 3] {
    [RecordList::pending(), RecordList::of_audience(None, "team"), RecordList::to_notify()]
}

fn parts_of_audience() -> [RecordList; 2] {
    let [_, audience, _] = lists();
    [audience.in_chat(&"chat".into()), audience.of_tool("delete_file")]
}

/// Returns the ids of this page of a list and of all pages after it.
async fn listed(store: &RedisStore, page: ListRecords<'_>) -> Vec<RecordId> {
    try_listed(store, page).await.unwrap()
}

async fn try_listed(
    store: &RedisStore,
    mut page: ListRecords<'_>,
) -> Result<Vec<RecordId>, LedgerStoreError> {
    let mut ids = Vec::new();
    loop {
        let listed = store.read_list(page).await?;
        ids.extend(listed.records.iter().map(|stored| stored.record.id));
        page.after = listed.next;
        if page.after.is_none() {
            return Ok(ids);
        }
    }
}

/// Polls an operation until this is so, and drops it: its client has stopped.
async fn stop_when(operation: impl Future, mut is_so: impl FnMut() -> bool) {
    let mut operation = pin!(operation);
    while !is_so() {
        assert!(poll_immediate(&mut operation).await.is_none(), "the operation has ended");
        // The connection sends what the operation has begun.
        yield_now().await;
    }
}

/// Makes all places a minute older that have a time.
fn make_older(cluster: &RedisCluster) {
    let script = "for _, place in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do \
        if #place > 49 then redis.call('ZREM', KEYS[1], place) \
        local put_at = string.format('%016.0f', tonumber(string.sub(place, 51, 66)) - 60000) \
        place = string.sub(place, 1, 50) .. put_at .. string.sub(place, 67) \
        redis.call('ZADD', KEYS[1], 0, place) end end return 1";
    for list in all_keys(cluster).iter().filter(|key| key.contains(":list:")) {
        assert_eq!(command(cluster, &format!("EVAL \"{script}\" 1 {list}")), ":1");
    }
}

/// Returns what the lists with this name hold.
fn places(cluster: &RedisCluster, name: &str) -> Vec<String> {
    let script = "return table.concat(redis.call('ZRANGE', KEYS[1], 0, -1), ' ')";
    let lists = all_keys(cluster).into_iter();
    let lists = lists.filter(|key| key.contains(":list:") && key.contains(name));
    let places = lists.map(|list| command(cluster, &format!("EVAL \"{script}\" 1 {list}")));
    places.flat_map(|places| places.split(' ').map(str::to_owned).collect::<Vec<_>>()).collect()
}

fn all_keys(cluster: &RedisCluster) -> Vec<String> {
    cluster.nodes().iter().flat_map(keys).collect()
}

fn slot(cluster: &RedisCluster, key: &str) -> String {
    cluster.nodes()[0].command(&format!("CLUSTER KEYSLOT {key}"))
}

/// Executes a command on the node that has its key.
fn command(cluster: &RedisCluster, command: &str) -> String {
    let mut replies = cluster.nodes().iter().map(|node| node.command(command));
    replies.find(|reply| !reply.starts_with("-MOVED")).unwrap()
}

//! Listings against a model, and how much of a store they read.

use super::*;
use crate::buckets::InMemory;
use crate::budget::Budget;
use crate::gateway::Gateway;
use ashlar_env::real::Real;
use ashlar_objects::{
    At, Attributes, Change, Condition, Engine, Limits, Listing, Memory, Object as Found, Put, Result, Usage,
};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range as Span;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A store that counts what listings read.
struct Counted {
    memory: Memory,
    lists: AtomicU64,
    listed: AtomicU64,
}

impl Engine for Counted {
    fn name(&self) -> String {
        Engine::name(&self.memory)
    }
    fn limits(&self) -> Limits {
        Engine::limits(&self.memory)
    }
    async fn put(&self, name: &Name, data: Vec<Bytes>, put: Put) -> Result<Stat> {
        Engine::put(&self.memory, name, data, put).await
    }
    async fn write(&self, name: &Name, at: At, data: Vec<Bytes>, change: Change) -> Result<Stat> {
        Engine::write(&self.memory, name, at, data, change).await
    }
    async fn compose(&self, name: &Name, parts: &[Name], put: Put) -> Result<Stat> {
        Engine::compose(&self.memory, name, parts, put).await
    }
    async fn set_attributes(&self, name: &Name, attributes: Attributes, change: Change) -> Result<Stat> {
        Engine::set_attributes(&self.memory, name, attributes, change).await
    }
    async fn get(&self, name: &Name, range: Span<u64>, condition: Condition) -> Result<Found> {
        Engine::get(&self.memory, name, range, condition).await
    }
    async fn stat(&self, name: &Name) -> Result<Stat> {
        Engine::stat(&self.memory, name).await
    }
    async fn delete(&self, name: &Name, change: Change) -> Result<()> {
        Engine::delete(&self.memory, name, change).await
    }
    async fn list(&self, request: List) -> Result<Listing> {
        let listing = Engine::list(&self.memory, request).await?;
        self.lists.fetch_add(1, Ordering::Relaxed);
        self.listed.fetch_add(listing.objects.len() as u64, Ordering::Relaxed);
        Ok(listing)
    }
    async fn sync(&self) -> Result<()> {
        Engine::sync(&self.memory).await
    }
    fn usage(&self) -> Usage {
        Engine::usage(&self.memory)
    }
}

struct Stand {
    real: Real,
    gateway: Arc<Gateway>,
    store: Arc<Counted>,
}

impl Stand {
    fn new(keys: &[String]) -> Stand {
        let real = Real::start(1).expect("io_uring is available");
        let env = real.env();
        let buckets = Arc::new(InMemory::new(env.clone(), 1 << 20));
        let budget = Budget::new(1 << 20, Duration::from_secs(1));
        let gateway = Arc::new(Gateway::new(env.clone(), buckets, budget, 1 << 20));
        let memory = Memory::new(env, 1 << 30);
        let store = Arc::new(Counted { memory, lists: AtomicU64::new(0), listed: AtomicU64::new(0) });
        let (into, keys) = (store.clone(), keys.to_vec());
        real.block_on(async move {
            // What the door keeps for itself must never be seen.
            for own in [&b"\0s1/2"[..], b"\0uaaa\0id", b"\0p/1"] {
                let name = Name::new(own.to_vec()).expect("a name");
                Engine::put(&*into, &name, vec![], Put::default()).await.expect("room");
            }
            for key in keys {
                let name = Name::new(key.into_bytes()).expect("a name");
                Engine::put(&*into, &name, vec![], Put::default()).await.expect("room");
            }
        });
        Stand { real, gateway, store }
    }

    /// A page; its lines as text, and whether there are more.
    fn page(&self, prefix: &str, delimiter: &str, after: &str, limit: usize) -> (Vec<String>, bool) {
        let wanted = Wanted { prefix: prefix.into(), delimiter: delimiter.into(), after: after.into(), limit };
        let (gateway, store) = (self.gateway.clone(), self.store.clone() as Store);
        let page = self.real.block_on(async move { gateway.lines(&store, &wanted).await });
        let page = page.expect("a page");
        (page.lines.iter().map(Line::text).collect(), page.more)
    }
}

/// What S3 says that a listing is, written down plainly.
fn expected(keys: &BTreeSet<String>, prefix: &str, delimiter: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for key in keys.iter().filter(|key| key.starts_with(prefix)) {
        let cut = match key[prefix.len()..].find(delimiter) {
            Some(at) if !delimiter.is_empty() => &key[..prefix.len() + at + delimiter.len()],
            _ => key,
        };
        if lines.last().map(String::as_str) != Some(cut) {
            lines.push(cut.into());
        }
    }
    lines
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn pages_are_those_of_the_model(
        keys in proptest::collection::btree_set("[a-c/]{1,6}|[a-c/]{1,3}ü|[a-c]\u{10ffff}/?", 0..60),
        prefix in "[a-c/]{0,2}|\0?",
        delimiter in "/?|a|/a|ü",
        limit in 1..8usize,
    ) {
        let stand = Stand::new(&keys.iter().cloned().collect::<Vec<_>>());
        let expected = expected(&keys, &prefix, &delimiter);
        let (mut after, mut found) = (String::new(), Vec::new());
        loop {
            let (lines, more) = stand.page(&prefix, &delimiter, &after, limit);
            prop_assert!(lines.len() <= limit && (!more || lines.len() == limit));
            found.extend(lines);
            prop_assert!(found.len() <= expected.len(), "{:?} instead of {:?}", found, expected);
            match found.last() {
                Some(last) if more => after = from_token(&to_token(last)).expect("our own token"),
                _ => break,
            }
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn tokens(text in "\\PC{1,40}", noise in "\\PC{0,40}") {
        prop_assert_eq!(from_token(&to_token(&text)).ok(), Some(text));
        let _ = from_token(&noise);
    }
}

#[test]
fn a_common_prefix_costs_one_seek() {
    let keys: Vec<String> =
        (0..5).flat_map(|top| (0..4000).map(move |number| format!("dir{top}/{number:05}"))).collect();
    let stand = Stand::new(&keys);
    let (lines, more) = stand.page("", "/", "", 1000);
    assert_eq!((lines.len(), more), (5, false));
    let (lists, listed) = (stand.store.lists.load(Ordering::Relaxed), stand.store.listed.load(Ordering::Relaxed));
    assert_eq!(lists, 6, "a seek for each prefix, and one that finds nothing more");
    assert!(listed <= 1000 + 5 * PAGE_AFTER_SEEK as u64, "{listed} of 20,000 objects were read");
}

//! First stage: a call becomes the lookups of its paths, and itself.

use super::step::{Chain, Step};
use crate::trace::{Op, Record};

/// Components of a path that are looked at; what is behind them is taken for one.
const DEPTH_MAX: usize = 256;

/// The chain of a call.
pub fn parse(call: u64, record: &Record) -> Chain {
    let step = Step::of(call, record);
    let mut chain = Chain::new();
    if uses_path(record) {
        chain.extend(prefixes(&record.path).map(|path| step.lookup(path)));
    }
    if uses_path2(record.op) {
        chain.extend(prefixes(&record.path2).map(|path| step.lookup(path)));
    }
    chain.push(step);
    chain
}

/// Whether `path` is looked up: of a call on an open file it is not.
fn uses_path(record: &Record) -> bool {
    !matches!(record.op, Op::Close | Op::Sync) && (record.op == Op::Open || record.file == 0)
}

/// Whether `path2` is a name. (Of a symbolic link it is text, and of a copy an open file.)
fn uses_path2(op: Op) -> bool {
    matches!(op, Op::Rename | Op::Link)
}

/// `/a`, `/a/b` and `/a/b/c` of `/a/b/c`. A relative path has its components too.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.char_indices().filter(|(at, char)| *char == '/' && *at > 0).map(|(at, _)| at);
    let last = (!path.trim_end_matches('/').is_empty() && !path.ends_with('/')).then_some(path.len());
    ends.take(DEPTH_MAX).chain(last).map(|end| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::step::Kind;

    fn paths(record: &Record) -> Vec<String> {
        let chain = parse(7, record);
        assert!(chain.iter().all(|step| step.call == 7 && step.at_ns == record.at_ns && step.op == Some(record.op)));
        assert_eq!(chain.iter().filter(|step| step.kind == Kind::Call).count(), 1, "one timestamp, one call");
        chain.into_iter().filter(|step| step.kind == Kind::Lookup).map(|step| step.path).collect()
    }

    #[test]
    fn paths_become_lookups() {
        assert_eq!(paths(&Record { at_ns: 5, ..Record::new(Op::Open, "/a/b/c") }), ["/a", "/a/b", "/a/b/c"]);
        let rename = Record { path2: "/d".into(), ..Record::new(Op::Rename, "/a/b") };
        assert_eq!(paths(&rename), ["/a", "/a/b", "/d"]);
        assert_eq!(paths(&Record { path2: "x/y".into(), ..Record::new(Op::Symlink, "/a") }), ["/a"]);
        assert_eq!(paths(&Record { file: 3, ..Record::new(Op::Stat, "/a/b") }), [""; 0], "an open file");
        for none in ["", "/"] {
            assert_eq!(paths(&Record::new(Op::Stat, none)), [""; 0]);
        }
        let deep = "/x".repeat(1000);
        assert_eq!(paths(&Record::new(Op::Stat, deep)).len(), DEPTH_MAX + 1);
    }
}

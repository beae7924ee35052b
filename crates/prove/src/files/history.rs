//! One step of a history, and a look at everything.

use super::model::{Body, Model};
use super::operation::{Answer, HANDLES, Op, Refusal, Subject, Target};
use ashlar_vfs::Errno;
use std::collections::BTreeSet;

pub(super) type Found<T> = Result<T, String>;

/// What the steps of a history came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Operations whose answers agreed.
    pub(super) operations: u64,
    /// Operations among them that succeeded.
    pub(super) succeeded: u64,
    /// What the subject does not support.
    pub(super) lacking: BTreeSet<String>,
}

/// Does `op` on both, and compares.
pub(super) async fn step<S: Subject>(subject: &mut S, model: &mut Model, op: &Op, tally: &mut Tally) -> Found<()> {
    let got = subject.apply(op).await;
    if got == Err(Refusal::Posix(Errno::Unsupported)) && subject.may_lack() {
        tally.lacking.insert(kind_of(op));
        return Ok(());
    }
    judge(model, op, &got)?;
    tally.operations += 1;
    tally.succeeded += u64::from(got.is_ok());
    Ok(())
}

/// Does `op` on the model, and compares its answer with what was got.
pub(super) fn judge(model: &mut Model, op: &Op, got: &Result<Answer, Refusal>) -> Found<()> {
    let copied = match got {
        Ok(Answer::Count(copied)) => Some(*copied),
        _ => None,
    };
    let expected = model.apply(op, copied);
    let agree = match (&expected, got) {
        (Ok(expected), Ok(got)) => agree(op, expected, got),
        (Err(expected), Err(Refusal::Posix(got))) => expected == got,
        _ => false,
    };
    if agree {
        return Ok(());
    }
    if let (Ok(Answer::Bytes(expected)), Ok(Answer::Bytes(got))) = (&expected, got) {
        let differs = expected.iter().zip(got).position(|(a, b)| a != b);
        let differs =
            differs.map_or(String::new(), |at| format!(", and byte {at} is {}, not {}", got[at], expected[at]));
        return Err(format!("{op:?} gave {} bytes instead of {}{differs}", got.len(), expected.len()));
    }
    if let (Ok(Answer::Bytes(bytes)), Ok(Answer::Extents(extents))) = (&expected, got) {
        return Err(format!("{op:?} gave {extents:?}, but outside is data, or the {} bytes end before", bytes.len()));
    }
    Err(format!("{op:?} gave {got:?} instead of {expected:?}"))
}

/// Whether an answer is one that the model's allows.
fn agree(op: &Op, expected: &Answer, got: &Answer) -> bool {
    match (expected, got) {
        // Less than everything may be copied, but not nothing.
        (Answer::Count(available), Answer::Count(copied)) => copied <= available && (*copied > 0) == (*available > 0),
        (Answer::Stat(expected), Answer::Stat(got)) => {
            let (mut expected, mut got) = (*expected, *got);
            // What one side does not know says nothing.
            (expected.links, got.links) = (got.links.and(expected.links), expected.links.and(got.links));
            (expected.modified, got.modified) =
                (got.modified.and(expected.modified), expected.modified.and(got.modified));
            expected == got
        }
        (Answer::Bytes(bytes), Answer::Extents(extents)) => covers(extents, bytes),
        (Answer::Names(expected), Answer::Names(got)) => {
            // What is removed meanwhile may be listed or not.
            let removed = match op {
                Op::List { meanwhile, .. } => meanwhile.map(super::operation::name_of),
                _ => None,
            };
            let kept = |name: &&Vec<u8>| Some(*name) != removed.as_ref();
            expected.iter().filter(kept).eq(got.iter().filter(kept)) && got.windows(2).all(|pair| pair[0] != pair[1])
        }
        _ => expected == got,
    }
}

/// Whether these ranges lie within the bytes, in order, and nothing but zeros lies outside them.
fn covers(extents: &[(u64, u64)], bytes: &[u8]) -> bool {
    let (mut at, size) = (0, bytes.len() as u64);
    for (start, end) in extents {
        if *start < at || start >= end || *end > size || bytes[at as usize..*start as usize].iter().any(|b| *b != 0) {
            return false;
        }
        at = *end;
    }
    bytes[at as usize..].iter().all(|byte| *byte == 0)
}

/// What an operation is called where the subject lacks it.
fn kind_of(op: &Op) -> String {
    match op {
        Op::Fallocate { mode, .. } => format!("fallocate {mode:?}"),
        Op::Rename { mode, .. } => format!("rename {mode:?}"),
        _ => format!("{op:?}").split([' ', '{']).next().unwrap_or_default().to_lowercase(),
    }
}

/// Compares everything that has a name or is open.
pub(super) async fn examine<S: Subject>(subject: &mut S, model: &Model, tally: &mut Tally) -> Found<()> {
    let mut model = model.clone();
    for op in observations(&model) {
        step(subject, &mut model, &op, tally).await?;
    }
    Ok(())
}

/// Operations that read everything and change nothing.
pub(super) fn observations(model: &Model) -> Vec<Op> {
    let mut ops = Vec::new();
    let named = model.tree().into_iter().map(|(place, node)| (Target::At(place), node));
    let open = (0..HANDLES).filter_map(|handle| model.handles[handle].map(|node| (Target::Open(handle), node)));
    for (of, node) in named.chain(open) {
        ops.push(Op::Stat { of: of.clone() });
        let node = &model.nodes[node];
        match (&node.body, &of) {
            (Body::File(bytes), _) => {
                ops.push(Op::Read { of: of.clone(), offset: 0, len: bytes.len() as u64 + 10 });
                ops.push(Op::Extents { of: of.clone() });
            }
            (Body::Directory(_), Target::At(place)) => {
                ops.push(Op::List { directory: place.clone(), page: 3, meanwhile: None });
            }
            (Body::Symlink(_), Target::At(place)) => ops.push(Op::Readlink { at: place.clone() }),
            _ => {}
        }
        // Nothing sets those of symbolic links.
        if !matches!(node.body, Body::Symlink(_)) {
            ops.push(Op::ListXattrs { of: of.clone() });
            ops.extend(node.xattrs.keys().map(|name| Op::GetXattr { of: of.clone(), name: *name }));
        }
    }
    ops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::operation::{Place, Stat};
    use ashlar_vfs::{FileKind, RenameMode, Time, XattrMode};

    /// A cut may keep the attribute of a whiteout or take it: who does not look takes the wrong state for the right one.
    #[test]
    fn attributes_of_whatever_can_have_them_are_looked_at() {
        let at = |name: u8| Place { base: None, names: vec![name] };
        let mut model = Model::new(0, 0);
        let mut apply = |op: Op| drop(model.apply(&op, None).expect("the model does it"));
        for (name, kind) in [(0, FileKind::File), (1, FileKind::Fifo)] {
            apply(Op::Create { at: at(name), kind, permissions: 0o644, handle: None });
        }
        apply(Op::Mkdir { at: at(2), permissions: 0o755 });
        // Leaves a whiteout under the name 0.
        apply(Op::Rename { from: at(0), to: at(3), mode: RenameMode::Whiteout { uid: 0, gid: 0 } });
        for name in 0..4 {
            let of = Target::At(at(name));
            apply(Op::SetXattr { of, name: 1, len: 10, mode: XattrMode::Create });
        }
        let all = observations(&model);
        for name in 0..4 {
            let of = Target::At(at(name));
            assert!(all.contains(&Op::ListXattrs { of: of.clone() }), "names of {name}");
            assert!(all.contains(&Op::GetXattr { of, name: 1 }), "value of {name}");
        }
    }

    #[test]
    fn attributes_that_both_know_must_agree() {
        let time = |seconds| Some(Time { seconds, nanos: 0 });
        let stat = |links, modified| {
            let (kind, permissions, uid, gid, size) = (FileKind::File, 0o644, 0, 0, Some(0));
            Answer::Stat(Stat { kind, permissions, links, uid, gid, size, modified })
        };
        let agrees = |one: &Answer, other: &Answer| {
            let of = Target::Open(0);
            agree(&Op::Stat { of: of.clone() }, one, other) && agree(&Op::Stat { of }, other, one)
        };
        assert!(agrees(&stat(Some(2), time(3)), &stat(Some(2), time(3))));
        assert!(agrees(&stat(Some(2), None), &stat(None, time(3))));
        assert!(!agrees(&stat(Some(2), None), &stat(Some(1), None)));
        assert!(!agrees(&stat(None, time(3)), &stat(None, time(4))));
    }
}

//! Fuzz targets of what the kernel sends; see `ashlar_fuzz`.

use crate::abi::*;
use crate::decode::{Message, Operation};
use crate::negotiate::{Limits, negotiate};
use crate::options::Options;
use ashlar_fuzz::{bounded, config, edits, noise};
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        // Any byte but the slash; dots come from below.
        prop::collection::vec((1..u8::MAX).prop_map(|byte| if byte == b'/' { u8::MAX } else { byte }), 1..=255),
        prop::sample::select(vec![&b"."[..], b"..", b"", b"a/b", &[b'x'; 256], b"user.note"]).prop_map(<[u8]>::to_vec),
    ]
}

/// A request's opcode, fixed structure, and the rest.
type Parts = (Opcode, Vec<u8>, Vec<u8>);

/// A request that is right, or nearly: the fixed part has the size of some structure, the rest are names and data.
fn parts() -> impl Strategy<Value = Parts> {
    let opcode = prop::sample::select(Opcode::ALL);
    let fixed = prop::sample::select(vec![0usize, 8, 16, 24, 40, 56, 64, 88])
        .prop_flat_map(|len| prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], len));
    (opcode, fixed, prop::collection::vec(name(), 0..3), noise(60)).prop_map(|(opcode, fixed, names, data)| {
        let mut rest: Vec<u8> = names.into_iter().flat_map(|name| [name, vec![0]].concat()).collect();
        rest.extend(data);
        (opcode, fixed, rest)
    })
}

fn message((opcode, fixed, rest): &Parts) -> Vec<u8> {
    let len = (size_of::<InHeader>() + fixed.len() + rest.len()) as u32;
    let header = InHeader { len, opcode: *opcode as u32, ..InHeader::default() };
    [header.as_bytes(), fixed, rest].concat()
}

/// Looks at all that a decoded request refers to.
fn touch(operation: Operation<'_>) -> usize {
    let known = |name: &[u8]| {
        assert!(!name.is_empty() && name.len() <= 255 && !name.contains(&0));
        name.len()
    };
    match operation {
        Operation::Lookup { name }
        | Operation::Unlink { name }
        | Operation::RmDir { name }
        | Operation::MkNod { name, .. }
        | Operation::MkDir { name, .. }
        | Operation::Link { name, .. }
        | Operation::Create { name, .. }
        | Operation::GetXattr { name, .. }
        | Operation::RemoveXattr { name } => known(name),
        Operation::Symlink { name, target } => known(name) + target.len(),
        Operation::Rename { name, new_name, .. } => known(name) + known(new_name),
        Operation::SetXattr { name, value, arg } => {
            assert_eq!(value.len(), arg.size as usize);
            known(name)
        }
        Operation::Write { arg, data } => {
            assert_eq!(data.len(), arg.size as usize);
            data.len()
        }
        Operation::BatchForget { items } => items.iter().count(),
        Operation::Init(offer) => {
            negotiate(&offer, &Options::default(), Limits { page: 4096, pages_max: 256, over_ring: true }).1.max_write
        }
        _ => 0,
    }
}

proptest! {
    #![proptest_config(config(3000))]

    #[test]
    fn requests(parts in parts(), edits in edits(), noise in noise(300)) {
        let whole = message(&parts);
        let mut hostile = whole.clone();
        edits.iter().for_each(|edit| edit.apply(&mut hostile));
        // The length must be right, or nothing behind it is reached.
        let mut long = hostile.clone();
        if let Some(field) = long.get_mut(..4) {
            field.copy_from_slice(&(hostile.len() as u32).to_le_bytes());
        }
        for bytes in [&whole, &hostile, &long, &noise] {
            // No request makes the decoder allocate.
            bounded(0, || Message::whole(bytes).and_then(Message::decode).is_ok());
            Message::whole(bytes).and_then(Message::decode).iter().for_each(|request| _ = touch(request.operation));
        }
        let header = InHeader { opcode: parts.0 as u32, ..InHeader::default() };
        for (fixed, rest) in [(&parts.1, &parts.2), (&noise, &parts.2), (&parts.1, &noise)] {
            let split = bounded(0, || Message::split(header, fixed, rest).decode());
            split.iter().for_each(|request| _ = touch(request.operation));
        }
    }

    #[test]
    fn sound_requests(name in name(), new_name in name(), value in noise(200), number in any::<u64>()) {
        let sound = |name: &[u8]| !name.is_empty() && name.len() <= 255 && !name.contains(&b'/') && name != b"." && name != b"..";
        let names = [&name[..], &[0], &new_name, &[0]].concat();
        let rename = (Opcode::Rename2, Rename2In { newdir: number, ..Rename2In::default() }.as_bytes().to_vec(), names);
        let write = WriteIn { offset: number, size: value.len() as u32, ..WriteIn::default() };
        let write = (Opcode::Write, write.as_bytes().to_vec(), value.clone());
        for split in [false, true] {
            let decode = |(opcode, fixed, rest): &Parts, check: &dyn Fn(Result<Operation<'_>, i32>)| {
                let bytes = message(&(*opcode, fixed.clone(), rest.clone()));
                let header = InHeader { opcode: *opcode as u32, ..InHeader::default() };
                let message = if split { Ok(Message::split(header, fixed, rest)) } else { Message::whole(&bytes) };
                check(message.and_then(Message::decode).map(|request| request.operation).map_err(|bad| bad.errno));
            };
            decode(&rename, &|operation| match operation {
                Ok(Operation::Rename { to, name: from, new_name: target, .. }) => {
                    assert_eq!((to, from, target), (number, &name[..], &new_name[..]));
                }
                _ => assert!(!sound(&name) || !sound(&new_name)),
            });
            decode(&write, &|operation| match operation {
                Ok(Operation::Write { arg, data }) => assert_eq!((arg.offset, data), (number, &value[..])),
                _ => panic!("a sound write was refused"),
            });
        }
    }
}

//! Fuzz targets of everything that a pool reads from its devices; see `ashlar_fuzz`. Whole images are fuzzed in
//! `ashlar-prove`.

use crate::accounts::DeadKey;
use crate::format::{
    BodyWriter, DEVICES_MAX, DeviceRecord, LEAD_LEN, Lead, LogPosition, OpenSegment, Operation, SEGMENTS_MAX,
    SUPERBLOCKS, SlotRecord, Stream, Superblock, VolumeKind, VolumeRecord, crc, decode_body, superblock_slots,
};
use crate::map::{CHUNK_BLOCKS, Form, Lost, Map, Run, back_key, chunk_key, chunk_start, decode, decode_back, encode};
use crate::store::unpack;
use ashlar_block::Kind;
use ashlar_fuzz::{bounded, config, edits, hostile, noise};
use ashlar_index::{NodePtr, Semantics};
use ashlar_units::{BLOCK_LEN, Blocks};
use bytes::Bytes;
use proptest::prelude::*;

/// Where the checksums of superblocks and leads lie.
const SUPERBLOCK_CRC: std::ops::Range<usize> = 12..16;
const LEAD_CRC: std::ops::Range<usize> = 4..8;

fn pointer() -> impl Strategy<Value = NodePtr> {
    any::<(u64, u32, u32, u32, u32, u64)>().prop_map(|(uid, offset, len, raw_len, crc, birth)| NodePtr {
        uid,
        offset,
        len,
        raw_len,
        crc,
        birth,
    })
}

fn open_segment() -> impl Strategy<Value = OpenSegment> {
    any::<(u64, u32)>().prop_map(|(uid, used)| OpenSegment { uid, used })
}

fn superblock() -> impl Strategy<Value = Superblock> {
    let devices = prop::collection::vec((any::<u64>(), 0..=SEGMENTS_MAX), 1..=DEVICES_MAX);
    let log = (open_segment(), open_segment(), 1..1u64 << 62, any::<u32>());
    (
        (any::<u64>(), 0..1u64 << 62, 0..1u64 << 41),
        devices,
        0..=20u32,
        prop::option::of(pointer()),
        log,
        (any::<prop::sample::Index>(), prop::option::of(any::<prop::sample::Index>())),
    )
        .prop_map(
            |((pool, generation, born), devices, power, catalog, (at, next, seq, chain), (device, part_of))| {
                let before = device.index(devices.len());
                Superblock {
                    pool,
                    generation,
                    born,
                    device: before as u32,
                    part_of: part_of.filter(|_| before > 0).map(|part_of| part_of.index(before) as u32),
                    devices: devices
                        .into_iter()
                        .map(|(id, segments)| DeviceRecord { id, capacity: SUPERBLOCKS + Blocks(segments << power) })
                        .collect(),
                    segment: Blocks(1 << power),
                    catalog,
                    log: LogPosition { at, next, seq, chain },
                }
            },
        )
}

fn lead() -> impl Strategy<Value = Lead> {
    let numbers = (any::<[u64; 4]>(), any::<[u32; 7]>());
    (prop::sample::select(&Stream::ALL[..]), numbers, open_segment(), 0..=1u32 << 20, 0..=64u32 << 20).prop_map(
        |(stream, ([pool, uid, seq, durable], words), next, payload_blocks, body_len)| {
            let [at, items, operations, chain, body_crc, payload_crc, parity] = words;
            let mut lead = Lead {
                stream,
                pool,
                uid,
                at,
                payload_blocks,
                body_len,
                items,
                operations,
                seq,
                chain,
                durable,
                next,
                body_crc,
                payload_crc,
                parity: None,
            };
            lead.parity = parity.is_multiple_of(2).then(|| parity % (lead.payload_blocks + 1));
            lead
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let short = || noise(40).prop_map(Bytes::from);
    prop_oneof![
        (any::<u64>(), short(), noise(90)).prop_map(|(tree, key, value)| Operation::Put(tree, key, value.into())),
        (any::<u64>(), short()).prop_map(|(tree, key)| Operation::Delete(tree, key)),
        (any::<u64>(), short(), chunk()).prop_map(|(tree, key, runs)| Operation::Patch(tree, key, encode(&runs))),
        (any::<u64>(), short(), short()).prop_map(|(tree, low, high)| Operation::DeleteRange(tree, low, high)),
    ]
}

/// What a body says is in the payload: tree, key, level, offset, length.
type Listed = (u64, Vec<u8>, Option<u8>, u32, u32);

fn body() -> impl Strategy<Value = (Vec<Listed>, Vec<Operation>)> {
    let item = (any::<u64>(), noise(40), prop::option::of(0..u8::MAX), any::<u32>(), any::<u32>());
    (prop::collection::vec(item, 0..6), prop::collection::vec(operation(), 0..6))
}

/// A body and a lead that has its counts.
fn encode_body(items: &[Listed], operations: &[Operation]) -> (Lead, Bytes) {
    let mut writer = BodyWriter::default();
    items.iter().for_each(|(tree, key, level, offset, len)| writer.item(*tree, key, *level, *offset, *len));
    operations.iter().for_each(|operation| match operation {
        Operation::Put(tree, key, value) => writer.put(*tree, key, value),
        Operation::Delete(tree, key) => writer.delete(*tree, key),
        Operation::Patch(tree, key, value) => writer.patch(*tree, key, value),
        Operation::DeleteRange(tree, low, high) => writer.delete_range(*tree, low, high),
    });
    let (items, operations, body) = writer.finish();
    let lead = Lead {
        stream: Stream::Log,
        pool: 1,
        uid: 2,
        at: 3,
        payload_blocks: 0,
        body_len: body.len() as u32,
        items,
        operations,
        seq: 4,
        chain: 5,
        durable: 3,
        next: OpenSegment::default(),
        body_crc: crc(&body),
        payload_crc: 0,
        parity: None,
    };
    (lead, body)
}

/// A run in a chunk.
pub(crate) fn run() -> impl Strategy<Value = Run> {
    (0u8..32, 1u8..=32, 0u8..4, 0u8..4, any::<u64>(), any::<u32>(), 1u32..200_000).prop_map(
        |(start, count, form, skip, uid, offset, stored)| {
            let count = count.min(32 - start);
            if form == 0 {
                return Run::hole(start, count);
            }
            let form = [Form::Raw, Form::Lz4, Form::Zstd][form as usize - 1];
            let skip = skip.min(32 - count);
            let total = skip + count;
            let crcs = (0..if form == Form::Raw { count } else { 1 }).map(u32::from).collect();
            Run { start, count, skip, total, form, uid, offset, stored, birth: 7, crcs }
        },
    )
}

/// Runs in order.
fn chunk() -> impl Strategy<Value = Vec<Run>> {
    prop::collection::vec(run(), 0..8).prop_map(|mut runs| {
        runs.sort_by_key(|run| run.start);
        let mut end = 0;
        runs.retain(|run| {
            let behind = run.start >= end;
            end = if behind { run.end() } else { end };
            behind
        });
        runs
    })
}

fn volume() -> impl Strategy<Value = VolumeRecord> {
    let kind = prop_oneof![
        prop::option::of(any::<(u64, u64)>()).prop_map(|origin| VolumeKind::Live { origin }),
        any::<[u64; 3]>().prop_map(|[of, taken, time]| VolumeKind::Snapshot { of, taken, time }),
    ];
    (".{0,40}", prop::option::of(pointer()), any::<u64>(), kind).prop_map(|(name, root, nodes, kind)| VolumeRecord {
        name,
        root,
        nodes,
        kind,
    })
}

fn with_checksum(mut bytes: Vec<u8>, at: std::ops::Range<usize>, covered: usize) -> Vec<u8> {
    if let Some(field) = bytes.get_mut(at.clone()) {
        field.fill(0);
        let sum = crc(&bytes[..covered.min(bytes.len())]);
        bytes[at].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn superblocks(superblock in superblock(), edits in edits(), noise in noise(600)) {
        let image = superblock.encode();
        prop_assert_eq!(Superblock::decode(&image).expect("valid"), Some(superblock));
        // Torn: never an error, since an older one takes its place.
        let mut torn = image.to_vec();
        edits.iter().for_each(|edit| edit.apply(&mut torn));
        prop_assert!(torn[..] == image[..] || Superblock::decode(&torn).expect("no error").is_none());
        prop_assert!(Superblock::decode(&noise).expect("no error").is_none());
        // Hostile: the changes lie where the fields do, under a good checksum.
        let mut hostile = image.to_vec();
        let fields = hostile.len().min(200 + 16 * 8);
        edits.iter().for_each(|edit| edit.apply_in_place(&mut hostile[..fields]));
        let hostile = with_checksum(hostile, SUPERBLOCK_CRC, image.len());
        if let Ok(Some(superblock)) = bounded(1 << 16, || Superblock::decode(&hostile)) {
            prop_assert!(superblock.devices.len() <= DEVICES_MAX);
            prop_assert!((superblock.device as usize) < superblock.devices.len());
            prop_assert!(superblock.part_of.is_none_or(|device| device < superblock.device));
            for device in &superblock.devices {
                superblock_slots(device.capacity, superblock.generation);
            }
        }
    }

    #[test]
    fn leads(lead in lead(), edits in edits(), noise in noise(600)) {
        let block = lead.encode(&[]);
        prop_assert_eq!(Lead::decode(&block), Some(lead));
        let mut hostile = block.to_vec();
        edits.iter().for_each(|edit| edit.apply_in_place(&mut hostile[..LEAD_LEN]));
        prop_assert!(hostile[..] == block[..] || Lead::decode(&hostile).is_none());
        for bytes in [hostile, noise] {
            let sealed = with_checksum(bytes, LEAD_CRC, LEAD_LEN);
            if let Some(lead) = bounded(1 << 12, || Lead::decode(&sealed)) {
                prop_assert!(lead.blocks() > lead.tail_blocks());
            }
        }
    }

    #[test]
    fn batch_bodies((items, operations) in body(), edits in edits(), counts in prop::option::of(any::<[u32; 2]>())) {
        let (mut lead, body) = encode_body(&items, &operations);
        let (items_back, operations_back) = decode_body(&lead, &body).expect("valid");
        let listed: Vec<Listed> = items_back
            .into_iter()
            .map(|item| (item.tree, item.key.to_vec(), item.level, item.offset, item.len))
            .collect();
        prop_assert_eq!((listed, operations_back), (items, operations));
        let mut hostile = body.to_vec();
        edits.iter().for_each(|edit| edit.apply(&mut hostile));
        if let Some([items, operations]) = counts {
            (lead.items, lead.operations) = (items, operations);
        }
        let hostile = Bytes::from(hostile);
        let _ = bounded(1 << 16, || decode_body(&lead, &hostile));
    }

    #[test]
    fn catalog_records(volume in volume(), uid in any::<u64>(), live in 0..=1u64 << 56, edits in edits(), key in hostile(noise(24))) {
        let slot = SlotRecord { uid, live };
        prop_assert_eq!(SlotRecord::decode(&slot.encode()).expect("valid"), slot);
        prop_assert_eq!(VolumeRecord::decode(&volume.encode()).expect("valid"), volume.clone());
        let dead = DeadKey { snapshot: uid, seen: live, slot: 7 };
        prop_assert_eq!(DeadKey::decode(&dead.encode()), Some(dead));
        prop_assert_eq!(VolumeRecord::id(&VolumeRecord::key(uid)), Some(uid));
        for valid in [slot.encode(), volume.encode()] {
            let mut hostile = valid.to_vec();
            edits.iter().for_each(|edit| edit.apply(&mut hostile));
            let hostile = Bytes::from(hostile);
            let _ = bounded(1 << 14, || (SlotRecord::decode(&hostile), VolumeRecord::decode(&hostile)));
        }
        let _ = (DeadKey::decode(&key), VolumeRecord::id(&key), NodePtr::decode(&key));
    }

    #[test]
    fn chunks(older in chunk(), newer in chunk(), edits in edits(), noise in noise(200)) {
        let value = encode(&older);
        prop_assert_eq!(decode(&value).expect("valid"), older);
        let mut hostile = value.to_vec();
        edits.iter().for_each(|edit| edit.apply(&mut hostile));
        for hostile in [Bytes::from(hostile), Bytes::from(noise)] {
            // What a tree does with a value, on top of reading it.
            bounded(1 << 16, || {
                if let Ok(runs) = decode(&hostile) {
                    runs.iter().for_each(|run| _ = run.weight());
                    assert_eq!(decode(&encode(&runs)).expect("what was read can be written"), runs);
                }
                let mut lost = Lost::default();
                let key = chunk_key(0);
                let patched = Map.overlay(&key, &hostile, &encode(&newer), &mut lost);
                let under = Map.overlay(&key, &encode(&newer), &hostile, &mut lost);
                Map.settle(&key, hostile.clone());
                Map.lose(&key, &hostile, &mut lost);
                lost.runs.iter().for_each(|run| _ = run.weight());
                decode(&patched).and(decode(&under)).expect("an overlay is a value");
            });
        }
    }

    #[test]
    fn map_keys(run in run(), block in any::<u64>(), key in hostile(noise(40))) {
        let start = block / CHUNK_BLOCKS * CHUNK_BLOCKS;
        prop_assert_eq!(chunk_start(&chunk_key(block)), Some(start));
        let back = back_key(&run, &chunk_key(block));
        prop_assert_eq!(decode_back(&back), Some((run.offset, chunk_key(block))));
        let _ = (chunk_start(&key), decode_back(&key));
        let mut changed = back.to_vec();
        changed.extend(key);
        let _ = decode_back(&changed);
    }

    #[test]
    fn compressed_extents(content in noise(3000), repeats in 1..20usize, total in 0..=32u8, zstd in any::<bool>(), edits in edits()) {
        let content = content.repeat(repeats);
        let form = if zstd { Form::Zstd } else { Form::Lz4 };
        let mut packed = match form {
            Form::Zstd => zstd::bulk::compress(&content, 3).expect("compresses"),
            _ => lz4_flex::block::compress(&content),
        };
        let run = Run { total, form, ..Run::hole(0, 1) };
        let room = usize::from(total) * BLOCK_LEN;
        if content.len() <= room {
            prop_assert_eq!(&unpack(&run, &packed).expect("valid")[..], &content[..]);
        }
        edits.iter().for_each(|edit| edit.apply(&mut packed));
        // zstd keeps its own state, whose size is not the input's to choose.
        match bounded(room as u64 + (1 << 18), || unpack(&run, &packed)) {
            Ok(data) => prop_assert!(data.len() <= room),
            Err(error) => prop_assert_eq!(error.kind(), Kind::Corrupt),
        }
    }
}

//! ObjectBench (Wang, *Storage Management in Large Distributed Object-Based Storage Systems*, UC Santa Cruz 2006, section 8):
//! whole objects are read, written and rewritten, in a closed loop.
//!
//! An object is a file in one of 256 directories, that of (upper half of its number XOR lower half) mod 256, as the thesis
//! put objects on ext2 and XFS. Half of the reads are of any object, half follow the order in which objects were written.

use super::calls::{Caller, alone};
use super::{Kind, Parameter, Plan, Unit, Values, WorkloadError};
use crate::history::synthetic::Sizes;
use crate::trace::flags::{CREATE, CUT, WRITE};

/// See the module.
pub static OBJECT_BENCH: Kind = Kind {
    name: "objectbench",
    what: "whole objects are read (40 %), written (36 %) and rewritten (24 %), most of them of 512 KiB, 60 % with fsync",
    source: "Wang, OBFS thesis, sections 5 and 8 (mix, sizes, 256 directories); numbers of objects and requests ours",
    parameters: &[
        Parameter { name: "objects", unit: Unit::Count, default: "1000", what: "objects at the beginning" },
        Parameter { name: "requests", unit: Unit::Count, default: "5000", what: "requests" },
        Parameter { name: "read", unit: Unit::Share, default: "0.4", what: "share of reads" },
        Parameter {
            name: "write",
            unit: Unit::Share,
            default: "0.36",
            what: "share of new objects; the rest rewrites",
        },
        Parameter { name: "random", unit: Unit::Share, default: "0.5", what: "share of reads in any order" },
        Parameter { name: "sync", unit: Unit::Share, default: "0.6", what: "share of writes with fsync" },
        Parameter { name: "unit", unit: Unit::Bytes, default: "512KiB", what: "bytes of a call" },
    ],
    plan,
};

/// The directory of an object, of 256.
pub(crate) fn directory_of_object(object: u64) -> u64 {
    (object >> 16 ^ object & 0xffff) % 256
}

fn path(object: u64) -> String {
    format!("/objects/{}/{object:08x}", directory_of_object(object))
}

fn write(caller: &mut Caller, object: u64, size: u64, unit: u64, sync: bool) {
    let file = caller.open(&path(object), WRITE | CREATE | CUT);
    caller.write_all(&file, 0, size, unit);
    if sync {
        caller.fsync(&file);
    }
    caller.close(file);
}

fn plan(values: &Values) -> Result<Plan, WorkloadError> {
    let (objects, requests, unit) = (values.some("objects")?, values.whole("requests"), values.some("unit")?);
    let (read, new) = (values.number("read"), values.number("write"));
    if read + new > 1.0 {
        return Err(WorkloadError("read and write of objectbench are more than 1 together".into()));
    }
    let (random, sync) = (values.number("random"), values.number("sync"));
    let mut sizes = Vec::new();
    let mut chance = ashlar_models::Chance::new(values.seed());
    sizes.resize_with(objects as usize, || Sizes::SynWrite.draw(&mut chance));
    let of_setup = sizes.clone();
    let mut made = 0;
    let setup = alone(0, values.seed(), move |caller| {
        if made == 0 {
            caller.mkdir("/objects");
            (0..256).for_each(|directory| caller.mkdir(&format!("/objects/{directory}")));
        }
        write(caller, made, of_setup[made as usize], unit, false);
        made += 1;
        made < objects
    });
    let (mut left, mut next) = (requests, 0);
    let run = alone(1, values.seed(), move |caller| {
        if left == 0 {
            return false;
        }
        left -= 1;
        let count = sizes.len() as u64;
        let kind = caller.chance.unit();
        if kind < read {
            let object = if caller.chance.unit() < random { caller.chance.below(count) } else { next % count };
            next = object + 1;
            caller.read_file(&path(object), sizes[object as usize], unit);
            return true;
        }
        let object = if kind < read + new { count } else { caller.chance.below(count) };
        let size = if object == count { Sizes::SynWrite.draw(&mut caller.chance) } else { sizes[object as usize] };
        let with_sync = caller.chance.unit() < sync;
        write(caller, object, size, unit, with_sync);
        if object == count {
            sizes.push(size);
        }
        true
    });
    Ok(Plan { setup: vec![setup], run: vec![run] })
}

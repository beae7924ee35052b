//! Small files: made, one after the other, by threads with a directory each.

use super::calls::Thread;
use super::{Kind, Parameter, Plan, Unit, Values, WorkloadError};

/// See the module.
pub static SMALL_FILE: Kind = Kind {
    name: "smallfile",
    what: "threads make many small files in directories of their own",
    source: "after the throughput benchmark of Smith's thesis, section 3.1.1 (at most 25 files to a directory); numbers ours",
    parameters: &[
        Parameter { name: "files", unit: Unit::Count, default: "10000", what: "files of each thread" },
        Parameter { name: "size", unit: Unit::Bytes, default: "4KiB", what: "bytes of a file" },
        Parameter { name: "per-directory", unit: Unit::Count, default: "25", what: "files of a directory" },
        Parameter { name: "threads", unit: Unit::Count, default: "2", what: "threads" },
        Parameter { name: "unit", unit: Unit::Bytes, default: "1MiB", what: "bytes of a write" },
    ],
    plan,
};

fn plan(values: &Values) -> Result<Plan, WorkloadError> {
    let (files, size, unit) = (values.whole("files"), values.whole("size"), values.some("unit")?);
    let (threads, per_directory) = (values.threads("threads")?, values.some("per-directory")?);
    let each = |thread| {
        let mut file = 0;
        Thread::new((1, thread, threads), values.seed(), move |caller| {
            let home = format!("/small/t{thread}");
            let directory = format!("{home}/d{}", file / per_directory);
            if file == 0 {
                caller.mkdir(&home);
            }
            if file % per_directory == 0 {
                caller.mkdir(&directory);
            }
            caller.write_file(&format!("{directory}/f{file}"), size, unit);
            file += 1;
            file < files
        })
    };
    let setup = super::calls::alone(0, values.seed(), |caller| {
        caller.mkdir("/small");
        false
    });
    Ok(Plan { setup: vec![setup], run: vec![(0..threads).map(each).collect()] })
}

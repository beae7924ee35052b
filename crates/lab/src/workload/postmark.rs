//! PostMark (Katcher, *PostMark: A New File System Benchmark*, NetApp TR 3022), with the thesis's parameters.
//!
//! Files are made in subdirectories; then each transaction reads a file or appends to one, and makes or deletes one, with
//! equal chances; at the end all are deleted. Sizes are even between two bounds, and an append is even up to what is left to
//! the upper one. All of it is measured, as PostMark's total time has it.
//!
//! Departs  PostMark writes through the C library's buffer, so calls have its size and not PostMark's 512 bytes.

use super::calls::{Caller, alone};
use super::{Kind, Parameter, Plan, Unit, Values, WorkloadError};
use crate::trace::flags::{APPEND, READ, WRITE};

/// See the module.
pub static POSTMARK: Kind = Kind {
    name: "postmark",
    what: "one thread makes small files, reads, appends, makes and deletes by chance, and deletes them all",
    source: "Katcher, NetApp TR 3022; numbers of Smith's thesis, section 4.5 (5,000 files, 0.5 to 16 KB, 50 directories, 20,000 transactions)",
    parameters: &[
        Parameter { name: "files", unit: Unit::Count, default: "5000", what: "files at the beginning" },
        Parameter { name: "transactions", unit: Unit::Count, default: "20000", what: "transactions" },
        Parameter { name: "directories", unit: Unit::Count, default: "50", what: "subdirectories" },
        Parameter { name: "low", unit: Unit::Bytes, default: "512B", what: "least size of a file" },
        Parameter { name: "high", unit: Unit::Bytes, default: "16KiB", what: "greatest size of a file" },
        Parameter { name: "read", unit: Unit::Share, default: "0.5", what: "share of reads among reads and appends" },
        Parameter {
            name: "create",
            unit: Unit::Share,
            default: "0.5",
            what: "share of creations among those and deletions",
        },
        Parameter { name: "unit", unit: Unit::Bytes, default: "4KiB", what: "bytes of a call: the C library's buffer" },
    ],
    plan,
};

struct State {
    files: Vec<(u64, u64)>,
    made: u64,
    directories: u64,
    low: u64,
    high: u64,
    unit: u64,
}

impl State {
    fn path(&self, number: u64) -> String {
        format!("/postmark/s{}/{number}", number % self.directories)
    }

    fn create(&mut self, caller: &mut Caller) {
        let size = self.low + caller.chance.below(self.high - self.low + 1);
        caller.write_file(&self.path(self.made), size, self.unit);
        self.files.push((self.made, size));
        self.made += 1;
    }

    fn delete(&mut self, caller: &mut Caller) {
        let at = caller.chance.below(self.files.len() as u64) as usize;
        let (number, _) = self.files.swap_remove(at);
        caller.unlink(&self.path(number));
    }

    fn read(&self, caller: &mut Caller) {
        let (number, size) = self.files[caller.chance.below(self.files.len() as u64) as usize];
        let file = caller.open(&self.path(number), READ);
        caller.read_all(&file, size, self.unit);
        // The C library asks until there is no more.
        caller.read(&file, size, 0);
        caller.close(file);
    }

    fn append(&mut self, caller: &mut Caller) {
        let at = caller.chance.below(self.files.len() as u64) as usize;
        let (number, size) = self.files[at];
        if size < self.high {
            let len = 1 + caller.chance.below(self.high - size);
            let file = caller.open(&self.path(number), WRITE | APPEND);
            caller.write_all(&file, size, len, self.unit);
            caller.close(file);
            self.files[at].1 += len;
        }
    }
}

fn plan(values: &Values) -> Result<Plan, WorkloadError> {
    let (low, high) = (values.whole("low"), values.whole("high"));
    if low > high {
        return Err(WorkloadError("low of postmark is above high".into()));
    }
    let (directories, unit) = (values.some("directories")?, values.some("unit")?);
    let mut state = State { files: Vec::new(), made: 0, directories, low, high, unit };
    let (files, mut left) = (values.whole("files"), values.whole("transactions"));
    let (read, create) = (values.number("read"), values.number("create"));
    let mut directory = 0;
    let setup = alone(0, values.seed(), move |caller| {
        match directory {
            0 => caller.mkdir("/postmark"),
            number => caller.mkdir(&format!("/postmark/s{}", number - 1)),
        }
        directory += 1;
        directory <= directories
    });
    let run = alone(1, values.seed(), move |caller| {
        if state.made < files {
            state.create(caller);
        } else if left > 0 {
            left -= 1;
            if state.files.is_empty() {
                state.create(caller);
            } else if caller.chance.unit() < read {
                state.read(caller);
            } else {
                state.append(caller);
            }
            if state.files.is_empty() || caller.chance.unit() < create {
                state.create(caller);
            } else {
                state.delete(caller);
            }
        } else if !state.files.is_empty() {
            state.delete(caller);
        } else {
            return false;
        }
        true
    });
    Ok(Plan { setup: vec![setup], run: vec![run] })
}

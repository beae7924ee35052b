//! What building a program of many sources does: each compilation looks for headers along a path of directories, reads
//! source and headers, and writes an object by way of a temporary file; at the end all objects are read and one file is
//! written.
//!
//! Not there: the processor's time between calls, and the compiler's own files.

use super::calls::{Caller, Thread, alone};
use super::{Kind, Parameter, Plan, Unit, Values, WorkloadError};
use crate::history::synthetic::Sizes;
use crate::trace::flags::{CREATE, CUT, EXCLUSIVE, READ, READ_WRITE};
use ashlar_models::Chance;
use ashlar_survey::sample::mix;

/// See the module.
pub static BUILD: Kind = Kind {
    name: "build",
    what: "jobs compile sources with their headers to objects, which are linked at the end",
    source: "the calls of a C compiler and linker; numbers ours, about a program of 100,000 lines",
    parameters: &[
        Parameter { name: "sources", unit: Unit::Count, default: "400", what: "sources" },
        Parameter { name: "headers", unit: Unit::Count, default: "600", what: "headers" },
        Parameter { name: "includes", unit: Unit::Count, default: "60", what: "headers that a source reads" },
        Parameter {
            name: "misses",
            unit: Unit::Count,
            default: "2",
            what: "directories without it that are searched for a header",
        },
        Parameter { name: "source", unit: Unit::Bytes, default: "8KiB", what: "median size of a source" },
        Parameter { name: "header", unit: Unit::Bytes, default: "4KiB", what: "median size of a header" },
        Parameter { name: "object", unit: Unit::Bytes, default: "24KiB", what: "median size of an object" },
        Parameter {
            name: "deviation",
            unit: Unit::Shape,
            default: "1",
            what: "standard deviation of the sizes' logarithm",
        },
        Parameter { name: "jobs", unit: Unit::Count, default: "2", what: "compilations at once" },
        Parameter { name: "unit", unit: Unit::Bytes, default: "4KiB", what: "bytes of a write" },
    ],
    plan,
};

/// Directories of headers.
const PLACES: u64 = 8;
/// Sources of a directory.
const PER_DIRECTORY: u64 = 20;
/// Bytes of a read.
const READ_UNIT: u64 = 64 << 10;

#[derive(Clone, Copy)]
struct Tree {
    sources: u64,
    headers: u64,
    includes: u64,
    misses: u64,
    /// Median sizes.
    medians: [f64; 3],
    deviation: f64,
    unit: u64,
    seed: u64,
}

#[derive(Clone, Copy)]
enum File {
    Source,
    Header,
    Object,
}

impl Tree {
    fn path(file: File, number: u64) -> String {
        match file {
            File::Source => format!("/build/src{}/s{number}.c", number / PER_DIRECTORY),
            File::Header => format!("/build/include{}/h{number}.h", number % PLACES),
            File::Object => format!("/build/obj/s{number}.o"),
        }
    }

    fn size(&self, file: File, number: u64) -> u64 {
        let sizes = Sizes::Lognormal(self.medians[file as usize], self.deviation);
        sizes.draw(&mut Chance::new(mix(mix(self.seed, file as u64), number)))
    }

    fn make(&self, caller: &mut Caller, file: File, number: u64) {
        caller.write_file(&Tree::path(file, number), self.size(file, number), READ_UNIT);
    }

    fn read(&self, caller: &mut Caller, file: File, number: u64) {
        let opened = caller.open(&Tree::path(file, number), READ);
        caller.fstat(&opened);
        caller.read_all(&opened, self.size(file, number), READ_UNIT);
        caller.close(opened);
    }

    fn compile(&self, caller: &mut Caller, source: u64) {
        let object = Tree::path(File::Object, source);
        caller.stat(&Tree::path(File::Source, source));
        caller.stat_absent(&object);
        self.read(caller, File::Source, source);
        for _ in 0..self.includes {
            // Some headers are in many sources, most in few.
            let header = (caller.chance.unit().powi(2) * self.headers as f64) as u64;
            for miss in 1..=self.misses.min(PLACES - 1) {
                caller.stat_absent(&format!("/build/include{}/h{header}.h", (header + miss) % PLACES));
            }
            self.read(caller, File::Header, header);
        }
        let temporary = format!("{object}.tmp");
        let file = caller.open(&temporary, READ_WRITE | CREATE | EXCLUSIVE);
        caller.write_all(&file, 0, self.size(File::Object, source), self.unit);
        caller.close(file);
        caller.rename(&temporary, &object);
    }

    fn link(&self, caller: &mut Caller) {
        const OUTPUT: &str = "/build/program";
        let output = caller.open(OUTPUT, READ_WRITE | CREATE | CUT);
        let mut at = 0;
        for source in 0..self.sources {
            self.read(caller, File::Object, source);
            let size = self.size(File::Object, source);
            caller.write_all(&output, at, size, READ_UNIT);
            at += size;
        }
        caller.close(output);
        caller.chmod(OUTPUT, 0o755);
    }
}

fn plan(values: &Values) -> Result<Plan, WorkloadError> {
    let tree = Tree {
        sources: values.some("sources")?,
        headers: values.some("headers")?,
        includes: values.whole("includes"),
        misses: values.whole("misses"),
        medians: [values.some("source")? as f64, values.some("header")? as f64, values.some("object")? as f64],
        deviation: values.number("deviation"),
        unit: values.some("unit")?,
        seed: values.seed(),
    };
    let jobs = values.threads("jobs")?;
    let mut number = 0u64;
    let setup = alone(0, tree.seed, move |caller| {
        if number == 0 {
            caller.mkdir("/build");
            caller.mkdir("/build/obj");
            (0..PLACES).for_each(|place| caller.mkdir(&format!("/build/include{place}")));
            let directories = (tree.sources - 1) / PER_DIRECTORY + 1;
            (0..directories).for_each(|directory| caller.mkdir(&format!("/build/src{directory}")));
        }
        match number.checked_sub(tree.sources) {
            None => tree.make(caller, File::Source, number),
            Some(header) => tree.make(caller, File::Header, header),
        }
        number += 1;
        number < tree.sources + tree.headers
    });
    let job = |thread| {
        let mut source = thread;
        Thread::new((1, thread, jobs), tree.seed, move |caller| {
            if source >= tree.sources {
                return false;
            }
            tree.compile(caller, source);
            source += jobs;
            source < tree.sources
        })
    };
    let link = alone(2, tree.seed, move |caller| {
        tree.link(caller);
        false
    });
    Ok(Plan { setup: vec![setup], run: vec![(0..jobs).map(job).collect(), link] })
}

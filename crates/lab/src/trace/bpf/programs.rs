//! The programs that the kernel runs: one where a call begins, one where it ends, and three for new, changed and ended tasks.
//!
//! Where a call begins, the time is noted in its thread's entry; where it ends, everything is told at once: the registers
//! still hold the arguments, and texts are in memory, since the kernel has read them by then. A thread has its entry as long
//! as it lives, so that a call costs two looks and no change of the map. A call is in its thread's entry until it is in the
//! ring: see [`within`].
//!
//! Costs     a look into an array at every call of every process and into one hash map at the end of every call; what
//!           calls that are told of cost is in docs/lab.md.

use super::tracepoint::Fork;
use crate::trace::calls::{Does, Memory, TABLE};
use ashlar_env::bpf::assembler::Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use ashlar_env::bpf::assembler::{Assembler, Do, Function, Label, When, Width};
use ashlar_env::bpf::{Attached, Kind, Map};
use std::io;
use std::sync::Arc;

/// Numbers of calls that programs look at.
const CALLS_COUNT: u32 = 512;
/// Threads that are traced at once.
const THREADS_MAX: u32 = 1 << 15;
/// Most bytes of a path.
pub const TEXT_LEN_MAX: i32 = 4096;
/// Buffers of a list whose lengths are told.
const BUFFERS_MAX: i32 = 32;

/// What stands where in what is told of a call; of registers, see [`ARGUMENTS`].
pub mod at {
    /// What is told: a call, or see below. 4 bytes.
    pub const KIND: usize = 0;
    /// The call's number, 4 bytes.
    pub const CALL: usize = 4;
    pub const THREAD: usize = 8;
    pub const BEGAN: usize = 16;
    pub const ENDED: usize = 24;
    pub const RESULT: usize = 32;
    pub const REGISTERS: usize = 40;
    /// Bytes of both texts, or an error below zero, 4 bytes each.
    pub const LENGTHS: usize = 104;
    pub const TEXTS: usize = 112;
    /// Of what is told of tasks.
    pub const TIME: usize = 16;
    pub const FIRST: usize = 24;
    pub const SECOND: usize = 32;
    pub const TASK_LEN: usize = 40;
}

/// Kinds of what is told.
pub mod kind {
    pub const CALL: u32 = 0;
    /// A new task: its number, flags of `clone`.
    pub const FORK: u32 = 1;
    /// Another program: the number that the thread had.
    pub const EXEC: u32 = 2;
    /// A thread's end: not zero if it was in a call, and which.
    pub const EXIT: u32 = 3;
}

/// Which of the eight registers, from `r10` on in `struct pt_regs`, has an argument.
pub const ARGUMENTS: [usize; 6] = [7, 6, 5, 0, 2, 1];
const FIRST_REGISTER: i32 = 56;
/// An entry of `threads`: when the call began that the thread is in, and its number.
const ENTRY_LEN: usize = 16;
/// A thread that is in no call, and one whose call begins right now.
const NO_CALL: i32 = 0;
const BEGINNING: i32 = 1;
const SCRATCH_LEN: usize = at::TEXTS + 2 * TEXT_LEN_MAX as usize + 64;

/// What to do with the memory that an argument points to.
#[derive(Clone, Copy)]
enum Read {
    Text = 1,
    Eight = 2,
    How = 3,
    Lengths = 4,
}

/// Whom to trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Everybody but this process.
    All {
        /// This process.
        but: u32,
    },
    /// Threads that are set, and what they start.
    Set {
        /// A thread of ours: what it starts is set.
        starter: u32,
    },
}

/// Programs in the kernel, and what they share with us.
pub struct Programs {
    pub ring: Map,
    /// See [`within`].
    pub threads: Arc<Map>,
    lost: Map,
    attached: Vec<Attached>,
}

/// A call that a thread is in.
pub struct Within {
    pub thread: u32,
    /// By the monotonic clock, in nanoseconds; `None` if it is just beginning.
    pub began_ns: Option<u64>,
    /// Its number.
    pub call: u64,
}

/// The calls that threads are in. A call that is not among them, and of which the ring does not tell afterwards, begins later
/// than this was asked.
pub fn within(threads: &Map) -> impl Iterator<Item = Within> {
    threads.keys().into_iter().filter_map(|thread| {
        let entry = threads.get(&thread).ok()?;
        let began = u64::from_ne_bytes(*entry.first_chunk()?);
        let within = Within {
            thread: u32::from_ne_bytes(*thread.first_chunk()?),
            began_ns: (began != BEGINNING as u64).then_some(began),
            call: u64::from_ne_bytes(*entry.last_chunk()?),
        };
        (began != NO_CALL as u64).then_some(within)
    })
}

impl Programs {
    /// Loads them all. From now on they tell.
    pub fn load(whom: Whom, ring_len: u32, fork: &Fork) -> io::Result<Programs> {
        let calls = Map::new(Kind::Array, 4, 8, CALLS_COUNT)?;
        for call in TABLE.iter().filter(|call| !matches!(call.does, Does::Fork | Does::Exec | Does::Exit)) {
            calls.set(&u32::from(call.number).to_ne_bytes(), &wanted(call).to_ne_bytes())?;
        }
        let parts = Parts {
            whom,
            calls,
            threads: Map::new(Kind::Hash, 4, ENTRY_LEN, THREADS_MAX)?,
            scratch: Map::new(Kind::ArrayOfProcessor, 4, SCRATCH_LEN, 1)?,
            ring: Map::new(Kind::Ring, 0, 0, ring_len)?,
            lost: Map::new(Kind::Array, 4, 8, 1)?,
        };
        // Ends before beginnings, so that what began is told.
        let attached = vec![
            Attached::raw(&parts.exec(), "sched_process_exec")?,
            Attached::raw(&parts.exit(), "sched_process_exit")?,
            Attached::numbered(&parts.fork(fork), fork.number)?,
            Attached::raw(&parts.call_end(), "sys_exit")?,
            Attached::raw(&parts.call_begin(), "sys_enter")?,
        ];
        let Parts { threads, ring, lost, .. } = parts;
        Ok(Programs { ring, threads: Arc::new(threads), lost, attached })
    }

    /// Traces a thread from now on, and what it starts.
    pub fn add(&self, thread: u32) -> io::Result<()> {
        self.threads.set(&thread.to_ne_bytes(), &[0; ENTRY_LEN])
    }

    /// How much could not be told.
    pub fn lost(&self) -> io::Result<u64> {
        let value = self.lost.get(&[0; 4])?;
        let full = value.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        self.attached.iter().try_fold(full, |sum, attached| Ok(sum + attached.missed()?))
    }

    /// Soon nothing is told any more. The kernel takes a tenth of a second for it, which nobody need wait for.
    pub fn detach(&mut self) {
        let attached = std::mem::take(&mut self.attached);
        std::thread::spawn(move || drop(attached));
    }
}

/// What the program must do for a call, as a number: bit 0 that it is wanted, bit 1 that it is not if the mapping is
/// anonymous, then for each of two arguments how to read what it points to, and which register has it, in bytes.
fn wanted(call: &crate::trace::calls::Call) -> u64 {
    let texts = [call.path, call.path2].into_iter().flatten().map(|at| (at, Read::Text));
    let memory = call.memory.into_iter().flatten().map(|(at, what)| {
        (
            at,
            match what {
                Memory::How => Read::How,
                Memory::Offset | Memory::Pair => Read::Eight,
                Memory::Lengths => Read::Lengths,
            },
        )
    });
    let mut wanted = 1 | u64::from(call.does == Does::Map) << 1;
    for ((argument, read), shift) in texts.chain(memory).zip([8, 24]) {
        let register = ARGUMENTS.get(usize::from(argument)).map_or(0, |register| register * 8);
        wanted |= (read as u64) << shift | (register as u64) << (shift + 8);
    }
    wanted
}

struct Parts {
    whom: Whom,
    calls: Map,
    threads: Map,
    scratch: Map,
    ring: Map,
    lost: Map,
}

impl Parts {
    /// `R0` becomes the value of a map for the four bytes at `R10 + key`; if there is none, goes on at `none`.
    fn look(&self, program: &mut Assembler, map: &Map, key: i16, none: Label) {
        program.map(R1, map);
        program.register(Do::Set, R2, R10);
        program.number(Do::Add, R2, key.into());
        program.call(Function::MapLookup);
        program.jump_if(R0, When::Equal, 0, none);
    }

    /// `R0` becomes the entry of the thread in `R8`, whose number stays at `R10 - 4`. Goes to `no` if it is not traced, to
    /// `fresh` if it is and has none yet.
    fn entry(&self, program: &mut Assembler, no: Label, fresh: Label) {
        program.store(Width::Word, R10, -4, R8);
        let Whom::All { but } = self.whom else { return self.look(program, &self.threads, -4, no) };
        program.register(Do::Set, R1, R8);
        program.number(Do::Right, R1, 32);
        program.jump_if(R1, When::Equal, but as i32, no);
        self.look(program, &self.threads, -4, fresh);
    }

    /// The thread whose number is at `R10 - 4` has an entry from now on, and is in no call. Uses the bytes from `R10 - 24` on.
    fn add(&self, program: &mut Assembler, lost: Label) {
        program.store_number(Width::Double, R10, -24, NO_CALL);
        program.store_number(Width::Double, R10, -16, 0);
        program.map(R1, &self.threads);
        program.register(Do::Set, R2, R10);
        program.number(Do::Add, R2, -4);
        program.register(Do::Set, R3, R10);
        program.number(Do::Add, R3, -24);
        program.number(Do::Set, R4, 0);
        program.call(Function::MapUpdate);
        program.jump_if(R0, When::NotEqual, 0, lost);
    }

    /// The thread whose number is at `R10 - 4` has no entry any more.
    fn forget(&self, program: &mut Assembler) {
        program.map(R1, &self.threads);
        program.register(Do::Set, R2, R10);
        program.number(Do::Add, R2, -4);
        program.call(Function::MapDelete);
    }

    /// Goes on at `then`, after it counted a loss if it comes by `lost`.
    fn then(&self, program: &mut Assembler, lost: Label, then: Label) {
        program.jump(then);
        self.lose(program, lost, then);
    }

    /// Counts a loss, and goes on at `then`.
    fn lose(&self, program: &mut Assembler, lost: Label, then: Label) {
        program.place(lost);
        program.store_number(Width::Word, R10, -4, 0);
        self.look(program, &self.lost, -4, then);
        program.number(Do::Set, R1, 1);
        program.add_atomic(R0, 0, R1);
        program.place(then);
    }

    /// Ends the program, after it counted a loss if it comes by `lost`.
    fn end(&self, program: &mut Assembler, lost: Label, end: Label) {
        self.then(program, lost, end);
        self.leave(program);
    }

    fn leave(&self, program: &mut Assembler) {
        program.number(Do::Set, R0, 0);
        program.exit();
    }

    /// Tells `R3` bytes from `R2` on.
    fn tell(&self, program: &mut Assembler, lost: Label) {
        // BPF_RB_NO_WAKEUP: the reader looks by itself.
        program.number(Do::Set, R4, 1);
        program.map(R1, &self.ring);
        program.call(Function::RingOutput);
        program.jump_if(R0, When::NotEqual, 0, lost);
    }

    /// Tells of a task: `R7` and `R9` are what is special; the thread is in `R8`.
    fn tell_task(&self, program: &mut Assembler, what: u32, lost: Label) {
        let base = -(8 + at::TASK_LEN as i16);
        program.store_number(Width::Word, R10, base + at::KIND as i16, what as i32);
        program.store_number(Width::Word, R10, base + at::CALL as i16, 0);
        program.store(Width::Double, R10, base + at::THREAD as i16, R8);
        program.store(Width::Double, R10, base + at::FIRST as i16, R7);
        program.store(Width::Double, R10, base + at::SECOND as i16, R9);
        program.call(Function::Time);
        program.store(Width::Double, R10, base + at::TIME as i16, R0);
        program.register(Do::Set, R2, R10);
        program.number(Do::Add, R2, base.into());
        program.number(Do::Set, R3, at::TASK_LEN as i32);
        self.tell(program, lost);
    }

    /// Where a call begins: notes the time.
    fn call_begin(&self) -> Vec<u64> {
        let mut program = Assembler::default();
        let p = &mut program;
        let (lost, end, fresh, known) = (p.label(), p.label(), p.label(), p.label());
        p.load(Width::Double, R7, R1, 8);
        p.jump_if(R7, When::Greater, CALLS_COUNT as i32 - 1, end);
        p.store(Width::Word, R10, -4, R7);
        self.look(p, &self.calls, -4, end);
        p.load(Width::Double, R1, R0, 0);
        p.jump_if(R1, When::Equal, 0, end);
        p.call(Function::CurrentThread);
        p.register(Do::Set, R8, R0);
        self.entry(p, end, fresh);
        p.place(known);
        p.register(Do::Set, R6, R0);
        // Before the clock is read: who looks between the two must not take the thread for one without a call.
        p.store_number(Width::Double, R6, 0, BEGINNING);
        p.store(Width::Double, R6, 8, R7);
        p.call(Function::Time);
        p.store(Width::Double, R6, 0, R0);
        if let Whom::All { .. } = self.whom {
            p.jump(end);
            p.place(fresh);
            self.add(p, lost);
            self.look(p, &self.threads, -4, end);
            p.jump(known);
            self.lose(p, lost, end);
        } else {
            p.place(end);
        }
        self.leave(p);
        program.finish()
    }

    /// Where a call ends: tells of it.
    fn call_end(&self) -> Vec<u64> {
        const ENTRY: i16 = -16;
        let mut program = Assembler::default();
        let p = &mut program;
        let (lost, told, end) = (p.label(), p.label(), p.label());
        p.load(Width::Double, R6, R1, 0);
        p.load(Width::Double, R9, R1, 8);
        p.call(Function::CurrentThread);
        p.register(Do::Set, R8, R0);
        p.store(Width::Word, R10, -4, R8);
        self.look(p, &self.threads, -4, end);
        p.load(Width::Double, R1, R0, 0);
        p.jump_if(R1, When::Equal, NO_CALL, end);
        p.store(Width::Double, R10, ENTRY, R0);
        p.store_number(Width::Word, R10, -8, 0);
        self.look(p, &self.scratch, -8, end);
        p.register(Do::Set, R7, R0);
        p.load(Width::Double, R1, R10, ENTRY);
        p.load(Width::Double, R2, R1, 0);
        p.store(Width::Double, R7, at::BEGAN as i16, R2);
        p.load(Width::Double, R2, R1, 8);
        p.store(Width::Word, R10, -8, R2);
        p.store_number(Width::Word, R7, at::KIND as i16, kind::CALL as i32);
        p.store(Width::Word, R7, at::CALL as i16, R2);
        p.store(Width::Double, R7, at::THREAD as i16, R8);
        p.store(Width::Double, R7, at::RESULT as i16, R9);
        p.call(Function::Time);
        p.store(Width::Double, R7, at::ENDED as i16, R0);
        p.register(Do::Set, R1, R7);
        p.number(Do::Add, R1, at::REGISTERS as i32);
        p.number(Do::Set, R2, 64);
        p.register(Do::Set, R3, R6);
        p.number(Do::Add, R3, FIRST_REGISTER);
        p.call(Function::ReadKernel);
        p.jump_if(R0, When::NotEqual, 0, lost);
        p.register(Do::Set, R6, R7);
        self.look(p, &self.calls, -8, told);
        p.load(Width::Double, R7, R0, 0);
        // MAP_ANONYMOUS among the flags of mmap.
        let named = p.label();
        p.register(Do::Set, R1, R7);
        p.number(Do::And, R1, 2);
        p.jump_if(R1, When::Equal, 0, named);
        p.load(Width::Double, R1, R6, at::REGISTERS as i16 + 8 * ARGUMENTS[3] as i16);
        p.jump_if(R1, When::Set, 0x20, told);
        p.place(named);
        // From here on R9 is how many bytes of texts there are.
        p.number(Do::Set, R9, 0);
        self.read(p, 8, 0);
        self.read(p, 24, 4);
        p.register(Do::Set, R2, R6);
        p.register(Do::Set, R3, R9);
        p.number(Do::Add, R3, at::TEXTS as i32);
        self.tell(p, lost);
        self.then(p, lost, told);
        p.load(Width::Double, R1, R10, ENTRY);
        p.store_number(Width::Double, R1, 0, NO_CALL);
        p.place(end);
        self.leave(p);
        program.finish()
    }

    /// Reads what an argument points to, as the bits of `R7` from `shift` on say.
    fn read(&self, p: &mut Assembler, shift: i32, length: i16) {
        let [text, eight, how, lengths, known, read, failed, done] = std::array::from_fn(|_| p.label());
        p.number(Do::Set, R0, 0);
        p.register(Do::Set, R5, R7);
        p.number(Do::Right, R5, shift);
        p.register(Do::Set, R2, R5);
        p.number(Do::Right, R2, 8);
        p.number(Do::And, R2, 0x38);
        p.register(Do::Set, R1, R6);
        p.register(Do::Add, R1, R2);
        p.load(Width::Double, R3, R1, at::REGISTERS as i16);
        p.register(Do::Set, R1, R6);
        p.register(Do::Add, R1, R9);
        p.number(Do::Add, R1, at::TEXTS as i32);
        p.number(Do::And, R5, 0xff);
        for (read, label) in [(Read::Text, text), (Read::Eight, eight), (Read::How, how), (Read::Lengths, lengths)] {
            p.jump_if(R5, When::Equal, read as i32, label);
        }
        p.jump(failed);
        p.place(text);
        p.number(Do::Set, R2, TEXT_LEN_MAX);
        p.call(Function::ReadUserText);
        p.jump_if(R0, When::AtMost, 0, failed);
        p.jump_if(R0, When::Greater, TEXT_LEN_MAX, failed);
        p.jump(done);
        p.place(eight);
        p.number(Do::Set, R8, 8);
        p.jump(known);
        p.place(how);
        p.number(Do::Set, R8, 24);
        p.jump(known);
        p.place(lengths);
        p.load(Width::Double, R8, R6, at::REGISTERS as i16 + 8 * ARGUMENTS[2] as i16);
        let few = p.label();
        p.number(Do::Left, R8, 4);
        p.jump_if(R8, When::Greater, BUFFERS_MAX * 16, few);
        p.jump(read);
        p.place(few);
        p.number(Do::Set, R8, BUFFERS_MAX * 16);
        p.jump(read);
        p.place(known);
        p.place(read);
        p.register(Do::Set, R2, R8);
        p.call(Function::ReadUser);
        p.jump_if(R0, When::NotEqual, 0, failed);
        p.register(Do::Set, R0, R8);
        p.place(done);
        p.store(Width::Word, R6, at::LENGTHS as i16 + length, R0);
        p.register(Do::Add, R9, R0);
        let after = p.label();
        p.jump(after);
        p.place(failed);
        p.store(Width::Word, R6, at::LENGTHS as i16 + length, R0);
        p.place(after);
    }

    /// A new task.
    fn fork(&self, fork: &Fork) -> Vec<u64> {
        let mut program = Assembler::default();
        let p = &mut program;
        let (lost, end, traced) = (p.label(), p.label(), p.label());
        p.load(Width::Word, R7, R1, fork.child);
        p.load(Width::Double, R9, R1, fork.flags);
        p.call(Function::CurrentThread);
        p.register(Do::Set, R8, R0);
        if let Whom::Set { starter } = self.whom {
            p.store(Width::Word, R10, -4, R8);
            p.load(Width::Word, R1, R10, -4);
            p.jump_if(R1, When::Equal, starter as i32, traced);
            self.look(p, &self.threads, -4, end);
            p.place(traced);
            p.store(Width::Word, R10, -4, R7);
            self.add(p, lost);
        }
        self.tell_task(p, kind::FORK, lost);
        self.end(p, lost, end);
        program.finish()
    }

    /// A process runs another program. The thread has the number of its process from now on.
    fn exec(&self) -> Vec<u64> {
        let mut program = Assembler::default();
        let p = &mut program;
        let (lost, end, traced, same) = (p.label(), p.label(), p.label(), p.label());
        p.load(Width::Double, R7, R1, 8);
        p.call(Function::CurrentThread);
        p.register(Do::Set, R8, R0);
        match self.whom {
            Whom::All { .. } => {
                self.entry(p, end, traced);
                p.place(traced);
            }
            Whom::Set { .. } => {
                p.store(Width::Word, R10, -4, R7);
                self.look(p, &self.threads, -4, end);
                p.register(Do::Set, R1, R8);
                p.register(Do::Subtract, R1, R7);
                p.number(Do::Left, R1, 32);
                p.jump_if(R1, When::Equal, 0, same);
                self.forget(p);
                p.place(same);
                p.store(Width::Word, R10, -4, R8);
                self.add(p, lost);
            }
        }
        p.number(Do::Set, R9, 0);
        self.tell_task(p, kind::EXEC, lost);
        self.end(p, lost, end);
        program.finish()
    }

    /// A thread ends.
    fn exit(&self) -> Vec<u64> {
        let mut program = Assembler::default();
        let p = &mut program;
        let (lost, end, idle) = (p.label(), p.label(), p.label());
        p.call(Function::CurrentThread);
        p.register(Do::Set, R8, R0);
        p.number(Do::Set, R7, 0);
        p.number(Do::Set, R9, 0);
        self.entry(p, end, idle);
        p.load(Width::Double, R7, R0, 0);
        p.load(Width::Double, R9, R0, 8);
        self.forget(p);
        p.place(idle);
        self.tell_task(p, kind::EXIT, lost);
        self.end(p, lost, end);
        program.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_all_programs() {
        if let Err(error) = super::super::Bpf::check() {
            return eprintln!("skipped: no programs in this kernel: {error}");
        }
        let fork = Fork::find().expect("there are new tasks");
        for whom in [Whom::Set { starter: 1 }, Whom::All { but: std::process::id() }] {
            let programs = Programs::load(whom, 1 << 16, &fork).unwrap_or_else(|error| panic!("{whom:?}: {error}"));
            programs.add(1).expect("room");
            assert!(programs.threads.keys().contains(&1u32.to_ne_bytes().to_vec()));
        }
    }
}

//! The programs that the kernel runs: one where a call begins, one where it ends, and three for new, changed and ended tasks.
//!
//! Where a call begins, its arguments are kept by thread; where it ends, everything is told at once. Texts are read at the
//! end, since the kernel has read them by then, so that they are in memory.
//!
//! Costs     a look into an array at every call of every process, into one hash map at every end of a call; about a
//!           microsecond more for calls that are told of.

use super::tracepoint::Fork;
use crate::trace::calls::{Does, Memory, TABLE};
use ashlar_env::bpf::assembler::Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use ashlar_env::bpf::assembler::{Assembler, Do, Function, Label, When, Width};
use ashlar_env::bpf::{Attached, Kind, Map};
use std::io;

/// Numbers of calls that programs look at.
const CALLS_COUNT: u32 = 512;
/// Threads that can be in calls at once.
const PENDING_MAX: u32 = 1 << 15;
/// Processes that are traced at once.
const PROCESSES_MAX: u32 = 1 << 16;
/// Most bytes of a path.
pub const TEXT_LEN_MAX: i32 = 4096;
/// Buffers of a list whose lengths are told.
const BUFFERS_MAX: i32 = 32;

/// What stands where in what is told of a call; of registers, see [`ARGUMENTS`].
pub mod at {
    /// What is told: a call, or see below.
    pub const KIND: usize = 0;
    pub const THREAD: usize = 8;
    pub const BEGAN: usize = 16;
    pub const CALL: usize = 24;
    pub const REGISTERS: usize = 32;
    pub const ENDED: usize = 96;
    pub const RESULT: usize = 104;
    /// Bytes of both texts, or an error below zero.
    pub const LENGTHS: usize = 112;
    pub const TEXTS: usize = 128;
    /// Of what is told of tasks.
    pub const TIME: usize = 16;
    pub const FIRST: usize = 24;
    pub const SECOND: usize = 32;
    pub const TASK_LEN: usize = 40;
}

/// Kinds of what is told.
pub mod kind {
    pub const CALL: u64 = 0;
    /// A new task: its number, flags of `clone`.
    pub const FORK: u64 = 1;
    /// Another program: the number that the thread had.
    pub const EXEC: u64 = 2;
    /// A thread's end: whether it was in a call.
    pub const EXIT: u64 = 3;
}

/// Which of the eight registers, from `r10` on in `struct pt_regs`, has an argument.
pub const ARGUMENTS: [usize; 6] = [7, 6, 5, 0, 2, 1];
const FIRST_REGISTER: i32 = 56;
/// An entry of `pending`: when, which call, registers.
const ENTRY_LEN: usize = 80;
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
    /// Processes that are set, and their children.
    Set {
        /// A thread of ours: what it starts is set.
        starter: u32,
    },
}

/// Programs in the kernel, and what they share with us.
pub struct Programs {
    pub processes: Map,
    pub pending: Map,
    pub ring: Map,
    lost: Map,
    attached: Vec<Attached>,
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
            processes: Map::new(Kind::Hash, 4, 4, PROCESSES_MAX)?,
            pending: Map::new(Kind::Hash, 4, ENTRY_LEN, PENDING_MAX)?,
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
        let Parts { processes, pending, ring, lost, .. } = parts;
        Ok(Programs { processes, pending, ring, lost, attached })
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
    processes: Map,
    pending: Map,
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

    /// Goes to `no` unless the process of the thread in `R8` is traced. Uses the four bytes at `R10 - 4`.
    fn filter(&self, program: &mut Assembler, no: Label) {
        program.register(Do::Set, R1, R8);
        program.number(Do::Right, R1, 32);
        match self.whom {
            Whom::All { but } => program.jump_if(R1, When::Equal, but as i32, no),
            Whom::Set { .. } => {
                program.store(Width::Word, R10, -4, R1);
                self.look(program, &self.processes, -4, no);
            }
        }
    }

    /// Ends the program, after it counted a loss if it comes by `lost`.
    fn end(&self, program: &mut Assembler, lost: Label, end: Label) {
        program.jump(end);
        program.place(lost);
        program.store_number(Width::Word, R10, -4, 0);
        self.look(program, &self.lost, -4, end);
        program.number(Do::Set, R1, 1);
        program.add_atomic(R0, 0, R1);
        program.place(end);
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
    fn tell_task(&self, program: &mut Assembler, what: u64, lost: Label) {
        let base = -(8 + at::TASK_LEN as i16);
        program.store_number(Width::Double, R10, base + at::KIND as i16, what as i32);
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

    /// Where a call begins: keeps what it was asked.
    fn call_begin(&self) -> Vec<u64> {
        const ENTRY: i16 = -(8 + ENTRY_LEN as i16);
        let mut program = Assembler::default();
        let p = &mut program;
        let (lost, end) = (p.label(), p.label());
        p.load(Width::Double, R6, R1, 0);
        p.load(Width::Double, R7, R1, 8);
        p.jump_if(R7, When::Greater, CALLS_COUNT as i32 - 1, end);
        p.store(Width::Word, R10, -4, R7);
        self.look(p, &self.calls, -4, end);
        p.load(Width::Double, R9, R0, 0);
        p.jump_if(R9, When::Equal, 0, end);
        p.call(Function::CurrentThread);
        p.register(Do::Set, R8, R0);
        self.filter(p, end);
        p.register(Do::Set, R1, R10);
        p.number(Do::Add, R1, i32::from(ENTRY) + 16);
        p.number(Do::Set, R2, 64);
        p.register(Do::Set, R3, R6);
        p.number(Do::Add, R3, FIRST_REGISTER);
        p.call(Function::ReadKernel);
        p.jump_if(R0, When::NotEqual, 0, lost);
        // MAP_ANONYMOUS among the flags of mmap.
        let named = p.label();
        p.number(Do::And, R9, 2);
        p.jump_if(R9, When::Equal, 0, named);
        p.load(Width::Double, R1, R10, ENTRY + 16 + 8 * ARGUMENTS[3] as i16);
        p.jump_if(R1, When::Set, 0x20, end);
        p.place(named);
        p.store(Width::Double, R10, ENTRY + 8, R7);
        p.call(Function::Time);
        p.store(Width::Double, R10, ENTRY, R0);
        p.store(Width::Word, R10, -4, R8);
        p.map(R1, &self.pending);
        p.register(Do::Set, R2, R10);
        p.number(Do::Add, R2, -4);
        p.register(Do::Set, R3, R10);
        p.number(Do::Add, R3, ENTRY.into());
        p.number(Do::Set, R4, 0);
        p.call(Function::MapUpdate);
        p.jump_if(R0, When::NotEqual, 0, lost);
        self.end(p, lost, end);
        program.finish()
    }

    /// Where a call ends: tells of it.
    fn call_end(&self) -> Vec<u64> {
        let mut program = Assembler::default();
        let p = &mut program;
        let (lost, end) = (p.label(), p.label());
        p.load(Width::Double, R9, R1, 8);
        p.call(Function::CurrentThread);
        p.register(Do::Set, R8, R0);
        p.store(Width::Word, R10, -4, R8);
        self.look(p, &self.pending, -4, end);
        p.register(Do::Set, R7, R0);
        p.store_number(Width::Word, R10, -8, 0);
        self.look(p, &self.scratch, -8, end);
        p.register(Do::Set, R6, R0);
        p.store_number(Width::Double, R6, at::KIND as i16, kind::CALL as i32);
        p.store(Width::Double, R6, at::THREAD as i16, R8);
        p.store(Width::Double, R6, at::RESULT as i16, R9);
        for offset in (0..ENTRY_LEN as i16).step_by(8) {
            p.load(Width::Double, R1, R7, offset);
            p.store(Width::Double, R6, at::BEGAN as i16 + offset, R1);
        }
        p.call(Function::Time);
        p.store(Width::Double, R6, at::ENDED as i16, R0);
        self.forget(p);
        p.load(Width::Double, R1, R6, at::CALL as i16);
        p.store(Width::Word, R10, -8, R1);
        self.look(p, &self.calls, -8, end);
        p.load(Width::Double, R7, R0, 0);
        // From here on R9 is how many bytes of texts there are.
        p.number(Do::Set, R9, 0);
        self.read(p, 8, 0);
        self.read(p, 24, 8);
        p.register(Do::Set, R2, R6);
        p.register(Do::Set, R3, R9);
        p.number(Do::Add, R3, at::TEXTS as i32);
        self.tell(p, lost);
        self.end(p, lost, end);
        program.finish()
    }

    /// The thread of `R10 - 4` is in no call.
    fn forget(&self, p: &mut Assembler) {
        p.map(R1, &self.pending);
        p.register(Do::Set, R2, R10);
        p.number(Do::Add, R2, -4);
        p.call(Function::MapDelete);
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
        p.store(Width::Double, R6, at::LENGTHS as i16 + length, R0);
        p.register(Do::Add, R9, R0);
        let after = p.label();
        p.jump(after);
        p.place(failed);
        p.store(Width::Double, R6, at::LENGTHS as i16 + length, R0);
        p.place(after);
    }

    /// A new task.
    fn fork(&self, fork: &Fork) -> Vec<u64> {
        const THREAD: i32 = 0x1_0000;
        let mut program = Assembler::default();
        let p = &mut program;
        let (lost, end, traced, told) = (p.label(), p.label(), p.label(), p.label());
        p.load(Width::Word, R7, R1, fork.child);
        p.load(Width::Double, R9, R1, fork.flags);
        p.call(Function::CurrentThread);
        p.register(Do::Set, R8, R0);
        if let Whom::Set { starter } = self.whom {
            p.store(Width::Word, R10, -4, R8);
            p.load(Width::Word, R1, R10, -4);
            p.jump_if(R1, When::Equal, starter as i32, traced);
            self.filter(p, end);
            p.place(traced);
            p.jump_if(R9, When::Set, THREAD, told);
            p.store(Width::Word, R10, -4, R7);
            p.store_number(Width::Word, R10, -8, 1);
            p.map(R1, &self.processes);
            p.register(Do::Set, R2, R10);
            p.number(Do::Add, R2, -4);
            p.register(Do::Set, R3, R10);
            p.number(Do::Add, R3, -8);
            p.number(Do::Set, R4, 0);
            p.call(Function::MapUpdate);
            p.jump_if(R0, When::NotEqual, 0, lost);
        } else {
            p.place(traced);
        }
        p.place(told);
        self.tell_task(p, kind::FORK, lost);
        self.end(p, lost, end);
        program.finish()
    }

    /// A process runs another program.
    fn exec(&self) -> Vec<u64> {
        let mut program = Assembler::default();
        let p = &mut program;
        let (lost, end) = (p.label(), p.label());
        p.load(Width::Double, R7, R1, 8);
        p.call(Function::CurrentThread);
        p.register(Do::Set, R8, R0);
        self.filter(p, end);
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
        self.filter(p, end);
        p.number(Do::Set, R7, 0);
        p.number(Do::Set, R9, 0);
        p.store(Width::Word, R10, -4, R8);
        self.look(p, &self.pending, -4, idle);
        p.number(Do::Set, R7, 1);
        p.load(Width::Double, R9, R0, 8);
        self.forget(p);
        p.place(idle);
        self.tell_task(p, kind::EXIT, lost);
        self.end(p, lost, end);
        program.finish()
    }
}

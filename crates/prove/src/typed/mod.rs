//! Typed faults: every kind of block is damaged in every way, and the outcomes are a matrix (Zhang, Rajimwale,
//! Arpaci-Dusseau and Arpaci-Dusseau, "End-to-end data integrity for file systems: a ZFS case study", FAST 2010).
//!
//! A *case* is a type, a fault and a number; with the seed they say which byte is damaged and how. The pool is made once for a
//! seed and damaged anew for each case: opened, read, changed, checked, closed, opened and read again. Everything read is
//! compared with a model.
//!
//! * `scene`: the pool that is damaged; `model`: what must be in it; `read`: comparing
//! * `disk`: the disk; `fault`: ways to damage it; `pool`: one case; `matrix`: types, outcomes, the report
//! * `ext4`: the same for ext4 of the kernel, mounted on the disk
//! * `estimate`: the paper's arithmetic from trials to probabilities
//!
//! Departs from the paper: it corrupted what four commands touch; here everything is read and written after each fault. It
//! flipped bits in fields of structures on the heap; here in the bytes of cached nodes, their pointers, messages and data.

mod disk;
pub mod estimate;
mod ext4;
mod fault;
mod matrix;
mod model;
mod pool;
mod read;
mod scene;

pub use fault::Fault;
pub use matrix::{Cell, Example, Matrix, Outcome, Target, Type, Without};

use crate::seeded::Dice;
use ashlar_betr::Betr;
use ashlar_files::Files;
use ashlar_vfs::Engine;
use matrix::Verdict;
use scene::Scene;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A case that takes longer hangs.
const CASE_MAX: Duration = Duration::from_secs(120);
/// Examples of outcomes that must not be, of one type and fault.
const EXAMPLES_MAX: usize = 1;

/// One case, as `TYPE/FAULT/NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// What is damaged.
    pub of: Type,
    /// How.
    pub fault: Fault,
    /// Which of many.
    pub number: u64,
}

impl Case {
    /// Reads a name.
    pub fn named(target: Target, text: &str) -> Result<Case, String> {
        let refuse = || format!("{text:?} is no case: write TYPE/FAULT/NUMBER, as in data-raw/bit-flip/0");
        let mut parts = text.split('/');
        let (Some(of), Some(fault), Some(number), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(refuse());
        };
        let number = number.parse().map_err(|_| refuse())?;
        Ok(Case { of: Type::named(target, of)?, fault: fault.parse()?, number })
    }
    /// Its name.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.of.name(), self.fault.name(), self.number)
    }
    /// Chance for this case alone.
    fn seed(&self, seed: u64) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(self.name().as_bytes(), seed)
    }
}

/// What to try.
#[derive(Clone, Debug)]
pub struct TypedOptions {
    /// On what.
    pub target: Target,
    /// The engine of the pool's file system.
    pub engine: Engine,
    /// Decides everything.
    pub seed: u64,
    /// How long to go on; every type and fault is tried once in any case.
    pub budget: Duration,
    /// Only this type.
    pub of: Option<Type>,
    /// Only this fault.
    pub fault: Option<Fault>,
    /// Only this case.
    pub case: Option<Case>,
    /// What the pool does without: a negative control.
    pub without: Option<Without>,
}

impl TypedOptions {
    /// All of a target, once.
    pub fn new(target: Target, seed: u64) -> TypedOptions {
        let budget = Duration::ZERO;
        TypedOptions {
            target,
            engine: Engine::default(),
            seed,
            budget,
            of: None,
            fault: None,
            case: None,
            without: None,
        }
    }
    fn replay(&self, case: Case) -> String {
        let control = self.without.map_or_else(String::new, |without| format!(" --without {}", without.name()));
        let (target, seed) = (self.target.name(), self.seed);
        let engine = match self.engine {
            engine if engine == Engine::default() => String::new(),
            engine => format!(" --engine {engine}"),
        };
        format!("ashlar prove faults --target {target}{engine} --seed {seed}{control} --case {}", case.name())
    }
}

/// Tries cases until the time is used up. An error means that it could not be tried. `tried` is told the number of cases.
pub fn explore_typed(
    options: &TypedOptions,
    stop: &Arc<AtomicBool>,
    tried: &mut dyn FnMut(u64),
) -> Result<Matrix, String> {
    let mut matrix = Matrix::new(options.target, options.seed, options.without);
    let mut subject = Subject::new(options, stop)?;
    let began = Instant::now();
    for number in 0.. {
        let mut any = false;
        for of in Type::of(options.target).filter(|of| options.of.is_none_or(|only| only == *of)) {
            for fault in Fault::DISK.into_iter().chain(Fault::MEMORY) {
                let case = Case { of, fault, number };
                let out_of_time = number > 0 && began.elapsed() >= options.budget;
                if stop.load(Ordering::Acquire) || out_of_time {
                    return Ok(matrix);
                }
                let chosen = options.fault.is_none_or(|only| only == fault)
                    && options.case.is_none_or(|only| (only.of, only.fault) == (of, fault));
                if !chosen {
                    continue;
                }
                let case = options.case.unwrap_or(case);
                let verdict = subject.run(case)?;
                any |= verdict.outcome != Outcome::NotTried;
                note(&mut matrix, options, case, verdict);
                tried(matrix.cases);
            }
        }
        if !any || options.case.is_some() {
            break;
        }
    }
    Ok(matrix)
}

fn note(matrix: &mut Matrix, options: &TypedOptions, case: Case, verdict: Verdict) {
    let Verdict { outcome, said } = verdict;
    matrix.add(case.of, case.fault, outcome);
    let prefix = format!("{}/{}/", case.of.name(), case.fault.name());
    let alike = matrix.examples.iter().filter(|example| example.case.starts_with(&prefix)).count();
    if options.case.is_some() || (outcome.is_bad() && alike < EXAMPLES_MAX) {
        let memory = case.of.in_memory().is_some();
        matrix.examples.push(Example { case: case.name(), outcome, said, replay: options.replay(case), memory });
    }
}

/// Runs a case on a pool with a file system of a certain engine.
type Run = fn(&Scene, Type, &pool::Harm, u64, Option<Without>) -> Verdict;

/// What cases are tried on.
enum Subject {
    Pool { scene: Arc<Scene>, run: Run, seed: u64, without: Option<Without> },
    Ext4 { stand: Box<ext4::Ext4>, seed: u64 },
}

impl Subject {
    fn new(options: &TypedOptions, stop: &Arc<AtomicBool>) -> Result<Subject, String> {
        match options.target {
            Target::Pool => {
                let (scene, run): (_, Run) = match options.engine {
                    Engine::Files => (scene::make::<Files>(options.seed, options.without)?, pool::run::<Files>),
                    Engine::Betr => (scene::make::<Betr>(options.seed, options.without)?, pool::run::<Betr>),
                };
                Ok(Subject::Pool { scene: Arc::new(scene), run, seed: options.seed, without: options.without })
            }
            Target::Ext4 => {
                if let Some(obstacle) = ext4::obstacle() {
                    return Err(obstacle);
                }
                let stand = Box::new(ext4::Ext4::new(options.seed, stop)?);
                Ok(Subject::Ext4 { stand, seed: options.seed })
            }
        }
    }

    fn run(&mut self, case: Case) -> Result<Verdict, String> {
        match self {
            Subject::Ext4 { stand, seed } => stand.run(case.of, case.fault, Dice::new(case.seed(*seed))),
            Subject::Pool { scene, run, seed, without } => {
                let (scene, run, seed, without) = (scene.clone(), *run, case.seed(*seed), *without);
                watched(move || {
                    let Some(harm) = pool::harm(&scene, case.of, case.fault, Dice::new(seed)) else {
                        return Verdict::new(Outcome::NotTried, Vec::new());
                    };
                    run(&scene, case.of, &harm, seed, without)
                })
            }
        }
    }
}

/// Runs a case on a thread of its own; panics and hangs are outcomes.
fn watched(case: impl FnOnce() -> Verdict + Send + 'static) -> Result<Verdict, String> {
    let (sender, receiver) = mpsc::channel();
    let run = move || {
        let verdict = std::panic::catch_unwind(AssertUnwindSafe(case)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            Verdict::new(Outcome::Crash, vec![format!("panic: {}", text.unwrap_or_default())])
        });
        // Nobody listens any more if it took too long.
        let _ = sender.send(verdict);
    };
    std::thread::Builder::new().stack_size(8 << 20).spawn(run).map_err(|error| error.to_string())?;
    let hangs = || Verdict::new(Outcome::Crash, vec![format!("it did not end within {} s", CASE_MAX.as_secs())]);
    Ok(receiver.recv_timeout(CASE_MAX).unwrap_or_else(|_| hangs()))
}

//! What the tests of the engine share.

use ashlar_env::Env;
use ashlar_env::sim::{Schedule, Sim};
use ashlar_vfs::{FileKind, NewNode};
use std::future::Future;

/// Runs a test in a simulation of this seed.
pub fn simulate<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    seed: u64,
    test: impl FnOnce(Env) -> F,
) -> T {
    let sim = Sim::new(seed, Schedule::Random);
    let run = test(sim.env());
    sim.run(run).unwrap_or_else(|_| panic!("seed {seed}: deadlock"))
}

/// Something new that belongs to root.
pub fn node(kind: FileKind) -> NewNode {
    NewNode { kind, permissions: 0o755, uid: 0, gid: 0, device: 0, umask: 0, open: false }
}

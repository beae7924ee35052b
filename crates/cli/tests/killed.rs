//! The program, killed under load. Needs root and /dev/fuse.

use ashlar_prove::{Daemon, explore_daemon};
use ashlar_vfs::Engine;
use std::path::Path;

#[test]
fn what_was_acknowledged_survives_kill_9() {
    killed(Engine::Files);
}

#[test]
fn it_survives_on_the_write_optimized_engine_too() {
    killed(Engine::Betr);
}

fn killed(engine: Engine) {
    if Daemon::is_skipped() {
        return;
    }
    let outcome = explore_daemon(1, Path::new(env!("CARGO_BIN_EXE_ashlar")), engine, 4);
    let outcome = outcome.unwrap_or_else(|failure| panic!("seed {}: {}", failure.seed, failure.what));
    println!("{outcome:?}");
    assert_eq!(outcome.kills, 4);
    assert!(outcome.acknowledged >= 4, "every round acknowledges something");
}

//! The suite of histories through FUSE, then once more after mounting again. Needs root and /dev/fuse.

use ashlar_prove::{Daemon, Mounted};
use ashlar_vfs::Engine;
use std::path::Path;

#[test]
fn histories_through_fuse_agree_with_the_model_and_survive_mounting_again() {
    histories(Engine::Files);
}

#[test]
fn histories_agree_on_the_write_optimized_engine_too() {
    histories(Engine::Betr);
}

/// Runs histories on a mount of a new pool.
fn histories(engine: Engine) {
    if Daemon::is_skipped() {
        return;
    }
    let daemon = Daemon::new(Path::new(env!("CARGO_BIN_EXE_ashlar")), engine, &format!("mounted-{engine}"))
        .expect("a temporary directory");
    daemon.up().unwrap_or_else(|error| panic!("{error}"));
    let mut histories = Vec::new();
    for seed in 0..12 {
        let run = Mounted::run(seed, &daemon.mount(), 300);
        let (history, outcome) = run.unwrap_or_else(|failure| panic!("seed {seed}: {}", failure.what));
        assert!(outcome.succeeded * 2 > outcome.operations, "most operations fail: {outcome:?}");
        // The kernel's FUSE client knows no other modes of fallocate.
        let known = ["fallocate Collapse", "fallocate Insert"];
        assert!(outcome.lacking.iter().all(|what| known.contains(&what.as_str())), "{:?}", outcome.lacking);
        histories.push(history);
    }
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
    daemon.up().unwrap_or_else(|error| panic!("{error}"));
    for (seed, history) in histories.iter().enumerate() {
        history.verify().unwrap_or_else(|failure| panic!("seed {seed}, after mounting again: {}", failure.what));
    }
    daemon.check().unwrap_or_else(|error| panic!("{error}"));
}

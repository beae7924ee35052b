//! The contract of block devices, healthy and with members dead.

use super::*;
use crate::{Journaling, ParityRule, Verify};
use ashlar_block::conformance;

/// An array of so many members, the first of which die before anything is written.
async fn array(env: Env, level: Level, groups: &[u64], dead: usize, options: Options) -> Device {
    let rig = Rig::new(&env, groups);
    rig.create(level).await;
    let array = rig.open_with(options).await;
    (0..dead).for_each(|slot| rig.kill(slot));
    as_device(array)
}

macro_rules! conforms {
    ($($name:ident: $level:ident, $groups:expr, $dead:expr, $options:expr;)*) => {
        $(conformance!($name, |env| array(env, Level::$level, &$groups, $dead, $options));)*
    };
}

conforms! {
    raid0: Raid0, [2, 2, 2], 0, Options::default();
    raid1: Raid1, [3, 3, 3], 0, Options::default();
    raid4: Raid4, [2, 2, 2], 0, Options::default();
    raid5: Raid5, [2, 2, 2, 2], 0, Options::default();
    raid6: Raid6, [2, 2, 2, 2, 2], 0, Options::default();
    raid1_degraded: Raid1, [3, 3, 3], 2, Options::default();
    raid4_degraded: Raid4, [2, 2, 2], 1, Options::default();
    raid5_degraded: Raid5, [2, 2, 2, 2], 1, Options::default();
    raid6_degraded_once: Raid6, [2, 2, 2, 2, 2], 1, Options::default();
    raid6_degraded: Raid6, [2, 2, 2, 2, 2], 2, Options::default();
    unequal: Raid5, [1, 3, 2, 4, 4], 0, Options::default();
    fewest_requests: Raid6, [2, 2, 2, 2, 2, 2], 0, Options { parity: ParityRule::FewestRequests, ..Options::default() };
    own: Raid5, [2, 2, 2], 0, Options { verify: Verify::Own, ..Options::default() };
    no_journal: Raid5, [2, 2, 2], 0, Options { journal: Journaling::Off, ..Options::default() };
}

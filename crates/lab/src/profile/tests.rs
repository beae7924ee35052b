use super::*;
use crate::stand::{Place, StandOptions};
use crate::vector::Family;

#[test]
fn a_directory_is_measured_and_left_as_it_was() {
    let home = std::env::temp_dir().join(format!("ashlar-profile-{}", std::process::id()));
    std::fs::create_dir_all(&home).expect("a place for files");
    let mut stand = Stand::open(&StandOptions::new(Place::Path(home.clone()), "ashlar".into())).expect("a directory");
    let run = |stand: &mut Stand, stop: bool| {
        let stop = AtomicBool::new(stop);
        profile(stand, "here", Source::Measured, Duration::from_millis(500), 1, &stop, &|_, _| {})
    };
    let found = run(&mut stand, false).expect("it is measured");
    let vector = &found.vector;
    for family in [
        Family::CR,
        Family::OPEN,
        Family::RM,
        Family::RDC,
        Family::WNC,
        Family::RMC,
        Family::SYNEW,
        Family::RD,
        Family::RRD,
        Family::WNF,
        Family::CLD,
        Family::PCA,
        Family::PCR,
        Family::PRS,
        Family::PFS,
        Family::URD,
        Family::URS,
        Family::UFS,
        Family::USY,
        Family::WBS,
        Family::WR,
    ] {
        assert!(vector.has(family), "{}", family.name());
    }
    // It can be written down and read again.
    let again = Vector::read(vector.to_string().as_bytes()).expect("a vector");
    assert_eq!(again.iter().count(), vector.iter().count());
    assert_eq!(std::fs::read_dir(stand.path()).expect("it is there").count(), 0, "its files are gone");
    let stopped = run(&mut stand, true).expect_err("Ctrl-C");
    assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
    stand.put_away().expect("nothing is in the way");
    std::fs::remove_dir_all(&home).expect("it is ours");
}

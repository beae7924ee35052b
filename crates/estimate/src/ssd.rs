//! What ten models of flash drives did in the field (Schroeder, Lagisetty and Merchant, "Flash reliability in production:
//! the expected and the unexpected", FAST '16, Tables 1 to 6).

/// One model of drive; its first four years in the field (eMLC: three).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SsdModel {
    /// Its name in the paper.
    pub name: &'static str,
    /// Years that the numbers are of.
    pub years: f64,
    /// Cycles of program and erase that the vendor promises.
    pub pe_limit: u32,
    /// Mean cycles that drives had.
    pub pe_mean: u32,
    /// Part of the drives with an uncorrectable error.
    pub ue_drives: f64,
    /// Part of the days of drives with an uncorrectable error.
    pub ue_days: f64,
    /// Raw bit error rate: median, 95th and 99th percentile over drives.
    pub rber: [f64; 3],
    /// Percent of the drives with new bad blocks, and among those the median and mean number.
    pub bad_blocks: (f64, u32, u32),
    /// Percent of the drives with a bad chip.
    pub bad_chip_percent: f64,
    /// Percent of the drives that were repaired.
    pub repaired_percent: f64,
    /// Percent of the drives that were replaced.
    pub replaced_percent: f64,
    /// Mean days between repairs.
    pub days_between_repairs: u32,
}

macro_rules! models {
    ($($name:literal $years:literal $limit:literal $mean:literal $ued:literal $uedd:literal [$r50:literal $r95:literal $r99:literal]
       $bb:literal ($median:literal $avg:literal) $chip:literal $repair:literal $replaced:literal $days:literal;)*) => {
        /// All of them.
        pub const SSD_MODELS: &[SsdModel] = &[$(SsdModel {
            name: $name, years: $years, pe_limit: $limit, pe_mean: $mean, ue_drives: $ued, ue_days: $uedd, rber: [$r50, $r95, $r99],
            bad_blocks: ($bb, $median, $avg), bad_chip_percent: $chip, repaired_percent: $repair, replaced_percent: $replaced,
            days_between_repairs: $days,
        }),*];
    };
}

models! {
    "MLC-A" 4.0 3000 730 0.266 2.14e-3 [2.1e-8 2.2e-6 5.8e-6] 31.1 (2 772) 5.6 8.8 4.16 13262;
    "MLC-B" 4.0 3000 949 0.575 1.99e-3 [3.2e-8 4.6e-7 9.1e-7] 79.3 (3 578) 6.5 17.1 9.82 6134;
    "MLC-C" 4.0 3000 529 0.324 2.51e-3 [2.2e-8 1.1e-7 2.3e-7] 30.7 (2 555) 6.6 8.5 4.14 12970;
    "MLC-D" 4.0 3000 544 0.324 2.28e-3 [2.4e-8 1.9e-6 2.7e-5] 32.4 (3 312) 4.2 14.6 6.21 5464;
    "SLC-A" 4.0 100000 860 0.503 1.35e-3 [5.4e-9 2.8e-7 6.2e-6] 39.0 (2 584) 3.8 9.95 5.02 11402;
    "SLC-B" 4.0 100000 504 0.284 2.06e-3 [6.0e-10 1.3e-8 2.2e-8] 64.6 (2 570) 2.3 30.8 10.31 2364;
    "SLC-C" 4.0 100000 457 0.203 2.96e-3 [5.8e-10 3.4e-8 3.5e-8] 91.5 (4 451) 1.2 25.7 5.08 2659;
    "SLC-D" 4.0 100000 185 0.634 6.07e-3 [8.5e-9 3.3e-8 5.3e-8] 64.0 (3 197) 2.5 8.35 5.55 8547;
    "eMLC-A" 3.0 10000 607 0.863 8.35e-3 [1.0e-5 5.1e-5 1.2e-4] 53.8 (2 1960) 1.4 10.9 4.37 8547;
    "eMLC-B" 3.0 10000 377 0.905 7.82e-3 [2.9e-6 2.6e-5 4.1e-5] 61.2 (2 557) 1.6 6.2 3.78 14492;
}

impl SsdModel {
    /// The model of a name.
    pub fn find(name: &str) -> Option<&'static SsdModel> {
        SSD_MODELS.iter().find(|model| model.name.eq_ignore_ascii_case(name))
    }

    /// Days with uncorrectable errors of a drive that has any: more than chance would give, so drives differ.
    pub fn days_per_affected(&self) -> f64 {
        self.ue_days * 365.0 * self.years / self.ue_drives
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as the paper prints it.
    const PRINTED: &str = include_str!("ssd.txt");

    #[test]
    fn the_table_prints_again_digit_for_digit() {
        let mut text = String::new();
        for model in SSD_MODELS {
            let [r50, r95, r99] = model.rber.map(|rate| format!("{rate:.1e}"));
            let (bb, median, mean) = model.bad_blocks;
            let ued = format!("{:.3}", model.ue_drives);
            text += &format!(
                "{} {}k {} {} {:.2e} {r50}/{r95}/{r99} {bb:.1} ({median}/{mean}) {} {} {:.2} {}\n",
                model.name,
                model.pe_limit / 1000,
                model.pe_mean,
                &ued[1..],
                model.ue_days,
                model.bad_chip_percent,
                model.repaired_percent,
                model.replaced_percent,
                model.days_between_repairs
            );
        }
        assert_eq!(text, PRINTED);
    }

    #[test]
    fn errors_come_on_more_days_of_a_drive_than_chance_would_give() {
        for (name, days) in [("MLC-A", 11.8), ("MLC-B", 5.1), ("SLC-A", 3.9), ("SLC-D", 14.0), ("eMLC-A", 10.6)] {
            let got = SsdModel::find(name).expect("a model").days_per_affected();
            assert!((got / days - 1.0).abs() < 0.01, "{name}: {got}");
        }
    }
}

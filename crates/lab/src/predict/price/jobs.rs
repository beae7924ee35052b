//! What is used of what all threads share, from jobs that were done by several at once (`P…` of a vector).
//!
//! A job consists of calls. A thread alone takes for it what these take one after the other; together, all are done at a rate that
//! says what one job uses of what they share. So each millisecond of such a call uses a share of a millisecond. The vector's own
//! prices of the calls are taken, and not what the job took alone: both were measured, but what a thread alone waits for another
//! processor to wake up varies between two times by a factor of two, and then the share would. But where a job that reads took
//! more, it found less in memory than the calls did, and that counts.

use crate::vector::{Family as F, Vector};

/// A family, what one job takes a thread alone, and what of that are calls that another family stands for; milliseconds.
#[derive(Debug)]
struct Job {
    family: F,
    alone: f64,
    beside: f64,
    /// For how long one keeps busy what all share.
    uses: Option<F>,
    /// The depth at which most are done a second.
    used_up: f64,
}

/// All that a vector has.
#[derive(Debug)]
pub struct Jobs(Vec<Job>);

impl Jobs {
    /// By the prices of a vector.
    pub fn of(vector: &Vector) -> Jobs {
        let calls = |families: &[F]| families.iter().filter_map(|family| vector.number(*family)).sum::<f64>();
        let sized = |family: F, kb: f64| vector.sized(family, kb).map_or(0.0, |terms| terms.milliseconds());
        let rate = |family: F, kb: f64| vector.once(family, kb).map_or(0.0, |terms| terms.milliseconds());
        let first = if vector.has(F::WNF) { F::WNF } else { F::WNO };
        let write = |kb: f64| calls(&[F::LUS_NN, F::CR, first, F::CLOSE]) + rate(F::WNC, kb);
        let synced = write(16.0) + sized(F::RMC, 16.0);
        let jobs = [
            (F::PCA, calls(&[F::STAT, F::OPEN, F::RDO, F::CLOSE]) + rate(F::RDC, 4.0), 0.0, None),
            (F::PCR, write(4.0), 0.0, None),
            (F::PRD, sized(F::RRD, 4.0), 0.0, Some(F::URD)),
            (F::PRS, sized(F::RD, 128.0), 0.0, Some(F::URS)),
            (F::PFS, calls(&[F::LUS_NC, F::OPEN, F::CLOSE]) + sized(F::RFS, 16.0), 0.0, Some(F::UFS)),
            (F::PSY, synced + sized(F::SYNEW, 16.0), synced, Some(F::USY)),
            (F::PDS, synced + sized(F::SYNEW, 16.0), synced, None),
        ];
        let known = jobs.into_iter().filter(|(family, ..)| vector.has(*family));
        let job = |(family, alone, beside, uses)| {
            let each = |depth: &f64| together(vector, family, *depth) / depth;
            let depths = vector.of(family).map(|(depth, _)| depth as f64);
            let used_up = depths.min_by(|one, other| each(one).total_cmp(&each(other))).unwrap_or(1.0);
            Job { family, alone, beside, uses, used_up }
        };
        Jobs(known.map(job).collect())
    }

    /// How much of what is shared a millisecond of a call uses, by the first of some families that was measured. Where most
    /// jobs a second are done, what is shared is used up; at less depth some of it is idle, and at more they may be in each
    /// other's way. What goes to the device uses the less the more of it goes together (a commit for all, a way over the disk
    /// for all), so for how long that keeps busy was measured at each depth.
    pub fn share(&self, vector: &Vector, families: &[F], depth: f64) -> f64 {
        let Some(job) = families.iter().find_map(|family| self.0.iter().find(|job| job.family == *family)) else {
            return 0.0;
        };
        let uses = match job.uses.filter(|uses| vector.has(*uses)) {
            Some(uses) => together(vector, uses, depth),
            None => {
                let depth = depth.max(job.used_up);
                together(vector, job.family, depth) / depth
            }
        };
        // What others than the calls of this family use is not theirs.
        let beside = if job.beside > 0.0 { job.beside * self.share(vector, &[F::PCR], depth) } else { 0.0 };
        let reads = matches!(job.family, F::PRD | F::PRS | F::PFS);
        let alone = if reads { job.alone.max(together(vector, job.family, 1.0)) } else { job.alone };
        let (uses, calls) = (uses - beside, alone - job.beside);
        if calls > 0.0 { uses.max(0.0) / calls } else { 0.0 }
    }

    /// What a sync waits for others at this depth beyond what it takes alone, milliseconds.
    pub fn wait(&self, vector: &Vector, family: F, depth: f64) -> f64 {
        let job = self.0.iter().find(|job| job.family == family && depth > 1.0);
        job.map_or(0.0, |job| (together(vector, family, depth) - job.alone).max(0.0))
    }
}

/// What one job takes when so many are done at once, milliseconds.
fn together(vector: &Vector, family: F, depth: f64) -> f64 {
    vector.sized(family, depth).map_or(0.0, |terms| terms.milliseconds())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::Value;

    fn vector(values: &[(F, u64, f64)]) -> Vector {
        let mut vector = Vector::named("exact");
        values.iter().for_each(|(family, size, mean)| vector.set(*family, *size, Value::exact(*mean)));
        vector
    }

    /// Alone a read takes 0.1 ms; most are done a second at depth 4, one each 0.05 ms.
    const READS: [(F, u64, f64); 4] = [(F::RRD, 4, 40_000.0), (F::PRD, 1, 0.1), (F::PRD, 4, 0.2), (F::PRD, 8, 0.48)];

    #[test]
    fn a_share_is_that_of_the_depth_where_most_is_done() {
        let vector = vector(&READS);
        let jobs = Jobs::of(&vector);
        let share = |families: &[F], depth: f64| (jobs.share(&vector, families, depth) * 1e9).round() / 1e9;
        assert_eq!([1.0, 2.0, 4.0].map(|depth| share(&[F::PRD], depth)), [0.5; 3]);
        assert_eq!(share(&[F::PRD], 8.0), 0.6, "they are in each other's way");
        assert_eq!(share(&[F::PRS, F::PRD], 1.0), 0.5, "the first that was measured");
        assert_eq!(share(&[F::PRS], 1.0), 0.0, "none was");
    }

    #[test]
    fn what_keeps_busy_was_measured_by_depth() {
        let mut vector = vector(&READS);
        vector.set(F::URD, 1, Value::exact(0.08));
        vector.set(F::URD, 4, Value::exact(0.02));
        let jobs = Jobs::of(&vector);
        let share = |depth: f64| (jobs.share(&vector, &[F::PRD], depth) * 1e9).round() / 1e9;
        assert_eq!([1.0, 4.0].map(share), [0.8, 0.2]);
    }

    #[test]
    fn a_sync_waits_beyond_what_it_takes_alone() {
        let vector = vector(&[(F::CR, 0, 0.1), (F::SYNEW, 16, 2.0), (F::PSY, 1, 2.2), (F::PSY, 4, 3.1)]);
        let jobs = Jobs::of(&vector);
        let wait = |family, depth: f64| (jobs.wait(&vector, family, depth) * 1e9).round() / 1e9;
        assert_eq!(wait(F::PSY, 1.0), 0.0);
        assert_eq!(wait(F::PSY, 4.0), 1.0, "beside the file that it makes first");
        assert_eq!(wait(F::PDS, 4.0), 0.0, "not measured");
    }
}

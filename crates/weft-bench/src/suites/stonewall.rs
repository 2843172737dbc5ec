//! Until when a rank goes on with a phase: to the end of what it has to do, or to a time after which all
//! ranks only catch up with the fastest of them.

use super::rank::{Conductor, now_ns};
use crate::BenchError;

/// What progress is said in: parts of all that a rank has to do.
const PARTS: u64 = 1000;

/// The end of one rank's phase.
#[derive(Debug)]
pub(crate) struct Stonewall {
    began_ns: u64,
    /// How long the phase goes on; none without a limit, and behind it.
    time_ns: Option<u64>,
    /// Behind the time, all ranks go on until they have done as much as the fastest of them.
    wears_out: bool,
    /// How much there is to do: transfers, or items.
    until: u64,
}

impl Stonewall {
    /// Of a phase that begins now: how long it goes on, in nanoseconds, and the most that there is to do.
    pub(crate) fn new(time_ns: Option<u64>, wears_out: bool, most: u64) -> Stonewall {
        Stonewall { began_ns: now_ns(), time_ns, wears_out, until: most }
    }

    /// Whether a rank that has done this much does more.
    ///
    /// # Errors
    /// If the conductor is gone.
    pub(crate) fn goes_on(&mut self, done: u64, conductor: &mut Conductor) -> Result<bool, BenchError> {
        let is_over = self.time_ns.is_some_and(|time| now_ns().saturating_sub(self.began_ns) >= time);
        if done < self.until && !is_over {
            return Ok(true);
        }
        if self.time_ns.is_none() || !self.wears_out {
            return Ok(false);
        }
        // From here on all ranks do as much as the fastest.
        self.until = conductor.barrier(done)?;
        self.time_ns = None;
        Ok(done < self.until)
    }

    /// Says now and then how far the phase has come, in work or in time, whichever is further.
    ///
    /// # Errors
    /// If the conductor is gone.
    pub(crate) fn progress(&self, done: u64, conductor: &mut Conductor) -> Result<(), BenchError> {
        let now = now_ns();
        let of_work = done.saturating_mul(PARTS) / self.until.max(1);
        let elapsed = now.saturating_sub(self.began_ns);
        let of_time = self.time_ns.map_or(0, |time| elapsed.saturating_mul(PARTS) / time.max(1));
        conductor.progress(now, of_work.max(of_time).min(PARTS), PARTS)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rank::tests::alone;
    use super::*;

    /// What a rank does that another one may be ahead of, by the values of its barriers.
    fn done(mut stonewall: Stonewall, barriers: &[u64]) -> u64 {
        let (mut conductor, mut done) = (alone(barriers), 0);
        while stonewall.goes_on(done, &mut conductor).expect("the conductor is there") {
            done += 1;
            stonewall.progress(done, &mut conductor).expect("the conductor is there");
        }
        done
    }

    #[test]
    fn a_rank_ends_with_its_work_or_its_time_or_the_fastest() {
        assert_eq!(done(Stonewall::new(None, false, 5), &[]), 5);
        assert_eq!(done(Stonewall::new(Some(0), false, 5), &[]), 0);
        assert_eq!(done(Stonewall::new(Some(0), true, 5), &[3]), 3, "another rank has done 3");
        assert_eq!(done(Stonewall::new(Some(u64::MAX), true, 5), &[5]), 5, "all is done before the time");
        assert_eq!(done(Stonewall::new(None, true, 0), &[]), 0);
    }
}

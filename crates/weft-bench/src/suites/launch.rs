//! How this process was started: alone, or by `mpirun` or `srun` as one of several ranks, which say so in the
//! environment.

/// The longest part of a job's name that is used.
const JOB_CHARS: usize = 64;

/// A process that a launcher has started, with others of the same command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Its number, from 0 on.
    pub rank: u32,
    /// How many there are, 2 or more.
    pub size: u32,
    /// Whether all of them are on one machine, as far as the launcher says so.
    pub(crate) is_one_machine: bool,
    /// What the launcher calls the job: letters, digits, dots and dashes.
    pub(crate) job: String,
}

impl Launched {
    /// What the environment of this process says; none if it was started by itself, or as the only one.
    ///
    /// # Errors
    /// What is wrong with it, if it contradicts itself.
    pub fn by_environment() -> Result<Option<Launched>, String> {
        Launched::detect(&|name| std::env::var(name).ok())
    }

    fn detect(value: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launched>, String> {
        let number = |name: &str| match value(name) {
            None => Ok(None),
            Some(text) => match text.parse::<u32>() {
                Ok(number) => Ok(Some((number, name.to_owned()))),
                Err(_) => Err(format!("{name} in the environment is '{text}', expected a number")),
            },
        };
        // A job script of Slurm has a rank of its own, 0, and the size of its job: only a step has ranks.
        let is_step = value("SLURM_STEP_ID").or_else(|| value("SLURM_STEP_NUM_TASKS")).is_some();
        let slurm =
            if value("SLURM_STEP_NUM_TASKS").is_some() { "SLURM_STEP_NUM_TASKS" } else { "SLURM_NTASKS" };
        let launchers = [
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
            ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
            ("SLURM_PROCID", slurm, ""),
        ];
        let launchers = launchers.into_iter().filter(|(rank, ..)| is_step || *rank != "SLURM_PROCID");
        for (rank, size, local) in launchers {
            let (Some((rank, rank_name)), Some((size, size_name))) = (number(rank)?, number(size)?) else {
                continue;
            };
            if rank >= size {
                return Err(format!(
                    "{rank_name} is {rank}, and {size_name} {size}: ranks go from 0 to {size} - 1"
                ));
            }
            let on_this_machine = match local {
                "" => value("SLURM_STEP_NUM_NODES").or_else(|| value("SLURM_NNODES")).map(|n| n == "1"),
                name => number(name)?.map(|(here, _)| here == size),
            };
            let is_one_machine = on_this_machine.unwrap_or(false);
            let job = job_name(value);
            return Ok((size > 1).then_some(Launched { rank, size, is_one_machine, job }));
        }
        Ok(None)
    }
}

/// What all ranks of a job have in common and ranks of other jobs have not, as a part of a file's name.
fn job_name(value: &dyn Fn(&str) -> Option<String>) -> String {
    let slurm = || Some(format!("{}.{}", value("SLURM_JOB_ID")?, value("SLURM_STEP_ID")?));
    let name = value("PMIX_NAMESPACE").or_else(|| value("OMPI_MCA_ess_base_jobid")).or_else(slurm);
    let name = name.or_else(|| value("PMI_JOBID")).unwrap_or_else(|| "job".to_owned());
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    name.chars().map(plain).take(JOB_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(set: &[(&str, &str)]) -> Result<Option<Launched>, String> {
        let value =
            |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Launched::detect(&value)
    }

    fn ranks(set: &[(&str, &str)]) -> Option<(u32, u32, bool, String)> {
        let found = detect(set).expect("it is consistent");
        found.map(|launched| (launched.rank, launched.size, launched.is_one_machine, launched.job))
    }

    #[test]
    fn each_launcher_is_understood() {
        let open_mpi = [
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("PMIX_NAMESPACE", "prterun-host-12@1"),
        ];
        assert_eq!(ranks(&open_mpi), Some((3, 4, true, "prterun-host-12-1".into())));
        let mpich = [("PMI_RANK", "0"), ("PMI_SIZE", "8"), ("MPI_LOCALNRANKS", "4")];
        assert_eq!(ranks(&mpich), Some((0, 8, false, "job".into())));
        let slurm = [
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "6"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_NUM_NODES", "1"),
        ];
        assert_eq!(ranks(&slurm), Some((1, 6, true, "77.0".into())));
        // A step may have fewer ranks than its job.
        let part = [&slurm[..], &[("SLURM_STEP_NUM_TASKS", "2")]].concat();
        assert_eq!(ranks(&part).map(|found| found.1), Some(2));
    }

    #[test]
    fn a_process_that_is_alone_is_so() {
        assert_eq!(ranks(&[]), None);
        assert_eq!(ranks(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]), None);
        // The script of a job, which is no step of it.
        assert_eq!(ranks(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "16"), ("SLURM_JOB_ID", "77")]), None);
    }

    #[test]
    fn an_environment_that_contradicts_itself_is_refused() {
        let found = detect(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]).expect_err("it is wrong");
        assert!(found.contains("PMI_RANK is 4"), "{found}");
        let found = detect(&[("PMI_RANK", "first"), ("PMI_SIZE", "4")]).expect_err("it is wrong");
        assert!(found.contains("'first', expected a number"), "{found}");
    }
}

#!/bin/sh
# An example for PrologSlurmctld of Slurm: a file system on the local disks of a job's hosts, for jobs that ask for
# the feature `weft` (sbatch --constraint=weft). It runs on the machine of slurmctld, once for each job, before that
# starts; if it fails, the job does not start. slurm-epilog.sh ends the file system again.
#
# Keep both in one folder. Adapt: the folders, and a key with which the user of slurmctld reaches the hosts as root.
set -eu
case ${SLURM_JOB_CONSTRAINTS:-} in *weft*) ;; *) exit 0 ;; esac

key=${WEFT_SSH_KEY:-/etc/weft/ondemand-key}
data=${WEFT_DATA:-/local/weft}/$SLURM_JOB_ID     # on each host, on its own disk
at=${WEFT_AT:-/mnt/weft}/$SLURM_JOB_ID           # on each host
reach="ssh -l root -i $key"

# Slurm's short form of the hosts, such as node[01-04,07], is understood as it is.
printf '%s\n' "$SLURM_JOB_NODELIST" |
  weft ondemand start -n - -d "$data" -c "$at" --ssh "$reach" --state-dir "${WEFT_STATE:-/var/spool/slurmctld/weft}"

# The root of a new file system is root's.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
if ! $reach -o BatchMode=yes "$first" "chown $SLURM_JOB_UID:$SLURM_JOB_GID '$at' && chmod 700 '$at'" </dev/null; then
  "$(dirname "$0")/slurm-epilog.sh"
  exit 1
fi

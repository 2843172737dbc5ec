#!/bin/sh
# An example for EpilogSlurmctld of Slurm: ends what slurm-prolog.sh has started, and removes its data. It runs on
# the machine of slurmctld, once for each job, after its end. Where a host has died, the others are cleaned all the
# same; the exit code is 1 then, and the same command can be run again once the host is back.
set -eu
case ${SLURM_JOB_CONSTRAINTS:-} in *weft*) ;; *) exit 0 ;; esac

key=${WEFT_SSH_KEY:-/etc/weft/ondemand-key}
data=${WEFT_DATA:-/local/weft}/$SLURM_JOB_ID

# --force: what a job has left running is not waited for.
printf '%s\n' "$SLURM_JOB_NODELIST" |
  weft ondemand stop -n - -d "$data" --ssh "ssh -l root -i $key" --delete --force \
    --state-dir "${WEFT_STATE:-/var/spool/slurmctld/weft}"

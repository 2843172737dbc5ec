//! What a target has done since its process started, for watchers. It adds up and lists, and decides nothing.

use crate::target::Target;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use weft_rt::{now, offload};
use weft_types::limits::LOAD_SESSIONS_MAX;
use weft_types::{BLOCK_SIZE, MeterReading, ProcessLoad, VolumeId, VolumeLoad};
use weft_wire::load::{DriveLoad, SessionLoad, TargetLoad};

/// Reads what the process has used. It may block: it runs on a thread of its own.
pub type ProcessProbe = fn() -> ProcessLoad;

impl Target {
    /// Says how to find out what the process has used: an engine looks into no files of the system itself.
    pub fn set_process_probe(&self, probe: ProcessProbe) {
        self.process_probe.set(Some(probe));
    }

    /// The counters at this moment.
    pub async fn load(&self) -> TargetLoad {
        let process = match self.process_probe.get() {
            Some(probe) => Some(offload(probe).await),
            None => None,
        };
        let map = self.map();
        self.meters.retire(map.as_deref());
        let sessions = self.meters.sessions();
        let mut volumes: BTreeMap<VolumeId, MeterReading> = self.meters.former();
        for ((_, volume), meter) in &sessions {
            volumes.entry(*volume).or_default().add(meter);
        }
        let mut listed = sessions;
        listed
            .sort_by_key(|(_, meter)| Reverse((meter.in_flight, meter.reads + meter.writes + meter.zeroes)));
        listed.truncate(LOAD_SESSIONS_MAX);
        let name = |id: VolumeId| {
            map.as_ref().and_then(|m| m.volumes.get(&id)).map_or_else(|| id.to_string(), |v| v.name.clone())
        };
        let drives = self.drives.values().filter(|d| !d.is_refused()).map(|drive| {
            let usage = drive.store.usage();
            DriveLoad {
                id: drive.id,
                meter: drive.meter.read(),
                data_bytes_written: usage.data_bytes_written,
                log_bytes_written: usage.log_bytes_written,
            }
        });
        TargetLoad {
            incarnation: self.incarnation,
            at_us: now().as_nanos() / 1000,
            drives: drives.collect(),
            volumes: volumes
                .into_iter()
                .map(|(id, meter)| VolumeLoad { id, name: name(id), meter })
                .collect(),
            sessions: listed
                .into_iter()
                .map(|((id, volume), meter)| SessionLoad { id, volume, meter })
                .collect(),
            process,
            leased: self.lease.is_valid(),
            copied_bytes: self.copied_blocks.get().saturating_mul(BLOCK_SIZE as u64),
            slow_requests: self.told.slow_count(),
            failed_requests: self.told.failed_count(),
        }
    }
}

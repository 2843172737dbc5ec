//! Scrubs of a running fabric: rot on the drives under load, lost blocks, members that come and go.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, EventInfo, ScrubFindingInfo, ScrubInfo, ScrubRunInfo};
use weft_checker::{History, Value, fill_block, read_value};
use weft_client::{AttachMode, ClientError, Volume};
use weft_rt::sim::{self, Crash, ProcessId, Sim, spawn_process};
use weft_rt::{Buf, now, random_below, sleep, spawn};
use weft_sim::workload::{self, Workload};
use weft_sim::{Bed, BedShape};
use weft_types::{BLOCK_SIZE, Durations, Role, ScrubFindingKind};

/// Blocks that are written once and then left alone: rot is found in them by a scrub only.
const COLD: std::ops::Range<u64> = 1000..1064;

/// Blocks that clients write all the time.
const HOT: [u64; 4] = [0, 2, 150, 515];

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

struct Fabric {
    bed: Rc<Bed>,
    history: History,
    volume: Volume,
    clients: Cell<Vec<ProcessId>>,
}

impl Fabric {
    /// Nodes with a drive each, a volume, its cold blocks written, clients at work.
    async fn start(nodes: usize, copies: u8, clients: usize) -> Fabric {
        let durations =
            Durations { lease_ms: 500, drift_per_mille: 10, session_ms: 4_000, rebuild_after_ms: 3_600_000 };
        let bed = Bed::start(BedShape {
            nodes,
            drives: 1,
            parts: 1,
            targets: 1,
            drive_bytes: 64 << 20,
            copies,
            durations,
        })
        .await;
        while bed.map().await.drives.len() < nodes {
            sleep(ms(50)).await;
        }
        bed.create_volume("shared", copies, 2).await;
        let history = History::default();
        let volume = workload::attach(&bed.managers(), "shared", "writer", AttachMode::Shared).await;
        for block in COLD {
            let (value, at) = (history.fresh_value(), block * BLOCK_SIZE as u64);
            let call = history.begin_write("writer", block, value);
            volume.write(at, vec![Buf::from(fill_block(block, value))]).await.expect("written");
            history.end_write(call);
        }
        let fabric = Fabric { bed, history, volume, clients: Cell::default() };
        fabric.clients.set((0..clients).map(|n| fabric.client(n)).collect());
        sleep(ms(300)).await;
        fabric
    }

    fn client(&self, n: usize) -> ProcessId {
        let workload = Workload {
            managers: self.bed.managers(),
            volume: "shared".into(),
            hot_blocks: HOT.to_vec(),
            think: ms(2),
            operations: None,
            depth: 2,
        };
        let name = format!("client-{}", n + 1);
        let run = workload::run(name.clone(), workload, self.history.clone());
        spawn_process(IpAddr::from([10, 0, 2, 1 + n as u8]), &name, run)
    }

    async fn value(&self, block: u64) -> Result<Value, ClientError> {
        let parts = self.volume.read(block * BLOCK_SIZE as u64, BLOCK_SIZE as u64).await?;
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        Ok(read_value(block, &bytes))
    }

    /// Lets a block rot on this node; `false` if the node holds no copy.
    async fn rot(&self, node: usize, block: u64) -> bool {
        let value = self.value(block).await.expect("it is good so far");
        self.bed.rot(node, &fill_block(block, value))
    }

    /// Lets the cold blocks rot on one of the nodes that hold them, so many of them; returns how many copies
    /// did.
    async fn rot_on_one(&self, node: usize, blocks: u64) -> u64 {
        let mut rotten = 0;
        for block in COLD {
            if rotten < blocks && self.rot(node, block).await {
                rotten += 1;
            }
        }
        rotten
    }

    async fn info(&self) -> ScrubInfo {
        scrub(&self.bed, ApiRequest::ScrubStatus {}).await
    }

    /// Scrubs everything; returns how it ended, and all findings so far.
    async fn scrub(&self) -> (ScrubRunInfo, Vec<ScrubFindingInfo>) {
        let started = scrub(&self.bed, ApiRequest::ScrubStart { volumes: vec![] }).await;
        assert!(started.running.is_some(), "it runs at once");
        self.await_end().await
    }

    async fn await_end(&self) -> (ScrubRunInfo, Vec<ScrubFindingInfo>) {
        let begun = now();
        loop {
            let info = self.info().await;
            if info.running.is_none() {
                return (info.last.expect("one has ended"), info.findings);
            }
            assert!(begun.elapsed() < Duration::from_secs(120), "it never ends: {info:?}");
            sleep(ms(100)).await;
        }
    }

    /// Ends the clients and waits until the fabric is whole; then its replicas must be equal, and what
    /// clients saw must be what one drive would have shown.
    async fn check(&self) {
        for client in self.clients.take() {
            sim::kill(client, Crash::Process);
        }
        self.volume.detach().await;
        let begun = now();
        while let Err(why) = self.bed.is_whole().await {
            assert!(begun.elapsed() < Duration::from_secs(120), "not whole: {why}");
            sleep(ms(100)).await;
        }
        self.bed.scrub().await.expect("replicas are equal");
        self.history.check().unwrap_or_else(|violation| panic!("{violation}"));
    }

    async fn events(&self, what: &str) -> Vec<EventInfo> {
        match self.bed.api(ApiRequest::Events { after: 0, limit: None, filter: Default::default() }).await {
            ApiAnswer::Events { events } => events.into_iter().filter(|e| e.what == what).collect(),
            other => panic!("the answer to events is {other:?}"),
        }
    }
}

async fn scrub(bed: &Rc<Bed>, request: ApiRequest) -> ScrubInfo {
    match bed.api(request).await {
        ApiAnswer::Scrub(info) => *info,
        other => panic!("the answer about scrubs is {other:?}"),
    }
}

#[test]
fn rot_on_one_replica_is_found_and_healed_under_load() {
    for seed in 0..6 {
        Sim::new(seed).block_on(async move {
            let fabric = Fabric::start(3, 2 + (seed % 2) as u8, 2).await;
            let rotten = fabric.rot_on_one((seed % 3) as usize, 7).await;
            assert!(rotten > 0, "the node holds some of them");
            let (run, findings) = fabric.scrub().await;
            assert_eq!(
                (run.healed_blocks, run.lost_blocks, run.disagreements),
                (rotten, 0, 0),
                "{findings:?}"
            );
            assert_eq!(run.groups_degraded, 0);
            assert!(findings.iter().all(|f| f.kind == ScrubFindingKind::Healed && f.volume == "shared"));
            let blocks: u64 = findings.iter().map(|f| f.length_bytes / BLOCK_SIZE as u64).sum();
            assert_eq!(blocks, rotten);
            assert!(findings.iter().all(|f| COLD.contains(&(f.offset_bytes / BLOCK_SIZE as u64))));
            let (again, _) = fabric.scrub().await;
            assert_eq!(again.healed_blocks, 0, "nothing is left to heal");
            assert_eq!(fabric.events("scrub-ended").await.len(), 2);
            fabric.check().await;
        });
    }
}

#[test]
fn rot_on_every_replica_is_reported_with_its_place_and_nothing_else_is_touched() {
    for seed in 0..4 {
        Sim::new(seed).block_on(async move {
            let fabric = Fabric::start(2, 2, 0).await;
            let lost = COLD.start + 10 + random_below(20);
            let value = fabric.value(lost).await.expect("it is good so far");
            for node in 0..2 {
                assert!(fabric.bed.rot(node, &fill_block(lost, value)));
            }
            // Beside it, one that can be healed.
            assert!(fabric.rot(0, lost + 1).await);
            let (run, findings) = fabric.scrub().await;
            assert_eq!((run.healed_blocks, run.lost_blocks, run.disagreements), (1, 1, 0), "{findings:?}");
            let found = findings.iter().find(|f| f.kind == ScrubFindingKind::Lost).expect("it was told");
            assert_eq!((found.volume.as_str(), found.offset_bytes), ("shared", lost * BLOCK_SIZE as u64));
            assert_eq!((found.length_bytes, found.drives.len()), (BLOCK_SIZE as u64, 2));
            let event = &fabric.events("scrub-lost").await[0].why;
            assert!(event.contains(&format!("LBA {lost} to {lost}")), "{event}");
            for block in COLD.filter(|b| *b != lost) {
                fabric.value(block).await.expect("the others are good");
            }
            let refused = fabric.value(lost).await;
            assert!(matches!(refused, Err(ClientError::Damaged { .. })), "{refused:?}");
            // It is as lost the next time, and gone once it is written anew.
            let (again, _) = fabric.scrub().await;
            assert_eq!((again.healed_blocks, again.lost_blocks), (0, 1));
            let anew = vec![Buf::from(fill_block(lost, value))];
            fabric.volume.write(lost * BLOCK_SIZE as u64, anew).await.expect("written");
            let (last, _) = fabric.scrub().await;
            assert_eq!((last.healed_blocks, last.lost_blocks), (0, 0));
            fabric.check().await;
        });
    }
}

#[test]
fn a_group_is_scrubbed_while_a_member_is_syncing() {
    for seed in 0..4 {
        Sim::new(seed).block_on(async move {
            let fabric = Fabric::start(3, 3, 2).await;
            fabric.bed.kill_node(2, Crash::PowerCut);
            while !fabric.bed.map().await.groups.values().all(|g| g.slots.iter().any(|s| s.role == Role::Out))
            {
                sleep(ms(50)).await;
            }
            assert_eq!(fabric.rot_on_one(0, 5).await, 5);
            let (run, _) = fabric.scrub().await;
            assert_eq!((run.healed_blocks, run.lost_blocks, run.disagreements), (5, 0, 0));
            assert_eq!(run.groups_degraded, run.groups_done, "it says that a copy is missing");
            assert_eq!(fabric.rot_on_one(1, 5).await, 5);
            // It comes back while the scrub runs: each group is left and begun again as its membership
            // changes.
            fabric.bed.start_node(2);
            let begun = now();
            while fabric.bed.is_whole().await.is_err() && begun.elapsed() < Duration::from_secs(10) {
                let (run, findings) = fabric.scrub().await;
                assert_eq!((run.lost_blocks, run.disagreements), (0, 0), "{findings:?}");
            }
            let (run, findings) = fabric.scrub().await;
            assert_eq!((run.healed_blocks, run.lost_blocks, run.disagreements), (0, 0, 0), "{findings:?}");
            assert_eq!(run.groups_degraded, 0);
            fabric.check().await;
        });
    }
}

#[test]
fn a_scrub_goes_on_after_the_death_of_its_leader_and_of_the_manager() {
    for seed in 0..8 {
        Sim::new(seed).block_on(async move {
            let fabric = Fabric::start(3, 2, 1).await;
            let rotten = fabric.rot_on_one(1, 9).await;
            assert!(rotten > 0);
            scrub(&fabric.bed, ApiRequest::ScrubStart { volumes: vec![] }).await;
            sleep(Duration::from_micros(random_below(60_000))).await;
            fabric
                .bed
                .kill_node((seed % 3) as usize, if seed % 2 == 0 { Crash::Process } else { Crash::PowerCut });
            if seed >= 4 {
                fabric.bed.kill_manager();
            }
            sleep(ms(200 + random_below(1_500))).await;
            fabric.bed.start_manager();
            fabric.bed.start_node((seed % 3) as usize);
            let (run, findings) = fabric.await_end_since_restart().await;
            // While the good copies are away, the rotten ones are all that there is.
            assert!(run.lost_blocks == 0 || run.groups_degraded > 0, "{findings:?}");
            assert_eq!(run.disagreements, 0, "{findings:?}");
            while fabric.bed.map().await.groups.values().any(|g| g.is_degraded()) {
                sleep(ms(100)).await;
            }
            let (again, findings) = fabric.scrub().await;
            assert_eq!((again.lost_blocks, again.disagreements), (0, 0), "{findings:?}");
            let (last, _) = fabric.scrub().await;
            assert_eq!(last.healed_blocks, 0, "all was healed");
            fabric.check().await;
        });
    }
}

impl Fabric {
    /// The end of the scrub that a manager, perhaps a new one, has to bring to its end: what was wanted is in
    /// the map.
    async fn await_end_since_restart(&self) -> (ScrubRunInfo, Vec<ScrubFindingInfo>) {
        while !self.bed.map().await.scrub.wanted.is_empty() {
            sleep(ms(100)).await;
        }
        self.await_end().await
    }
}

#[test]
fn a_healthy_fabric_under_random_writes_has_nothing_to_report() {
    for seed in 0..4 {
        Sim::new(seed).block_on(async move {
            let fabric = Fabric::start(3, 2 + (seed % 2) as u8, 3).await;
            for round in 0..4 {
                fabric.bed.create_volume(&format!("brief-{round}"), 2, 2).await;
                let request =
                    ApiRequest::VolumeDelete { name: format!("brief-{round}"), force: true, dry_run: false };
                let brief = format!("brief-{round}");
                let volume =
                    workload::attach(&fabric.bed.managers(), &brief, "brief", AttachMode::Shared).await;
                for block in 0..64 {
                    volume
                        .write(block * BLOCK_SIZE as u64, vec![Buf::from(vec![7; BLOCK_SIZE])])
                        .await
                        .unwrap();
                }
                volume.detach().await;
                let bed = fabric.bed.clone();
                let delete = spawn(async move {
                    sleep(Duration::from_micros(random_below(20_000))).await;
                    bed.api(request).await
                });
                let (run, findings) = fabric.scrub().await;
                delete.await.expect("it ends");
                assert_eq!(findings, [], "round {round}");
                assert_eq!((run.healed_blocks, run.lost_blocks, run.disagreements), (0, 0, 0));
                assert!(run.bytes_read > 0);
            }
            assert!(fabric.events("damage").await.is_empty());
            fabric.check().await;
        });
    }
}

#[test]
fn a_read_that_meets_rot_heals_it_and_is_counted() {
    Sim::new(3).block_on(async {
        let fabric = Fabric::start(2, 2, 0).await;
        let block = COLD.start + 5;
        let value = fabric.value(block).await.expect("good");
        assert!(fabric.rot(0, block).await);
        // Reads go to either replica by chance.
        for _ in 0..40 {
            assert_eq!(fabric.value(block).await.expect("never an error"), value);
        }
        // What drives say is asked for once in a second.
        sleep(Duration::from_secs(2)).await;
        let ApiAnswer::Drives { drives } = fabric.bed.api(ApiRequest::DriveList {}).await else { panic!() };
        let usage: Vec<(u64, u64)> =
            drives.iter().filter_map(|d| d.usage).map(|u| (u.blocks_damaged, u.blocks_healed)).collect();
        assert!(usage.contains(&(1, 1)) && usage.contains(&(0, 0)), "{usage:?}");
        sleep(Duration::from_secs(11)).await;
        let event = &fabric.events("damage").await[0].why;
        assert!(
            event.contains("1 damaged blocks found since its target started, 1 of them healed"),
            "{event}"
        );
        let (run, _) = fabric.scrub().await;
        assert_eq!((run.healed_blocks, run.lost_blocks), (0, 0), "the read has healed it");
        fabric.check().await;
    });
}

#[test]
fn a_scrub_can_be_stopped_and_the_schedule_begins_one_by_itself() {
    Sim::new(5).block_on(async {
        let fabric = Fabric::start(2, 2, 1).await;
        scrub(&fabric.bed, ApiRequest::ScrubStart { volumes: vec!["shared".into()] }).await;
        let stopped = scrub(&fabric.bed, ApiRequest::ScrubStop {}).await;
        assert!(stopped.running.is_none() && stopped.rests_until.is_some());
        assert!(stopped.last.expect("it was one").was_stopped);
        sleep(Duration::from_secs(2)).await;
        assert!(fabric.bed.map().await.scrub.done.is_empty(), "nothing was finished");

        let asked = scrub(&fabric.bed, ApiRequest::ScrubSchedule { every_ms: Some(60_000) }).await;
        assert_eq!((asked.every_ms, asked.rests_until), (Some(60_000), None));
        let map = fabric.bed.map().await;
        let groups: BTreeSet<_> =
            map.volumes.values().flat_map(|v| &v.spans).flat_map(|s| &s.groups).collect();
        sleep(Duration::from_secs(80)).await;
        assert_eq!(fabric.bed.map().await.scrub.done.len(), groups.len(), "each had its turn");
        scrub(&fabric.bed, ApiRequest::ScrubSchedule { every_ms: None }).await;
        fabric.await_end().await;
        let done = fabric.bed.map().await.scrub.done;
        sleep(Duration::from_secs(180)).await;
        assert_eq!(fabric.bed.map().await.scrub.done, done, "none of them again");
        fabric.check().await;
    });
}

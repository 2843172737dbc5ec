//! Scripts about clients with several lanes: what one lane does is no word of another one (P6 to P9).
//!
//! Each lane is a process of its client's host, as a thread is one of a real client. What a lane writes is
//! called by a process of its own there, so that it can be late, or be stopped, alone.

use super::actor::{becomes, changes, enter, place, take_alone, until, version};
use super::stage::{Stage, VOLUME};
use crate::bed::speak_some_protocol;
use crate::clients::client_host;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::{Value, fill_block, read_value};
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric, Volume};
use weft_rt::sim::{self, Crash, ProcessId};
use weft_rt::sync::{join_all, oneshot};
use weft_rt::{Buf, random_below, sleep, timeout};
use weft_types::{BLOCK_SIZE, Role, SECTOR_SIZE};

/// How much further the counters of one lane are than those of its sibling, where a group sees more writes on
/// it than its clock has steps; in microseconds of the clock.
const AHEAD_US: i64 = 300_000;

/// A block that is not looked at.
const ASIDE: u64 = 700;

/// The number of the wide client's host.
const HOST: usize = 9;

/// A client of two lanes.
struct Wide {
    stage: Rc<Stage>,
    lanes: [Volume; 2],
    /// The host of each lane.
    hosts: [usize; 2],
}

impl Wide {
    /// Attaches the stage's volume.
    ///
    /// # Errors
    /// Why it is not attached with two lanes.
    async fn enter(stage: &Rc<Stage>, options: AttachOptions) -> Result<Wide, ClientError> {
        Wide::enter_on(stage, options, [HOST; 2]).await
    }

    /// The same, with each lane on a host of its own: what is cut there, is cut for one lane.
    async fn enter_on(
        stage: &Rc<Stage>,
        options: AttachOptions,
        hosts: [usize; 2],
    ) -> Result<Wide, ClientError> {
        let managers = stage.bed.managers();
        let (sender, attached) = oneshot::<Result<Volume, ClientError>>();
        sim::spawn_process(client_host(hosts[0]), "wide", async move {
            let attached = async {
                let volume = Fabric::connect(&managers, "wide").await?.attach(VOLUME, options).await?;
                let _ = volume.write_zeroes(ASIDE * BLOCK_SIZE as u64, BLOCK_SIZE as u64).await;
                Ok(volume)
            };
            sender.send(attached.await);
            std::future::pending::<()>().await;
        });
        let first: Volume = attached.await.expect("it attaches")?;
        let (sender, opened) = oneshot();
        let lane = first.take_lanes().pop().expect("it has two lanes");
        let process = sim::spawn_process(client_host(hosts[1]), "wide-lane-1", async move {
            let volume = lane.open();
            if let Ok(volume) = &volume {
                let _ = volume.write_zeroes(ASIDE * BLOCK_SIZE as u64, BLOCK_SIZE as u64).await;
            }
            sender.send(volume);
            std::future::pending::<()>().await;
        });
        speak_some_protocol(process);
        let second = opened.await.expect("it opens")?;
        Ok(Wide { stage: stage.clone(), lanes: [first, second], hosts })
    }

    /// Does something on the client's host, while the clock there is off by so many microseconds.
    fn call(&self, skew_us: i64, work: impl Future<Output = ()> + 'static) -> ProcessId {
        self.call_on(0, skew_us, work)
    }

    /// The same, on the host of a lane.
    fn call_on(&self, lane: usize, skew_us: i64, work: impl Future<Output = ()> + 'static) -> ProcessId {
        let process = sim::spawn_process(client_host(self.hosts[lane]), "wide-call", work);
        sim::set_wall_skew(process, skew_us);
        process
    }

    /// Begins a write of a block on a lane, which is given up after `patience`.
    fn write(&self, lane: usize, block: u64, skew_us: i64, patience: Duration) -> Written {
        let (volume, history) = (self.lanes[lane].clone(), self.stage.history.clone());
        let value = history.fresh_value();
        let call = history.begin_write("wide", block, value);
        let (ended, given_up) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let written = Written { value, ended: ended.clone(), given_up: given_up.clone(), process: None };
        let process = self.call_on(lane, skew_us, async move {
            let data = vec![Buf::from(fill_block(block, value))];
            match timeout(patience, volume.write(block * BLOCK_SIZE as u64, data)).await {
                Ok(Ok(())) => {
                    history.end_write(call);
                    ended.set(true);
                }
                _ => {
                    history.give_up(call);
                    given_up.set(true);
                }
            }
            // What was given up goes on here.
            std::future::pending::<()>().await;
        });
        Written { process: Some(process), ..written }
    }

    fn cut_to(&self, node: usize, blocked: bool) {
        sim::set_blocked(client_host(HOST), self.stage.host(node), blocked);
    }

    /// All of it dies at once.
    fn die(&self) {
        sim::processes_on(client_host(HOST))
            .into_iter()
            .for_each(|process| sim::kill(process, Crash::Process));
    }
}

/// A write of a lane.
struct Written {
    value: Value,
    /// Whether it has completed.
    ended: Rc<Cell<bool>>,
    /// Whether it was given up.
    given_up: Rc<Cell<bool>>,
    process: Option<ProcessId>,
}

const LONG: Duration = Duration::from_secs(60);

fn two_lanes(mode: AttachMode) -> AttachOptions {
    let preempt = mode == AttachMode::Exclusive;
    AttachOptions { mode, preempt, io_timeout: LONG, lanes: 2, whole_blocks: preempt }
}

/// What a block holds, as this lane sees it.
async fn value_of(volume: &Volume, block: u64) -> Result<Value, String> {
    let parts = volume.read(block * BLOCK_SIZE as u64, BLOCK_SIZE as u64).await.map_err(|e| e.to_string())?;
    let bytes: Vec<u8> = parts.iter().flat_map(|b| b.iter().copied()).collect();
    Ok(read_value(block, &bytes))
}

/// A write reaches nobody and is given up, its lane stands still, and the caller writes the block on the
/// other lane. Then the first lane goes on. Its counters are further than those of its sibling.
pub async fn given_up_on_a_lane() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    let nodes = stage.holders().await;
    let wide = Wide::enter(&stage, two_lanes(AttachMode::Shared)).await.map_err(|e| e.to_string())?;
    let (late, next) = match random_below(2) {
        0 => (0, 1),
        _ => (1, 0),
    };
    nodes.iter().for_each(|node| wide.cut_to(*node, true));
    let given_up = wide.write(late, 0, AHEAD_US, Duration::from_millis(5 + random_below(20)));
    sleep(Duration::from_millis(2)).await;
    // What it has sent is lost, so it asks again.
    nodes.iter().for_each(|node| sim::reset_connections(client_host(HOST), stage.host(*node)));
    until(&given_up.given_up).await;
    let process = given_up.process.expect("it runs");
    sim::pause(process);
    nodes.iter().for_each(|node| wide.cut_to(*node, false));
    let written = wide.write(next, 0, 0, LONG);
    if !until(&written.ended).await {
        return Err("a write on a lane does not end because another lane stands still".into());
    }
    sim::resume(process);
    for _ in 0..40 {
        sleep(Duration::from_millis(10)).await;
        for lane in &wide.lanes {
            let found = value_of(lane, 0).await?;
            if found != written.value {
                return Err(format!(
                    "{}, given up on one lane, landed over {}, called later on another: found {found}",
                    given_up.value, written.value
                ));
            }
        }
    }
    stage.heal();
    stage.finish_with_sessions().await
}

/// A lane's write reaches one of two members, where the other lane then says what it has completed itself:
/// that is further.
pub async fn other_lane_speaks() -> Result<(), String> {
    let (stage, [a, b], [reader, other]) = enter(["reader", "other"]).await;
    let wide = Wide::enter(&stage, two_lanes(AttachMode::Shared)).await.map_err(|e| e.to_string())?;
    until(&reader.write(0).done).await;
    until(&wide.write(1, 1, AHEAD_US, LONG).ended).await;
    sleep(Duration::from_millis(5)).await;
    wide.cut_to(b, true);
    let before = version(&stage, a, 0).await;
    let halfway = wide.write(0, 0, 0, LONG);
    if !changes(&stage, a, 0, before).await {
        return Err("the write does not reach the member that it can reach".into());
    }
    // The reads of the other lane carry its watermark to the first member.
    let (first, second) = (wide.lanes[1].clone(), wide.lanes[1].clone());
    wide.call(0, async move {
        let reads = (0..12).map(|_| timeout(Duration::from_millis(20), value_of(&first, 1)));
        join_all(reads).await;
        drop(second);
    });
    sleep(Duration::from_millis(30)).await;
    reader.reach_only(a);
    reader.read_now(0..1).await;
    other.reach_only(b);
    other.read_now(0..1).await;
    stage.heal();
    wide.cut_to(b, false);
    until(&halfway.ended).await;
    stage.finish_with_sessions().await
}

/// A client that has the volume for itself dies with a write of its second lane on one of two members. Its
/// successor sees one settled past.
pub async fn lane_left_behind() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    let nodes = stage.holders().await;
    let wide = Wide::enter(&stage, two_lanes(AttachMode::Exclusive)).await.map_err(|e| e.to_string())?;
    until(&wide.write(0, 0, 0, LONG).ended).await;
    sleep(Duration::from_millis(5)).await;
    let (near, far) = if random_below(2) == 0 { (nodes[0], nodes[1]) } else { (nodes[1], nodes[0]) };
    wide.cut_to(far, true);
    let before = version(&stage, near, 0).await;
    wide.write(1, 0, 0, LONG);
    changes(&stage, near, 0, before).await;
    wide.die();
    let successor = take_alone(&stage, "successor").await;
    let settled = value_of(&successor, 0).await?;
    for _ in 0..24 {
        let found = value_of(&successor, 0).await?;
        if found != settled {
            return Err(format!(
                "a block changed from {settled} to {found} while its only client did nothing"
            ));
        }
    }
    stage.heal();
    successor.detach().await;
    stage.finish().await
}

/// One lane writes sectors, the other one whole blocks, of a volume with sectors of 512 bytes. Such an attach
/// is refused.
pub async fn parts_on_lanes() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    let options = AttachOptions { whole_blocks: false, ..two_lanes(AttachMode::Exclusive) };
    let wide = match Wide::enter(&stage, options).await {
        Ok(wide) => wide,
        Err(ClientError::LanesOfParts { .. }) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    for round in 1..=40u8 {
        let (parts, whole) = (wide.lanes[0].clone(), wide.lanes[1].clone());
        let done = [Rc::new(Cell::new(false)), Rc::new(Cell::new(false))];
        let (of_part, of_whole) = (done[0].clone(), done[1].clone());
        let pause = Duration::from_micros(random_below(400));
        wide.call(0, async move {
            of_part.set(parts.write(0, vec![Buf::from(vec![round; SECTOR_SIZE])]).await.is_ok());
        });
        wide.call(0, async move {
            sleep(pause).await;
            of_whole.set(whole.write(0, vec![Buf::from(vec![100 + round; BLOCK_SIZE])]).await.is_ok());
        });
        until(&done[0]).await;
        until(&done[1]).await;
        let read =
            wide.lanes[1].read(SECTOR_SIZE as u64, SECTOR_SIZE as u64).await.map_err(|e| e.to_string())?;
        let found = read[0][0];
        if found != 100 + round {
            let wrote = 100 + round;
            return Err(format!(
                "a whole write of {wrote} was undone by a part on another lane: found {found}"
            ));
        }
    }
    stage.heal();
    Ok(())
}

/// All connections of one lane fail for a while. The other one goes on, and no member leaves because of it.
pub async fn lane_cut_off() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    let nodes = stage.holders().await;
    let hosts = [HOST, HOST + 1];
    let options = two_lanes(AttachMode::Shared);
    let wide = Wide::enter_on(&stage, options, hosts).await.map_err(|e| e.to_string())?;
    until(&wide.write(0, 0, 0, LONG).ended).await;
    until(&wide.write(1, 1, 0, LONG).ended).await;
    let (cut, goes_on) = if random_below(2) == 0 { (0, 1) } else { (1, 0) };
    let block = |is_cut: bool| {
        let host = client_host(hosts[cut]);
        nodes.iter().for_each(|node| sim::set_blocked(host, stage.host(*node), is_cut));
    };
    block(true);
    nodes.iter().for_each(|node| sim::reset_connections(client_host(hosts[cut]), stage.host(*node)));
    let stuck = wide.write(cut, 2, 0, LONG);
    for written in 3..20 {
        if !until(&wide.write(goes_on, written, 0, LONG).ended).await {
            return Err(format!("lane {goes_on} does not go on while lane {cut} is cut off"));
        }
        sleep(Duration::from_millis(50)).await;
    }
    if stuck.ended.get() {
        return Err("a write has ended whose lane reaches nobody".into());
    }
    let members = place(&stage).await.0.read_set().count();
    if members != nodes.len() {
        return Err(format!("{members} members are left because one lane is cut off"));
    }
    block(false);
    if !until(&stuck.ended).await {
        return Err(format!("lane {cut} does not go on after it was cut off"));
    }
    for lane in &wide.lanes {
        let found = value_of(lane, 2).await?;
        if found != stuck.value {
            return Err(format!("lane {} found {found}, not {}", lane.lane(), stuck.value));
        }
    }
    stage.heal();
    stage.finish_with_sessions().await
}

/// A lane loses all its connections while the others go on; then the client's session is taken away, and all
/// lanes end.
pub async fn lanes_end_together() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    let wide = Wide::enter(&stage, two_lanes(AttachMode::Exclusive)).await.map_err(|e| e.to_string())?;
    until(&wide.write(0, 0, 0, LONG).ended).await;
    until(&wide.write(1, 1, 0, LONG).ended).await;
    // A member leaves, which the second lane hears of by post.
    let node = stage.holders().await[0];
    stage.bed.kill_node(node, Crash::Process);
    becomes(&stage, node, Role::Out).await;
    for lane in [0, 1] {
        if !until(&wide.write(lane, 2, 0, LONG).ended).await {
            return Err(format!("lane {lane} does not go on without a member"));
        }
    }
    stage.bed.start_node(node);
    becomes(&stage, node, Role::InSync).await;
    let successor = take_alone(&stage, "successor").await;
    for lane in &wide.lanes {
        let over = timeout(Duration::from_secs(3), lane.why_over()).await;
        if !matches!(over, Ok(Some(_))) {
            return Err(format!("lane {} has not heard that the session is over", lane.lane()));
        }
    }
    successor.detach().await;
    wide.die();
    stage.heal();
    stage.finish().await
}

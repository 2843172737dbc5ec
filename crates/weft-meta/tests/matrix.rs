//! The crash matrix: one recorded workload of several clients, with checkpoints. The server dies at every
//! beginning and end of a write, with any of the blocks under way written or not. Each image is opened by
//! another server, and holds exactly what some moment between the last answer and the last decision held;
//! some servers die again while they go on from there.
//!
//! `WEFT_META_FACTOR=n` tries n times as many images.

mod memory;

use memory::{Blocks, Event, Memory};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::rc::Rc;
use weft_checker::FileModel;
use weft_meta::*;
use weft_rt::sim::Sim;
use weft_rt::{random_below, spawn};
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::{Answer, FileRequest, Operation, XattrMode};

const NAME: ShardName = ShardName { file_system: 9, shard: 0 };

/// Subsets of the blocks under way that are tried at each event.
const SUBSETS: u64 = 3;

/// One in so many images sees its own crash matrix.
const AGAIN_EVERY: u64 = 80;

/// What the tables were after each decision, and how many decisions were answered at each event.
#[derive(Default)]
struct Record {
    digests: RefCell<Vec<u64>>,
    /// By number of events: decisions that were answered by then.
    answered: RefCell<BTreeMap<usize, usize>>,
    most_answered: Cell<usize>,
}

impl Record {
    /// After which decision the tables had this digest, at the earliest `least`; before the first they had
    /// `first`.
    fn moment(&self, found: u64, first: u64, least: usize) -> Option<usize> {
        let digests = self.digests.borrow();
        (least..=digests.len()).find(|n| found == if *n == 0 { first } else { digests[n - 1] })
    }
}

fn digest(shard: &Shard<Memory>) -> u64 {
    shard.with_tables(|tables| {
        let mut hasher = DefaultHasher::new();
        tables.items().for_each(|item| item.hash(&mut hasher));
        hasher.finish()
    })
}

/// Clients that ask for random things at the same time, each in a session of its own.
async fn workload(shard: &Shard<Memory>, medium: &Rc<Memory>, record: &Rc<Record>, operations: u64) {
    let model = Rc::new(RefCell::new(FileModel::below(InodeNumber::ROOT)));
    let clients = (0..4).map(|session| {
        let (shard, medium, record, model) = (shard.clone(), medium.clone(), record.clone(), model.clone());
        let first = shard.with_tables(|tables| tables.session(SessionId(session)).unwrap_or(0) + 300);
        spawn(async move {
            for n in 0..operations {
                let operation = model.borrow().any_operation(&mut random_below);
                let number = if operation.changes() { first + n } else { 0 };
                let request =
                    FileRequest { session: SessionId(session), number, answered: first + n - 1, operation };
                if random_below(40) == 0 {
                    shard.checkpoint().await.unwrap();
                }
                if random_below(40) == 0 {
                    medium.fill(!medium.is_full());
                }
                serve(&shard, &medium, &record, &request, &model).await;
            }
        })
    });
    let clients = clients.collect::<Vec<_>>();
    let tellers: Vec<_> = (0..4).map(|session| spawn(tell(shard.clone(), SessionId(session)))).collect();
    for client in clients {
        client.await.unwrap();
    }
    tellers.iter().for_each(|teller| teller.abort());
}

/// A session that writes tells what others ask for: that it knows no more than the shard.
async fn tell(shard: Shard<Memory>, session: SessionId) {
    let ask = |operation| FileRequest { session, number: 0, answered: 0, operation };
    while let Ok(Answer::Recalled(recalls)) = shard.serve(&ask(Operation::Recalls)).await {
        for recall in recalls {
            shard.serve(&ask(Operation::Told(recall.number))).await.unwrap();
        }
    }
}

async fn serve(
    shard: &Shard<Memory>,
    medium: &Memory,
    record: &Record,
    request: &FileRequest,
    model: &RefCell<FileModel>,
) {
    // It may wait for room first. In the step that decides it, the tables change before anything else does.
    let asked = Cell::new(0);
    let decide = || {
        asked.set(asked.get() + 1);
        Ok::<(), Infallible>(())
    };
    let mut serving = pin!(shard.serve_if(request, decide));
    let mut decided = None;
    let answered = poll_fn(|cx| {
        let polled = serving.as_mut().poll(cx);
        if asked.get() > 0 && decided.is_none() {
            assert!(polled.is_pending(), "nothing is answered before it is durable");
            record.digests.borrow_mut().push(digest(shard));
            decided = Some(record.digests.borrow().len());
        }
        polled
    });
    let Ok(answer) = answered.await.unwrap();
    let decided = decided.expect("it was decided before it was answered");
    assert_eq!(asked.get(), 1, "nothing waits for another session: {request:?}");
    if let Answer::Attributes(a) = &answer {
        model.borrow_mut().know(a.inode.0);
    }
    record.most_answered.set(record.most_answered.get().max(decided));
    record.answered.borrow_mut().insert(medium.event_count(), record.most_answered.get());
}

/// Every image that a crash at an event can leave, of which so many are tried.
fn images(before: &Blocks, events: &[Event], at: usize, subsets: u64) -> Vec<Blocks> {
    let mut image = before.clone();
    let mut under_way = BTreeMap::new();
    for event in &events[..at] {
        match event {
            Event::Begun(number, block, blocks) => drop(under_way.insert(*number, (*block, blocks.clone()))),
            Event::Completed(number) => {
                let (block, blocks) = under_way.remove(number).expect("it was begun");
                image.extend((block..).zip(blocks));
            }
        }
    }
    let loose: Vec<(u64, Rc<[u8]>)> =
        under_way.into_values().flat_map(|(block, bs)| (block..).zip(bs)).collect();
    let some = |share: u64| {
        let mut image = image.clone();
        image.extend(loose.iter().filter(|_| random_below(4) < share).cloned());
        image
    };
    match loose.is_empty() {
        true => vec![image],
        false => (0..subsets).map(|n| some([0, 4, 2, 3, 1][(n % 5) as usize])).collect(),
    }
}

/// Opens an image as the next server would.
async fn open(image: Blocks, generation: u64) -> (Rc<Memory>, Shard<Memory>) {
    let medium = Memory::of(image).attached_again(generation);
    let shard = Shard::open(medium.attach()).await.unwrap();
    // Checkpoints of these small tables take several steps.
    shard.step_by(1 + random_below(3) as usize);
    (Rc::new(medium), shard)
}

/// What was tried.
#[derive(Default, Debug)]
struct Tried {
    images: u64,
    again: u64,
    moments: std::collections::BTreeSet<usize>,
}

/// Crashes at every event of a workload that began with these blocks, whose tables had that digest.
async fn crash_everywhere(
    before: Blocks,
    first: u64,
    events: Vec<Event>,
    record: &Record,
    generation: u64,
    depth: u64,
    tried: &mut Tried,
) {
    let factor: u64 = std::env::var("WEFT_META_FACTOR").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for at in 0..=events.len() {
        let answered = record.answered.borrow().range(..=at).next_back().map_or(0, |(_, answered)| *answered);
        for image in images(&before, &events, at, factor * SUBSETS) {
            let (medium, shard) = open(image.clone(), generation).await;
            let found = digest(&shard);
            let moment = record.moment(found, first, answered);
            let moment =
                moment.unwrap_or_else(|| panic!("event {at}: no moment from {answered} on had these tables"));
            assert_eq!(shard.with_tables(check_tables), [], "event {at}");
            tried.moments.insert(moment);
            tried.images += 1;
            if depth == 0 && random_below(AGAIN_EVERY) == 0 {
                tried.again += 1;
                let record = Rc::new(Record::default());
                workload(&shard, &medium, &record, 6).await;
                let events = medium.events();
                let next = generation + 1;
                Box::pin(crash_everywhere(image, found, events, &record, next, 1, tried)).await;
            }
        }
    }
}

/// Writes 900 of 1,024 blocks of the log, so that what follows goes on at its beginning.
async fn fill_most_of_the_log(shard: &Shard<Memory>) {
    for number in 1..=300 {
        let value = vec![number as u8; 9000];
        let set = Operation::SetXattr(InodeNumber::ROOT, b"user.a".to_vec(), value, XattrMode::Either);
        let request = FileRequest { session: SessionId(9), number, answered: number - 1, operation: set };
        shard.serve(&request).await.unwrap();
    }
}

#[test]
fn whatever_was_answered_is_there_after_a_crash() {
    let tried = Sim::new(11).block_on(async {
        let medium = Rc::new(Memory::of(Blocks::new()));
        let format = ShardFormat { log_blocks: 1024, ..ShardFormat::new(NAME, [7; 16], [1; 12]) };
        format_shard(&*medium, &format).await.unwrap();
        let server = medium.attach();
        let generation = server.generation();
        let shard = Shard::open(server).await.unwrap();
        shard.step_by(2);
        fill_most_of_the_log(&shard).await;
        let before = medium.contents();
        let written = medium.event_count();
        let first = digest(&shard);
        let record = Rc::new(Record::default());
        workload(&shard, &medium, &record, 130).await;
        let counters = shard.counters();
        assert!(counters.checkpoints > 5 && counters.batches > 100, "{counters:?}");
        assert!(counters.log_blocks > 1024, "the log has to begin anew meanwhile: {counters:?}");
        let events = medium.events().split_off(written);
        let shifted: BTreeMap<usize, usize> =
            record.answered.borrow().iter().map(|(at, answered)| (at - written, *answered)).collect();
        record.answered.replace(shifted);
        let mut tried = Tried::default();
        crash_everywhere(before, first, events, &record, generation, 0, &mut tried).await;
        tried
    });
    let moments = tried.moments.len();
    eprintln!("{} images, {} workloads that went on, {moments} moments", tried.images, tried.again);
    assert!(tried.images > 1000 && tried.again > 5 && moments > 100);
}

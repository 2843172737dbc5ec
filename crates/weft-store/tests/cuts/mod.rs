//! What a power cut may leave: the subsets of the writes that no flush has covered, lost, kept or torn,
//! in any order.

#![allow(dead_code, missing_docs)]

use weft_rt::sim::{DiskEvent, SimDisk};

const SECTOR: usize = 512;

/// What was tried, by depth: a cut of the workload, of its recovery, of that one's recovery.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    pub cuts: u64,
    pub exhausted: u64,
    pub images: u64,
    pub torn: u64,
    pub reordered: u64,
    pub replayed: u64,
    pub dropped_blocks: u64,
    pub unflushed_most: u64,
    pub went_on: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Lost,
    Kept,
    Torn,
}

/// A write that no flush has covered.
pub struct Unflushed {
    pub serial: u64,
    pub offset: u64,
    pub data: Vec<u8>,
}

/// A small generator of its own: what is tried does not depend on what is simulated.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    fn fate(&mut self) -> Fate {
        [Fate::Lost, Fate::Kept, Fate::Torn][self.below(3) as usize]
    }
}

/// The fates of the unflushed writes that are tried at one cut, and whether these are all. Those in which the
/// newest write is lost were tried at the cut before it.
pub fn fates_of(n: usize, is_newest_a_write: bool, limit: u64, dice: &mut Dice) -> (Vec<Vec<Fate>>, bool) {
    let all = [Fate::Kept, Fate::Torn, Fate::Lost];
    let total = 3u64.checked_pow(n as u32).unwrap_or(u64::MAX);
    let is_new = |fates: &Vec<Fate>| !is_newest_a_write || fates.last() != Some(&Fate::Lost);
    if total <= limit {
        let nth = |mut i: u64| -> Vec<Fate> {
            let digit = |i: &mut u64| {
                let digit = *i % 3;
                *i /= 3;
                all[digit as usize]
            };
            (0..n).map(|_| digit(&mut i)).collect()
        };
        return ((0..total).map(nth).filter(is_new).collect(), true);
    }
    let mut out = vec![vec![Fate::Lost; n], vec![Fate::Kept; n]];
    for _ in 0..limit / 4 {
        // One arrived before all others, one not at all, one torn among good ones.
        for (most, one) in [(Fate::Lost, Fate::Kept), (Fate::Kept, Fate::Lost), (Fate::Kept, Fate::Torn)] {
            let mut fates = vec![most; n];
            fates[dice.below(n as u64) as usize] = one;
            out.push(fates);
        }
    }
    while (out.len() as u64) < limit {
        out.push((0..n).map(|_| dice.fate()).collect());
    }
    (out, false)
}

/// What a cut leaves: the durable bytes, and of the unflushed writes what their fates say, in any order.
pub fn image_of(
    durable: &SimDisk,
    unflushed: &[Unflushed],
    fates: &[Fate],
    dice: &mut Dice,
    tried: &mut Tried,
) -> SimDisk {
    let image = durable.copy("cut");
    let mut order: Vec<usize> = (0..unflushed.len()).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, dice.below(i as u64 + 1) as usize);
    }
    tried.reordered += u64::from(!order.is_sorted());
    tried.torn += u64::from(fates.contains(&Fate::Torn));
    for i in order {
        let (write, fate) = (&unflushed[i], fates[i]);
        // A tear keeps a part of the sectors: from the front, from the back, or here and there.
        let sectors = write.data.len().div_ceil(SECTOR) as u64;
        let (style, at) = (dice.below(3), 1 + dice.below(sectors.max(2) - 1));
        for (s, bytes) in write.data.chunks(SECTOR).enumerate() {
            let is_kept = match (fate, style) {
                (Fate::Kept, _) => true,
                (Fate::Lost, _) => false,
                (Fate::Torn, 0) => (s as u64) < at,
                (Fate::Torn, 1) => s as u64 >= at,
                (Fate::Torn, _) => dice.below(2) == 0,
            };
            if is_kept {
                image.poke(write.offset + (s * SECTOR) as u64, bytes);
            }
        }
    }
    image
}

/// Follows one event: what becomes durable is put on the disk, and what is left is in `unflushed`.
pub fn follow(event: &DiskEvent, durable: &SimDisk, unflushed: &mut Vec<Unflushed>) {
    match event {
        DiskEvent::Write { serial, offset, data } => {
            let (serial, offset, data) = (*serial, *offset, data.clone());
            unflushed.push(Unflushed { serial, offset, data });
        }
        DiskEvent::Flushed { serials } => unflushed.retain(|w| {
            let stays = serials.binary_search(&w.serial).is_ok();
            if stays {
                durable.poke(w.offset, &w.data);
            }
            !stays
        }),
    }
}

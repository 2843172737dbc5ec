//! A target takes what has changed in the map from exactly the version and the nonce that it has (C8).

use crate::fabric;

use fabric::*;
use weft_rt::Buf;
use weft_rt::sim::{Crash, Sim};
use weft_types::{FabricMap, MapVersion, Slice, TargetId};
use weft_wire::control::{self, TargetAnswer, TargetRequest};
use weft_wire::pieces::{encode_delta, encode_whole};

/// Of the manager's process.
const NONCE: u64 = 7;

/// The newest map of the manager.
fn newest(fabric: &Fabric) -> FabricMap {
    fabric.manager.map.borrow().clone()
}

/// Sends target 1 what leads from one map to another, and decodes its answer.
async fn send(fabric: &Fabric, from: &FabricMap, to: &FabricMap, nonce: u64) -> TargetAnswer {
    let request = TargetRequest::AdoptDelta { from: from.version, version: to.version, nonce };
    let body = vec![Buf::from(encode_delta(&to.delta_from(from)))];
    let frame = fabric.order_with(1, &request, body).await.expect("it answers");
    control::decode(&frame.head).expect("an answer")
}

/// Has target 1 adopt the newest map whole, under this nonce.
async fn give(fabric: &Fabric, nonce: u64) -> FabricMap {
    let map = newest(fabric);
    let request = TargetRequest::AdoptMap { version: map.version, nonce };
    assert_eq!(fabric.command(1, &request).await, Some(TargetAnswer::Done));
    map
}

/// The map that target 1 has in force, and the one of which its drive has a copy.
async fn held(fabric: &Fabric) -> (MapVersion, MapVersion) {
    let inventory = fabric.command(1, &TargetRequest::Inventory { detail: vec![] }).await;
    let Some(TargetAnswer::Inventory(inventory)) = inventory else { panic!("{inventory:?}") };
    (inventory.map, inventory.drives[0].map_copy)
}

/// A fabric whose first target was given a map. No map is fetched: only what is sent here counts.
async fn start() -> (std::rc::Rc<Fabric>, FabricMap) {
    let fabric = Fabric::start(2).await;
    fabric.manager.holds_maps.set(true);
    fabric.change(|map| map.next_id += 1);
    let first = give(&fabric, NONCE).await;
    (fabric, first)
}

#[test]
fn a_change_is_adopted_like_a_map_and_kept_as_a_whole_one() {
    Sim::new(41).block_on(async {
        let (fabric, first) = start().await;
        let epoch = fabric.set_role(2, weft_types::Role::Out);
        let second = newest(&fabric);
        assert_eq!(send(&fabric, &first, &second, NONCE).await, TargetAnswer::Done);
        assert_eq!(held(&fabric).await, (second.version, second.version));
        // Sent again, it changes nothing.
        assert_eq!(send(&fabric, &first, &second, NONCE).await, TargetAnswer::Done);
        let (_, bytes) = {
            let target = fabric.targets.borrow()[&1].clone();
            drop(target);
            fabric.kill_target(1, Crash::PowerCut);
            let disk = fabric.disks[0].open().unwrap();
            weft_store::Store::read_map_copy(&disk).await.unwrap().unwrap()
        };
        let copy = control::decode_map(&bytes).unwrap();
        assert_eq!(copy, second, "what is on the drive is the whole map");
        assert_eq!(copy.groups[&GROUP].epoch, epoch);
    });
}

#[test]
fn a_change_from_another_version_or_another_manager_is_not_taken() {
    Sim::new(42).block_on(async {
        let (fabric, first) = start().await;
        fabric.change(|map| map.next_id += 1);
        let missed = newest(&fabric);
        fabric.change(|map| map.next_id += 1);
        let third = newest(&fabric);
        let holds = TargetAnswer::Holds { version: first.version, nonce: NONCE };
        assert_eq!(send(&fabric, &missed, &third, NONCE).await, holds, "it has not got so far");
        assert_eq!(send(&fabric, &first, &third, NONCE + 1).await, holds, "it is not from there");
        assert_eq!(held(&fabric).await, (first.version, first.version));
        assert_eq!(send(&fabric, &first, &third, NONCE).await, TargetAnswer::Done);
        // A map of a manager of an older release came without a nonce: nothing leads on from it.
        fabric.change(|map| map.next_id += 1);
        let fourth = give(&fabric, 0).await;
        fabric.change(|map| map.next_id += 1);
        let holds = TargetAnswer::Holds { version: fourth.version, nonce: 0 };
        for nonce in [0, NONCE] {
            assert_eq!(send(&fabric, &fourth, &newest(&fabric), nonce).await, holds);
        }
    });
}

#[test]
fn the_same_map_from_the_next_manager_is_what_its_changes_lead_on_from() {
    Sim::new(43).block_on(async {
        let (fabric, first) = start().await;
        give(&fabric, NONCE + 1).await;
        fabric.change(|map| map.next_id += 1);
        let second = newest(&fabric);
        assert_eq!(send(&fabric, &first, &second, NONCE + 1).await, TargetAnswer::Done);
        // Another map under the same version is none of them, and what it leads to is not taken.
        let other = FabricMap { next_id: second.next_id + 7, ..second.clone() };
        let request = TargetRequest::AdoptMap { version: other.version, nonce: NONCE + 2 };
        let body = vec![Buf::from(control::encode_map(&other))];
        fabric.order_with(1, &request, body).await.expect("it answers");
        let third = FabricMap { version: MapVersion(other.version.0 + 1), ..other.clone() };
        let holds = TargetAnswer::Holds { version: second.version, nonce: NONCE + 1 };
        assert_eq!(send(&fabric, &other, &third, NONCE + 2).await, holds);
    });
}

#[test]
fn a_slice_that_comes_in_parts_is_adopted_with_the_last_and_only_in_order() {
    Sim::new(44).block_on(async {
        let (fabric, first) = start().await;
        fabric.change(|map| map.next_id += 1);
        let map = newest(&fabric);
        let own = map.node_named("node-1").or(map.nodes.values().next()).unwrap().id;
        let slice = map.slice(&Slice::Target(TargetId::first_of(own)));
        let bytes = encode_whole(&slice);
        let parts: Vec<&[u8]> = bytes.chunks(bytes.len().div_ceil(3)).collect();
        let (version, all) = (map.version, parts.len() as u32);
        let send = async |part: u32, nonce: u64| {
            let request = TargetRequest::AdoptPart { version, nonce, part, parts: all };
            let body = vec![Buf::from(parts[part as usize].to_vec())];
            let frame = fabric.order_with(1, &request, body).await.expect("it answers");
            control::decode::<TargetAnswer>(&frame.head).expect("an answer")
        };
        let holds = TargetAnswer::Holds { version: first.version, nonce: NONCE };
        assert_eq!(send(1, 9).await, holds, "it has no beginning");
        assert_eq!(send(0, 9).await, TargetAnswer::Done);
        assert_eq!(send(2, 9).await, holds, "one is missing");
        assert_eq!(send(1, 8).await, holds, "it belongs to another");
        assert_eq!(held(&fabric).await.0, first.version);
        // Another one takes the place of the one that has begun.
        for part in 0..all - 1 {
            assert_eq!(send(part, 11).await, TargetAnswer::Done);
        }
        assert!(matches!(send(all - 1, 11).await, TargetAnswer::Adopted { .. }));
        assert_eq!(held(&fabric).await, (version, version));
        assert!(matches!(send(1, 11).await, TargetAnswer::Holds { .. }), "it is through with that");
    });
}

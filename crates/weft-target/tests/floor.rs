//! A floor rises (R7): members close below it, say what is open, and are open again once a map says how it
//! came out.

use crate::fabric;

use fabric::*;
use weft_rt::sim::Sim;
use weft_types::*;
use weft_wire::Status;
use weft_wire::control::{OpenBelow, TargetAnswer, TargetRequest};
use weft_wire::data::*;

const OK: (Status, Option<Verdict>) = (Status::Ok, Some(Verdict::Applied));
const CLOSED: (Status, Option<Verdict>) = (Status::NotServing, None);

fn floor(counter: u64) -> Version {
    version(counter, 0)
}

async fn ask(fabric: &Fabric, n: usize, close: Vec<(GroupId, Epoch, Version)>) -> Vec<OpenBelow> {
    match fabric.command(n, &TargetRequest::Floors { close }).await {
        Some(TargetAnswer::Floors { groups }) => groups,
        other => panic!("unexpected answer: {other:?}"),
    }
}

#[test]
fn a_member_that_has_closed_is_open_again_when_its_own_map_has_a_later_epoch() {
    Sim::new(1).block_on(async {
        let fabric = Fabric::start(2).await;
        let (c, late) = (Client::new(1, 1), Client::new(2, 2));
        c.write_all(&[1, 2], 0, c.v(50), 1).await;
        assert_eq!(ask(&fabric, 1, vec![]).await, [], "nothing was discarded");
        let at_other_epoch = vec![(GROUP, Epoch(9), floor(40))];
        assert_eq!(ask(&fabric, 1, at_other_epoch).await, [], "it is not in that epoch");
        let said = ask(&fabric, 1, vec![(GROUP, Epoch(1), floor(40))]).await;
        let open = vec![(SessionSlot(1), Version::ZERO, Some(c.v(50)))];
        assert_eq!(said.len(), 1);
        assert_eq!((said[0].drive, said[0].epoch, &said[0].sessions), (drive(1), Epoch(1), &open));
        // Below it nothing is taken any more, and what is above is; nobody has asked the other member.
        assert_eq!(late.write(1, 5, late.v(39), 2).await, CLOSED);
        assert_eq!(late.write(1, 5, late.v(40), 2).await, OK);
        assert_eq!(late.write(2, 6, late.v(39), 2).await, OK);
        // What the other member has taken may be put: it was not said to be nowhere.
        let put = late.put(1, 6, late.v(39), 2, Purpose::Repair).await;
        assert_eq!(put, OK);
        // An older peer brings the next epoch, without a floor. That opens nothing.
        fabric.change(|map| {
            let group = map.groups.get_mut(&GROUP).unwrap();
            (group.epoch, group.floor) = (Epoch(2), floor(40));
        });
        let entry = Group { floor: Version::ZERO, ..fabric.entry() };
        assert_eq!(late.teach(1, &entry).await, Status::Ok);
        late.epoch.set(2);
        assert_eq!(late.write(1, 7, late.v(39), 2).await, CLOSED);
        fabric.push(&[1, 2]).await;
        for n in [1, 2] {
            let newest = floor(40);
            let said = late.write(n, 7, late.v(39), 2).await;
            assert_eq!(said, (Status::Ok, Some(Verdict::Superseded(newest))), "every member says the same");
        }
        assert_eq!(late.write(1, 7, late.v(41), 2).await, OK);
    });
}

#[test]
fn a_member_opens_also_if_the_floor_did_not_rise() {
    Sim::new(2).block_on(async {
        let fabric = Fabric::start(2).await;
        let c = Client::new(1, 1);
        ask(&fabric, 1, vec![(GROUP, Epoch(1), floor(40))]).await;
        assert_eq!(c.write(1, 0, c.v(7), 1).await, CLOSED);
        fabric.change(|map| map.groups.get_mut(&GROUP).unwrap().epoch = Epoch(2));
        fabric.push(&[1, 2]).await;
        c.epoch.set(2);
        assert_eq!(c.write(1, 0, c.v(7), 1).await, OK);
    });
}

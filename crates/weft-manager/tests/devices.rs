//! Devices of several parts: they fail, are emptied, replaced and forgotten together (P5).

use crate::harness;

use harness::*;
use std::collections::BTreeSet;
use std::rc::Rc;
use weft_api::{ApiAnswer, ApiRequest, ErrorCode, FailureDomain};
use weft_rt::sim::Sim;
use weft_types::{DeviceId, DriveId, DriveState, FabricMap};
use weft_wire::control::ManagerRequest;
use weft_wire::handshake::PeerRole;

/// A node with three devices: drives 1 and 2 are parts of the first, 3 and 4 of the second, 5 of the third.
/// A volume of two copies is on the first two.
async fn of_devices() -> (Service, Rc<FakeTarget>) {
    let service = Service::start().await;
    let target = FakeTarget::new(1, &[1, 2, 3, 4]);
    for (drive, device) in [(1, 10), (2, 10), (3, 20), (4, 20)] {
        target.devices.borrow_mut().insert(DriveId(drive), DeviceId(device));
    }
    target.start();
    all_up(&service, std::slice::from_ref(&target)).await;
    let ApiRequest::VolumeCreate { name, size_bytes, protection, .. } = volume_of("v", 2) else { panic!() };
    let create = ApiRequest::VolumeCreate {
        name,
        size_bytes,
        protection,
        pool: None,
        stripe_unit_bytes: None,
        width: None,
        failure_domain: FailureDomain::Device,
        thin: false,
        dry_run: false,
    };
    operate(create).await.expect("two devices take two copies");
    (service, target)
}

fn states(map: &FabricMap) -> Vec<(u128, DriveState)> {
    map.drives.values().map(|d| (d.id.0, d.state)).collect()
}

/// The devices of each group's members.
fn devices(map: &FabricMap) -> Vec<Vec<u128>> {
    let device = |drive: DriveId| map.drives[&drive].device.0;
    map.groups.values().map(|g| map.staying(g).map(device).collect()).collect()
}

async fn says_failed(target: &FakeTarget, of_device: bool) {
    let link = connect(PeerRole::Target(Default::default())).await;
    let request = ManagerRequest::DriveFailed {
        drive: DriveId(1),
        incarnation: target.incarnation.get(),
        cause: "cannot flush".into(),
        of_device,
    };
    ask(&link, &request).await.expect("it is of the process that has joined");
}

#[test]
fn copies_are_on_different_devices_and_a_device_that_fails_is_emptied() {
    Sim::new(1).block_on(async {
        let (service, target) = of_devices().await;
        assert!(devices(&service.map()).iter().all(|of| of.len() == 2 && of[0] != of[1]));
        says_failed(&target, true).await;
        use DriveState::{Active, Draining, Failed};
        assert_eq!(states(&service.map()), [(1, Failed), (2, Draining), (3, Active), (4, Active)]);
        let failed = events().await.into_iter().find(|e| e.why.contains(" failed: ")).expect("it is told");
        assert!(failed.why.contains("on the same device: ") && failed.drives.len() == 2, "{failed:?}");
        // Whatever is said again changes nothing.
        says_failed(&target, true).await;
        assert_eq!(states(&service.map())[1], (2, Draining));
    });
}

#[test]
fn what_is_wrong_on_one_drive_says_nothing_of_its_device() {
    Sim::new(1).block_on(async {
        let (service, target) = of_devices().await;
        says_failed(&target, false).await;
        assert_eq!(states(&service.map())[..2], [(1, DriveState::Failed), (2, DriveState::Active)]);
    });
}

#[test]
fn a_device_is_emptied_restored_and_forgotten_as_a_whole() {
    Sim::new(1).block_on(async {
        let (service, target) = of_devices().await;
        let id = || DriveId(1).to_string();
        let evacuate =
            |cancel, device| ApiRequest::DriveEvacuate { id: id(), cancel, device, dry_run: false };
        // One copy of each group is on this device, and there is no third one.
        let refused = operate(evacuate(false, true)).await.expect_err("no other device can take a copy");
        assert_eq!(refused.code, ErrorCode::Refused);
        says_failed(&target, true).await;
        let restore = |device| ApiRequest::DriveRestore { id: id(), device, dry_run: false };
        let refused = operate(restore(true)).await.expect_err("its target serves it no more");
        assert!(refused.message.contains("not served"), "{refused:?}");
        target.start();
        all_up(&service, std::slice::from_ref(&target)).await;
        operate(restore(true)).await.expect("both are served");
        assert!(states(&service.map()).iter().all(|(_, state)| *state == DriveState::Active));
        let remove = ApiRequest::DriveRemove { id: id(), device: true, dry_run: false };
        let refused = operate(remove.clone()).await.expect_err("it takes part");
        assert!(refused.hint.expect("what to do").contains("evacuate"));
        // A third device comes, and takes the place of the first.
        target.drives.borrow_mut().extend([DriveId(5), DriveId(6)]);
        target.devices.borrow_mut().extend([(DriveId(5), DeviceId(30)), (DriveId(6), DeviceId(30))]);
        target.start();
        eventually("it has joined", ms(10_000), || service.map().drives.len() == 6).await;
        let replace = |with: u128, device| ApiRequest::DriveReplace {
            id: id(),
            with: DriveId(with).to_string(),
            device,
            dry_run: false,
        };
        let refused = operate(replace(2, true)).await.expect_err("the device cannot replace itself");
        assert_eq!(refused.code, ErrorCode::Invalid);
        let Ok(ApiAnswer::Evacuation(begun)) = operate(replace(5, true)).await else { panic!() };
        assert_eq!(begun.drives.len(), 2, "{begun:?}");
        let to: BTreeSet<(u128, u128)> = begun.copies.iter().map(|c| (c.from.0, c.to.0)).collect();
        assert!(to.iter().all(|pair| [(1, 5), (2, 6)].contains(pair)), "{to:?}");
        assert!(devices(&service.map()).iter().all(|of| of.len() == 2 && of[0] != of[1]));
    });
}

//! What can be asked.

use crate::form::{Form, case, cases_of, check};
use crate::{covers, samples, variants};
use weft_api::{
    ApiRequest, EventFilter, FailureDomain, SettingsWish, Timestamp, decode_request, encode_request,
};
use weft_types::Protection;

variants!(ApiRequest {
    NodeList,
    NodeShow,
    DriveList,
    DriveShow,
    DriveEvacuate,
    DriveReplace,
    DriveRestore,
    DriveRemove,
    NodeEvacuate,
    NodeRemove,
    PoolList,
    VolumeCreate,
    VolumeList,
    VolumeShow,
    VolumeResize,
    VolumeDelete,
    VolumeRepair,
    VolumeHoldsData,
    FsCreate,
    FsList,
    FsShow,
    FsGrow,
    FsDelete,
    SessionEnd,
    FabricCheck,
    SessionList,
    Status,
    Load,
    Events,
    EventAdd,
    ScrubStart,
    ScrubStop,
    ScrubStatus,
    ScrubSchedule,
    MapDiff,
    MapGet,
    FabricStop,
    Settings,
});
variants!(FailureDomain { Node, Device, Drive });

fn drives_and_nodes() -> Vec<ApiRequest> {
    let (id, with) = (samples::drive(1).to_string(), samples::drive(2).to_string());
    let (node, cancel, dry_run) = ("node-b".to_owned(), true, true);
    vec![
        ApiRequest::NodeList {},
        ApiRequest::NodeShow { name: node.clone() },
        ApiRequest::DriveList {},
        ApiRequest::DriveShow { id: id.clone() },
        ApiRequest::DriveEvacuate { id: id.clone(), cancel, device: false, dry_run },
        ApiRequest::DriveReplace { id: id.clone(), with, device: false, dry_run },
        ApiRequest::DriveRestore { id: id.clone(), device: false, dry_run },
        ApiRequest::DriveRemove { id, device: false, dry_run },
        ApiRequest::NodeEvacuate { name: node.clone(), cancel, dry_run },
        ApiRequest::NodeRemove { name: node, dry_run },
        ApiRequest::PoolList {},
    ]
}

fn volumes() -> Vec<ApiRequest> {
    let (name, size_bytes) = ("data".to_owned(), 1 << 30);
    let domains = [FailureDomain::Node, FailureDomain::Device, FailureDomain::Drive];
    covers(&domains);
    let create = |failure_domain| ApiRequest::VolumeCreate {
        name: "data".into(),
        size_bytes,
        protection: Protection::mirror(3),
        pool: Some("default".into()),
        stripe_unit_bytes: Some(65_536),
        width: Some(8),
        failure_domain,
        thin: true,
        dry_run: true,
    };
    let mut all: Vec<ApiRequest> = domains.into_iter().map(create).collect();
    all.extend([
        ApiRequest::VolumeList { all: false },
        ApiRequest::VolumeShow { name: name.clone() },
        ApiRequest::VolumeResize { name: name.clone(), size_bytes, dry_run: true },
        ApiRequest::VolumeDelete { name: name.clone(), force: true, dry_run: true },
        ApiRequest::VolumeRepair {
            names: vec![name.clone()],
            accept_data_loss: true,
            destroyed: vec![samples::drive(1).to_string()],
            older: vec![samples::drive(2).to_string()],
            dry_run: true,
        },
        ApiRequest::VolumeHoldsData { name: name.clone() },
        ApiRequest::SessionEnd { session: 30, dry_run: true },
        ApiRequest::SessionList { volume: Some(name) },
        ApiRequest::SessionList { volume: None },
    ]);
    all
}

fn fabric() -> Vec<ApiRequest> {
    let filter = EventFilter {
        since: Some(Timestamp::from_millis(1_700_000_000_001)),
        kinds: vec!["evict".into()],
        volume: Some("data".into()),
        node: Some("node-b".into()),
        drive: Some("d001d002".into()),
    };
    let wish = SettingsWish {
        rebuild_after_ms: Some(600_000),
        capacity_warning_percent: Some(70),
        capacity_critical_percent: Some(85),
    };
    let map = || Box::new(samples::map());
    vec![
        ApiRequest::FabricCheck {},
        ApiRequest::Status {},
        ApiRequest::Load {},
        ApiRequest::Events { after: 5, limit: Some(6), filter },
        ApiRequest::EventAdd { text: "the switch was replaced".into() },
        ApiRequest::ScrubStart { volumes: vec!["data".into()] },
        ApiRequest::ScrubStop {},
        ApiRequest::ScrubStatus {},
        ApiRequest::ScrubSchedule { every_ms: Some(86_400_000) },
        ApiRequest::ScrubSchedule { every_ms: None },
        ApiRequest::MapDiff { from: map(), to: map() },
        ApiRequest::MapGet {},
        ApiRequest::Settings(SettingsWish::default()),
        ApiRequest::Settings(wish),
        ApiRequest::FabricStop {},
    ]
}

/// All drives of a device together.
fn devices() -> Vec<ApiRequest> {
    let (id, with) = (samples::drive(1).to_string(), samples::drive(2).to_string());
    vec![
        ApiRequest::DriveEvacuate { id: id.clone(), cancel: false, device: true, dry_run: true },
        ApiRequest::DriveReplace { id: id.clone(), with, device: true, dry_run: true },
        ApiRequest::DriveRestore { id: id.clone(), device: true, dry_run: true },
        ApiRequest::DriveRemove { id, device: true, dry_run: true },
    ]
}

fn file_systems() -> Vec<ApiRequest> {
    let name = "photos".to_owned();
    let create = ApiRequest::FsCreate {
        name: name.clone(),
        protection: Protection::mirror(3),
        pool: Some("default".into()),
        shards: Some(32),
        is_spread: false,
        stripe_unit_bytes: Some(65_536),
        width: Some(8),
        failure_domain: FailureDomain::Node,
        dry_run: true,
    };
    vec![
        create,
        ApiRequest::FsList {},
        ApiRequest::FsShow { name: name.clone() },
        ApiRequest::FsGrow { name: name.clone(), dry_run: true },
        ApiRequest::FsDelete { name, force: true, dry_run: true },
        ApiRequest::VolumeList { all: true },
    ]
}

#[test]
fn requests() {
    let all = [drives_and_nodes(), volumes(), fabric(), devices(), file_systems()].concat();
    let cases = cases_of(all, |name, request| case(name, request, encode_request, decode_request));
    check("request.json", Form::Json, &cases);
}

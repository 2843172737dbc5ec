//! The backups that the manager takes by itself, over virtual hours.

use crate::harness;

use harness::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiRequest, SettingsWish};
use weft_manager::{Manager, ManagerOptions, MemStore, put_map};
use weft_rt::sim::Sim;
use weft_rt::{Instant, now, sleep, spawn};
use weft_types::{FabricMap, MapVersion};
use weft_wire::backup::decode_backup;

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

/// A place for backups that can be full, and says when what was put there.
#[derive(Default)]
struct Place {
    is_full: Cell<bool>,
    attempts: Cell<u32>,
    kept: RefCell<BTreeMap<MapVersion, (Instant, Vec<u8>)>>,
}

impl Place {
    fn keep(&self, version: MapVersion, bytes: Vec<u8>) -> Result<(), String> {
        self.attempts.set(self.attempts.get() + 1);
        if self.is_full.get() {
            return Err("cannot write /backups: No space left on device".into());
        }
        let twice = self.kept.borrow_mut().insert(version, (now(), bytes));
        assert!(twice.is_none(), "map {version} was backed up before");
        Ok(())
    }

    fn newest(&self) -> Option<FabricMap> {
        let kept = self.kept.borrow();
        let (version, (_, bytes)) = kept.last_key_value()?;
        let (head, map) = decode_backup(bytes).expect("it is a backup");
        assert_eq!((head.map, map.version), (*version, *version));
        Some(map)
    }
}

/// A manager over a store that holds the map of a fabric, and backs it up to this place.
async fn backed_up(store: &MemStore, place: &Rc<Place>) -> Rc<Manager> {
    let options = ManagerOptions { fabric: Some(FABRIC), ..ManagerOptions::default() };
    let manager = Manager::start(store.clone(), options).await.unwrap();
    let to = place.clone();
    let keep = move |version, bytes| {
        let to = to.clone();
        async move { to.keep(version, bytes) }
    };
    spawn(manager.clone().keep_backups(HOUR, keep));
    spawn(manager.clone().serve(weft_rt::Listener::bind(&manager_addr()).unwrap()));
    manager
}

/// The store of a manager that had a fabric, and is gone.
async fn store_of_a_fabric() -> MemStore {
    let (service, targets, _) = fabric(2).await;
    operate(volume_of("v", 2)).await.unwrap();
    all_up(&service, &targets).await;
    targets.iter().for_each(|t| t.kill());
    service.kill();
    service.store.clone()
}

/// Changes the map.
async fn change(manager: &Manager, n: u64) {
    let before = manager.map().version;
    let wish = SettingsWish { rebuild_after_ms: Some(1_000 + n), ..SettingsWish::default() };
    let settings = ApiRequest::Settings(wish);
    operate(settings).await.unwrap();
    assert!(manager.map().version > before);
}

fn count(manager: &Manager, what: &str) -> u64 {
    manager.event_counts().get(what).copied().unwrap_or(0)
}

#[test]
fn a_backup_is_taken_every_hour_in_which_the_map_has_changed() {
    Sim::new(1).block_on(async {
        let (store, place) = (store_of_a_fabric().await, Rc::<Place>::default());
        let manager = backed_up(&store, &place).await;
        sleep(MINUTE - ms(1)).await;
        assert_eq!(place.attempts.get(), 0, "those who were there before shall join first");
        sleep(ms(2)).await;
        assert_eq!(place.newest().as_ref(), Some(&*manager.map()));
        for n in 0..6 {
            change(&manager, n).await;
            sleep(HOUR).await;
            assert_eq!(place.newest().as_ref(), Some(&*manager.map()));
        }
        let attempts = place.attempts.get();
        assert_eq!(attempts, 7);
        sleep(3 * HOUR).await;
        assert_eq!(place.attempts.get(), attempts, "nothing has changed");
        // What was kept is a map that a manager starts on.
        let restored = MemStore::new();
        let map = place.newest().unwrap();
        put_map(&restored, &map).await.unwrap();
        let options = ManagerOptions { fabric: Some(FABRIC), ..ManagerOptions::default() };
        let again = Manager::start(restored, options).await.unwrap();
        assert!(again.map().volume_named("v").is_some());
        assert_eq!((count(&manager, "map-backup-failed"), count(&manager, "map-backup-kept")), (0, 0));
    });
}

#[test]
fn a_place_that_is_full_is_told_once_and_tried_until_it_has_room() {
    Sim::new(2).block_on(async {
        let (store, place) = (store_of_a_fabric().await, Rc::<Place>::default());
        let manager = backed_up(&store, &place).await;
        place.is_full.set(true);
        sleep(HOUR).await;
        let attempts = place.attempts.get();
        assert!((10..=13).contains(&attempts), "every five minutes, though nothing changes: {attempts}");
        assert_eq!(count(&manager, "map-backup-failed"), 1, "told once");
        let told = events().await.into_iter().find(|e| e.what == "map-backup-failed").unwrap();
        assert!(told.why.contains("No space left on device") && told.why.contains("300 s"), "{}", told.why);
        // The map goes on meanwhile, and the newest is what is kept once there is room.
        change(&manager, 1).await;
        place.is_full.set(false);
        sleep(5 * MINUTE + ms(1)).await;
        assert_eq!(place.newest().as_ref(), Some(&*manager.map()));
        assert_eq!(place.kept.borrow().len(), 1);
        assert_eq!(count(&manager, "map-backup-kept"), 1);
        // From now on every hour again.
        change(&manager, 2).await;
        sleep(HOUR - 6 * MINUTE).await;
        assert_eq!(place.kept.borrow().len(), 1);
        sleep(7 * MINUTE).await;
        assert_eq!(place.kept.borrow().len(), 2);
        place.is_full.set(true);
        change(&manager, 3).await;
        sleep(2 * HOUR).await;
        assert_eq!(count(&manager, "map-backup-failed"), 2, "another time is told again");
    });
}

#[test]
fn a_manager_that_has_stopped_backs_nothing_up() {
    Sim::new(3).block_on(async {
        let (store, place) = (store_of_a_fabric().await, Rc::<Place>::default());
        let manager = backed_up(&store, &place).await;
        // Another manager has committed: this one's map is out of date.
        let mut map = FabricMap::clone(&store.map().unwrap());
        map.version = MapVersion(map.version.0 + 1);
        put_map(&store, &map).await.unwrap();
        let wish = SettingsWish { rebuild_after_ms: Some(5_000), ..SettingsWish::default() };
        let settings = ApiRequest::Settings(wish);
        operate(settings).await.unwrap_err();
        assert!(!manager.halted().await.is_empty());
        sleep(3 * HOUR).await;
        assert_eq!(place.attempts.get(), 0);
    });
}

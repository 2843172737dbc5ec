//! What a follower has of the map is the slice of the map of that version, whenever it takes something (C8).
//!
//! The maps are those that the manager's store has taken: whoever knows of another one knows what is not
//! durable.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use weft_rules::observe_slices;
use weft_types::{FabricMap, MapVersion, Slice, TargetSlice};

/// Every version of a fabric's map.
pub struct SlicesCheck(Rc<RefCell<BTreeMap<MapVersion, FabricMap>>>);

impl SlicesCheck {
    /// Begins to watch the followers of the fabric with this map, until another one is watched. It panics
    /// when one has something else than the slice that it follows.
    pub fn start(first: &FabricMap) -> SlicesCheck {
        let versions = Rc::new(RefCell::new(BTreeMap::from([(first.version, first.clone())])));
        let (fabric, known) = (first.fabric, versions.clone());
        observe_slices(Some(Rc::new(move |slice, held| {
            if held.fabric == fabric {
                look(&known.borrow(), slice, held);
            }
        })));
        SlicesCheck(versions)
    }

    /// The store has taken the next version.
    pub fn note(&self, map: &FabricMap) {
        self.0.borrow_mut().insert(map.version, map.clone());
    }
}

fn look(versions: &BTreeMap<MapVersion, FabricMap>, slice: &Slice, held: &FabricMap) {
    let version = held.version;
    let Some(map) = versions.get(&version) else {
        panic!("a follower of {slice:?} has map {version}, which was never durable");
    };
    let expected = match (&held.of_target, slice) {
        // Which other groups its drives hold, it has said itself.
        (Some(says), Slice::Target(target)) => {
            let listed = held.groups.keys().chain(&says.removed_groups).copied().collect();
            TargetSlice::of(map, *target, listed).slice(map)
        }
        // Members of an earlier release follow the whole map.
        (None, Slice::Whole) => map.clone().for_earlier_release(),
        _ => map.slice(slice),
    };
    assert!(
        *held == expected,
        "a follower of {slice:?} has another slice of map {version} than there is; missing: {:?}",
        expected.delta_from(held)
    );
}

//! A manager whose store's base catches up while it runs, and that dies at any write around that.

use crate::harness;

use harness::*;
use weft_api::{ApiRequest, SettingsWish};
use weft_manager::{KeyStore, at_once, load_map};
use weft_rt::sim::Sim;

fn wish(n: u64) -> ApiRequest {
    ApiRequest::Settings(SettingsWish::rebuild_after_ms(600_000 + n))
}

fn deltas(service: &Service) -> usize {
    at_once(service.store.read(&["delta/"])).unwrap().len()
}

#[test]
fn a_manager_may_die_at_any_write_of_a_fold() {
    let mut folds = 0;
    for (write, is_written) in (1..=16).flat_map(|write| [(write, false), (write, true)]) {
        let has_folded = Sim::new(write).block_on(async move {
            let (service, targets, _) = fabric(2).await;
            operate(volume_of("v", 2)).await.unwrap();
            let mut done = 0;
            while deltas(&service) < 250 {
                done += 1;
                operate(wish(done)).await.unwrap();
            }
            service.store.break_at_write(service.store.writes() + write, is_written);
            while operate(wish(done + 1)).await.is_ok() {
                done += 1;
            }
            service.store.set_broken(false);
            let has_folded = deltas(&service) < 250;
            // What was acknowledged is there; what was not may be.
            let found = load_map(&service.store).await.unwrap().unwrap();
            let asked = found.durations.rebuild_after_ms - 600_000;
            assert!(asked == done || asked == done + 1, "{asked}, acknowledged: {done}");
            service.restart().await;
            all_up(&service, &targets).await;
            assert!(service.map().version >= found.version && service.map().volume_named("v").is_some());
            for n in 0..300 {
                operate(wish(n)).await.unwrap();
            }
            eventually("it is folded", ms(2_000), || deltas(&service) < 256).await;
            assert_eq!(load_map(&service.store).await.unwrap().unwrap(), service.map());
            has_folded
        });
        folds += usize::from(has_folded);
    }
    assert!((1..32).contains(&folds), "it died before the end of a fold and after: {folds}");
}

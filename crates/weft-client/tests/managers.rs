//! Several managers, one of which leads.

use crate::fabric;

use fabric::*;
use std::time::Duration;
use weft_client::ClientError;
use weft_rt::sim::Sim;
use weft_rt::sleep;

#[test]
fn the_next_manager_is_asked_when_one_is_not_ready() {
    Sim::new(1).block_on(async {
        let targets = start(2).await;
        let unready = start_unready_manager();
        sleep(ms(1)).await;
        let volume = attach_by(&[unready.clone(), manager_addr()], Duration::from_secs(30)).await;
        volume.write(0, block(7)).await.unwrap();
        assert_eq!(targets[0].holds(0).1, 7);
        let alone = weft_client::Fabric::connect(&[unready], "client").await;
        let refused = alone.err().expect("nobody is ready");
        assert!(matches!(refused, ClientError::Refused { .. }), "{refused:?}");
        assert!(refused.to_string().contains("has stopped"), "{refused}");
    });
}

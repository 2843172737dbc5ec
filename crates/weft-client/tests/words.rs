//! What a client says to people: why its session is over, and which drive made a request slow.

use crate::fabric;

use fabric::*;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use weft_client::ClientError;
use weft_rt::sim::Sim;
use weft_rt::{now, sleep, spawn};
use weft_types::{BLOCK_SIZE, Epoch};
use weft_wire::Status;

/// Keeps the lines of the log, as `field=value` one after another.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_client_learns_from_the_manager_why_its_session_is_over() {
    Sim::new(1).block_on(async {
        let targets = start(2).await;
        let volume = attach(Duration::from_secs(30)).await;
        targets[0].say(|_, _, _| Act::Answer(refusal(Status::SessionOver)));
        let error = volume.write(0, block(7)).await.unwrap_err();
        assert!(matches!(error, ClientError::SessionOver { .. }), "{error}");
        sleep(ms(500)).await;
        let error = volume.flush().await.unwrap_err().to_string();
        assert_eq!(error, "the session on volume 'v' is over: somebody@host ended it");
    });
}

/// One drive hangs until the group goes on without it; another one, which answered at once, is not
/// ready for a moment afterwards.
#[test]
fn a_slow_request_blames_the_drive_that_had_not_answered() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    Sim::new(2).block_on(async {
        let targets = start(3).await;
        let volume = attach(Duration::from_secs(30)).await;
        volume.write(0, block(1)).await.unwrap();
        targets[2].say(|_, _, _| Act::Hang);
        let begun = now();
        targets[0].say(move |_, _, head| match head.epoch == Epoch(1) && begun.elapsed() > ms(2500) {
            true => Act::Answer(stale(&group(2, 2))),
            false => Act::Serve,
        });
        targets[1].say(move |_, _, head| match head.epoch == Epoch(2) && begun.elapsed() < ms(3100) {
            true => Act::Answer(refusal(Status::NotReady)),
            false => Act::Serve,
        });
        let slow = volume.clone();
        let slow = spawn(async move { slow.write(0, block(2)).await });
        sleep(ms(3000)).await;
        // Which meets the newer epoch, for both.
        volume.write(BLOCK_SIZE as u64, block(3)).await.unwrap();
        slow.await.unwrap().unwrap();
    });
    let lines = lines.0.lock().unwrap();
    let told: Vec<&String> = lines.iter().filter(|l| l.contains("request was slow")).collect();
    assert_eq!(told.len(), 1, "{lines:?}");
    let drive = |n: u128| weft_types::DriveId(n).to_string();
    assert!(told[0].contains(&format!("waited_for=\"{} of node 'n3'\"", drive(3))), "{told:?}");
    assert!(!told[0].contains(&drive(2)), "{told:?}");
}

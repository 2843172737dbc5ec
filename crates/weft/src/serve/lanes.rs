//! Threads of a server: each runs one lane of every volume, and serves the connections that it is posted.
//!
//! The main thread attaches the volumes, runs the first lane of each, and takes all connections.

use weft_cli::{CliError, TransportArgs, note};
use weft_client::export::Exports;
use weft_client::{Lane, Volume};
use weft_nbd::{LaneDoor, LaneSeat, NbdServer, lane};
use weft_rt::{Mailbox, Poster, Thread, mailbox};
use weft_types::limits::LANES_MAX;
use weft_types::with_causes;

/// Lanes that run on threads of their own.
#[derive(Default)]
pub(super) struct Lanes {
    running: Vec<Running>,
}

struct Running {
    thread: Thread,
    door: Option<LaneDoor>,
}

/// All that a thread begins with.
struct Plan {
    transport: TransportArgs,
    lanes: Vec<(String, Lane)>,
    seat: LaneSeat,
    /// Bytes that it may owe to its clients.
    room: u64,
    opened: Poster<Opened>,
}

/// A thread serves these exports.
struct Opened {
    /// From 0, without the main thread.
    thread: usize,
    exports: Vec<String>,
}

impl Lanes {
    /// Starts a thread for each lane beside the first of the volumes, and adds each to the server once it
    /// can serve. A lane that cannot be had is left out, and told. Each thread may owe so many bytes to its
    /// clients.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub(super) async fn start(
        &mut self,
        transport: &TransportArgs,
        volumes: &[Volume],
        server: &NbdServer,
        room: u64,
    ) -> Result<(), CliError> {
        let mut dealt: Vec<Vec<(String, Lane)>> = Vec::new();
        for volume in volumes {
            for lane in volume.take_lanes() {
                let thread = lane.number() - 1;
                dealt.resize_with(dealt.len().max(thread + 1), Vec::new);
                dealt[thread].push((volume.name().to_owned(), lane));
            }
        }
        let (opened, told) = mailbox(LANES_MAX);
        for (thread, lanes) in dealt.into_iter().enumerate() {
            let (door, seat) = lane();
            let plan = Plan { transport: *transport, lanes, seat, room, opened: opened.clone() };
            let started = Thread::start(&format!("lane-{}", 1 + thread), None, move || plan.run(thread));
            let thread = started.map_err(|error| CliError::Failed {
                message: format!("lane {} could not be started: {error}", 1 + thread),
                hint: "raise the limit of processes and threads of this user, or ask for fewer lanes".into(),
            })?;
            self.running.push(Running { thread, door: Some(door) });
        }
        drop(opened);
        self.add_to(server, told).await;
        Ok(())
    }

    /// Adds the threads that can serve to the server, once every thread has said what it serves or has ended.
    async fn add_to(&mut self, server: &NbdServer, mut told: Mailbox<Opened>) {
        while let Some(Opened { thread, exports }) = told.next().await {
            if let Some(door) = self.running[thread].door.take() {
                server.add_lane(door, exports);
            }
        }
        for (number, lane) in (1..).zip(&mut self.running) {
            if lane.door.take().is_some() {
                let why = lane.thread.ended().await.err().map(|error| with_causes(&error));
                let why = why.unwrap_or_else(|| "its thread has ended".into());
                tracing::warn!(lane = number, error = why, "a lane cannot serve");
                note(&format!("lane {number} cannot serve, the others do: {why}"));
            }
        }
    }

    /// Completes when all threads have ended: each after the server was stopped, or never existed.
    pub(super) async fn ended(self) {
        for Running { mut thread, door } in self.running {
            // A thread that no server has taken sees that nobody will post to it.
            drop(door);
            // A thread that could not run was told at the start.
            let _ = thread.ended().await;
        }
    }
}

impl Plan {
    /// The life of a thread: opens its lanes, serves until the main thread's server stops, and leaves the
    /// attaches.
    async fn run(self, thread: usize) {
        let Plan { transport, lanes, seat, room, opened } = self;
        transport.apply();
        let (mut exports, mut volumes) = (Exports::new(), Vec::new());
        for (name, lane) in lanes {
            let number = lane.number();
            match lane.open() {
                Ok(volume) => {
                    volumes.push(volume.clone());
                    exports.add(&name, volume).expect("the main thread has added the same names");
                }
                Err(error) => {
                    tracing::warn!(volume = name, lane = number, error = with_causes(&error), "no lane");
                }
            }
        }
        let names: Vec<String> = exports.names().map(str::to_owned).collect();
        // There is room for every thread.
        let _ = opened.post(Opened { thread, exports: names });
        drop(opened);
        NbdServer::with_room(exports, room).run_lane(seat).await;
        for volume in volumes {
            volume.detach().await;
        }
    }
}

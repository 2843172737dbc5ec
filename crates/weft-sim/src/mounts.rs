//! Processes that have mounted a file system: each is on a host of its own, does what it is given, and may die
//! at any moment.

use crate::bed::Bed;
use crate::clients::client_host;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use weft_client::{AttachMode, Fabric};
use weft_fs::{Files, Mount};
use weft_rt::sim::{self, Crash, ProcessId};
use weft_rt::sync::{Notify, oneshot};
use weft_rt::{random_u64, sleep, spawn};
use weft_types::SessionId;

/// What a mount is given to do.
type Job = Box<dyn FnOnce(Files) -> Pin<Box<dyn Future<Output = ()>>>>;

/// A host with a process that has mounted the file system, or soon has.
pub struct Station {
    bed: Rc<Bed>,
    file_system: &'static str,
    host: usize,
    /// How long an operation may take.
    patience: Duration,
    /// Writes return before they are durable.
    keeps_back: Cell<bool>,
    process: Cell<Option<ProcessId>>,
    /// Counts the mounts: what was open in one before is open no more.
    life: Cell<u64>,
    session: Cell<Option<SessionId>>,
    jobs: RefCell<VecDeque<Job>>,
    work: Notify,
    is_to_end: Cell<bool>,
    has_ended: Cell<bool>,
}

/// The process has died before it answered.
pub struct Died;

impl Station {
    /// Starts a process on the host of this client.
    pub fn start(bed: &Rc<Bed>, file_system: &'static str, host: usize, patience: Duration) -> Rc<Station> {
        let station = Rc::new(Station {
            bed: bed.clone(),
            file_system,
            host,
            patience,
            keeps_back: Cell::new(true),
            process: Cell::new(None),
            life: Cell::new(0),
            session: Cell::new(None),
            jobs: RefCell::default(),
            work: Notify::default(),
            is_to_end: Cell::new(false),
            has_ended: Cell::new(false),
        });
        station.mount_anew();
        station
    }

    /// From its next mount on each write is durable when it returns.
    pub fn keep_nothing_back(&self) {
        self.keeps_back.set(false);
    }

    /// Which mount it is.
    pub fn life(&self) -> u64 {
        self.life.get()
    }

    /// The host of its process.
    pub fn host(&self) -> std::net::IpAddr {
        client_host(self.host)
    }

    /// The session of the mount; none while it is not mounted.
    pub fn session(&self) -> Option<SessionId> {
        self.session.get()
    }

    /// Kills the process, and starts another one.
    pub fn mount_anew(self: &Rc<Self>) {
        if let Some(process) = self.process.take() {
            sim::kill(process, Crash::Process);
        }
        self.jobs.borrow_mut().clear();
        self.session.set(None);
        self.has_ended.set(false);
        self.life.set(self.life.get() + 1);
        let name = format!("mount-{}-{}", self.host, self.life.get());
        let process = sim::spawn_process(self.host(), &name, self.clone().serve());
        self.process.set(Some(process));
    }

    /// Has the process do something with the mounted file system.
    ///
    /// # Errors
    /// If it dies meanwhile: then it may have happened.
    pub async fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        job: impl FnOnce(Files) -> F + 'static,
    ) -> Result<T, Died> {
        let (done, answer) = oneshot();
        let job: Job = Box::new(move |files| Box::pin(async move { done.send(job(files).await) }));
        self.jobs.borrow_mut().push_back(job);
        self.work.notify_all();
        answer.await.ok_or(Died)
    }

    /// Unmounts in order, and ends the process.
    ///
    /// # Errors
    /// If it dies before.
    pub async fn end(&self) -> Result<(), Died> {
        self.is_to_end.set(true);
        self.work.notify_all();
        while !self.has_ended.get() {
            if self.process.get().is_none_or(|process| !sim::is_alive(process)) {
                return Err(Died);
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// What the process does.
    async fn serve(self: Rc<Self>) {
        let files = self.mount().await;
        loop {
            let work = self.work.notified();
            let job = self.jobs.borrow_mut().pop_front();
            match job {
                Some(job) => drop(spawn(job(files.clone()))),
                None if self.is_to_end.get() => break,
                None => work.await,
            }
        }
        let _ = files.end().await;
        self.session.set(None);
        self.has_ended.set(true);
    }

    async fn mount(&self) -> Files {
        loop {
            let name = format!("files {}", random_u64());
            if let Ok(fabric) = Fabric::connect(&self.bed.managers(), &name).await {
                let (name, patience) = (self.file_system, self.patience);
                if let Ok(mount) = Mount::attach(&fabric, name, AttachMode::Shared, patience).await {
                    self.session.set(Some(mount.session_id()));
                    let files = Files::begin(mount);
                    files.keep_back(if self.keeps_back.get() { None } else { Some(0) });
                    return files;
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

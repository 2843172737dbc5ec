//! The ranks of a suite, as their conductor sees them: processes that it has started here, or that a
//! launcher has started on many machines, and the phases that they carry out together.

use super::interrupt::on_interrupt;
use super::launch::Launched;
use super::meeting::{MEETING_PATIENCE, MeetingPlace};
use super::message::{Hello, Order, PhaseReport, Word, receive, send};
use crate::BenchError;
use crate::process::Process;
use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How long a rank may take to say who it is once it is there.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);

/// How long it is waited for the news of Ctrl-C after a rank has gone: both come at the same time.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(200);

/// Where ranks come from.
#[derive(Clone, Debug)]
pub struct RanksOptions {
    /// This program, of which each rank is a process.
    pub program: PathBuf,
    /// Words by which the program serves as a rank, before its number.
    pub words: Vec<String>,
    /// What a launcher says of this process, if one has started it.
    pub launched: Option<Launched>,
}

/// Processes that a test starts on one machine.
const PROCESSES_ON_ONE: u32 = 1024;

impl RanksOptions {
    /// Why a test cannot run with these numbers of processes, which `option` has named; `None` if it can.
    pub(super) fn what_is_wrong_with(&self, option: &str, processes: &[u32]) -> Option<String> {
        let most = processes.iter().copied().max().unwrap_or(0);
        match self.launched.as_ref().map(|launched| launched.size) {
            _ if most == 0 || processes.contains(&0) => Some("a test needs at least one process".to_owned()),
            Some(size) if most > size => {
                Some(format!("{option} {most} is more than the {size} ranks that were started"))
            }
            None if most > PROCESSES_ON_ONE => {
                Some(format!("{option} {most} is more than {PROCESSES_ON_ONE} processes on one machine"))
            }
            _ => None,
        }
    }
}

/// What happens while ranks work.
enum Event {
    Said(u32, Word),
    Gone(u32, String),
    /// Somebody asks the conductor to end.
    Interrupted,
}

/// How a connection is written to, and cut off.
trait Socket: Write + Send {
    fn cut(&self);
}

impl Socket for UnixStream {
    fn cut(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Socket for TcpStream {
    fn cut(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// Ranks that have come together. Those that were started here end when this is dropped.
pub(crate) struct Ranks {
    sockets: Vec<Box<dyn Socket>>,
    hellos: Vec<Hello>,
    children: Vec<Process>,
    events: Receiver<Event>,
    /// How much each rank has done of a phase.
    progress: Vec<(u64, u64)>,
}

impl Ranks {
    /// Starts this many ranks here, or waits for those that the launcher has started.
    ///
    /// # Errors
    /// If one does not come, or is of another version.
    pub(crate) fn gather(options: &RanksOptions, size: u32, folder: &Path) -> Result<Ranks, BenchError> {
        let (sender, events) = channel();
        let interrupted = sender.clone();
        // A receiver that has gone has its result.
        on_interrupt(move || drop(interrupted.send(Event::Interrupted)))?;
        let mut ranks = Ranks { sockets: vec![], hellos: vec![], children: vec![], events, progress: vec![] };
        // Before ranks are started here: others may be waiting for it.
        let place =
            options.launched.as_ref().map(|launched| MeetingPlace::open(folder, launched)).transpose()?;
        let here = if options.launched.is_some() { 1 } else { size };
        for rank in 0..here {
            ranks.start(options, rank, &sender)?;
        }
        if let (Some(place), Some(launched)) = (&place, &options.launched) {
            ranks.await_others(place, launched.size, &sender)?;
        }
        ranks.progress = vec![(0, 0); ranks.sockets.len()];
        Ok(ranks)
    }

    /// The machines that they are on, by name.
    pub(crate) fn hosts(&self) -> Vec<String> {
        let machines: BTreeSet<(&String, &String)> =
            self.hellos.iter().map(|hello| (&hello.machine, &hello.host)).collect();
        machines.into_iter().map(|(_, host)| host.clone()).collect()
    }

    /// How many ranks a rank has to be away from another one to be on another machine, as far as that is
    /// possible: launchers put ranks on a machine until it is full, or on one machine after the other. One
    /// if all are on one.
    pub(crate) fn ranks_to_next_machine(&self, size: u32) -> u32 {
        let machines: Vec<&str> =
            self.hellos.iter().take(size as usize).map(|hello| hello.machine.as_str()).collect();
        ranks_to_next(&machines)
    }

    /// Has the first ranks carry out a phase, and waits for all of them; `tell` hears how far it has come,
    /// in hundredths.
    ///
    /// # Errors
    /// What the first rank says that fails; [`BenchError::Stopped`] if somebody asks for the end.
    pub(crate) fn phase(
        &mut self,
        count: u32,
        order: impl Fn(u32) -> Order,
        tell: &mut dyn FnMut(u64),
    ) -> Result<Vec<PhaseReport>, BenchError> {
        for rank in 0..count {
            self.send(rank, &order(rank))?;
        }
        self.progress.fill((0, 0));
        let mut reports: Vec<Option<PhaseReport>> = vec![None; count as usize];
        let (mut waiting, mut largest) = (0, 0);
        while reports.iter().any(Option::is_none) {
            let (rank, word) = self.next_word()?;
            match word {
                Word::Barrier(value) => {
                    waiting += 1;
                    largest = largest.max(value);
                }
                Word::Progress(done, of) => {
                    self.progress[rank as usize] = (done, of);
                    tell(hundredths(&self.progress[..count as usize]));
                }
                Word::Done(report) => reports[rank as usize] = Some(report),
                Word::Failed(message, hint) => {
                    return Err(BenchError::Rank { rank, message, hint });
                }
                Word::Hello(_) => return Err(gone(rank, "it said who it is once more")),
            }
            if waiting == count {
                for rank in 0..count {
                    self.send(rank, &Order::Go(largest))?;
                }
                (waiting, largest) = (0, 0);
            }
        }
        Ok(reports.into_iter().flatten().collect())
    }

    /// Seconds from the first begin of a phase to its last end. Clocks of different machines are not
    /// compared: of those the longest time counts.
    pub(crate) fn span_s(&self, reports: &[PhaseReport]) -> f64 {
        let machines: Vec<&str> = self.hellos.iter().map(|hello| hello.machine.as_str()).collect();
        span_s(&machines, reports)
    }

    /// Fails if somebody has asked for the end.
    ///
    /// # Errors
    /// [`BenchError::Stopped`].
    pub(crate) fn pause(&mut self, time: Duration) -> Result<(), BenchError> {
        match self.events.recv_timeout(time) {
            Ok(Event::Interrupted) => Err(BenchError::Stopped),
            Ok(Event::Gone(rank, why)) => Err(self.why_gone(rank, &why)),
            Ok(Event::Said(rank, _)) => Err(gone(rank, "it sent a message that was not asked for")),
            Err(_) => Ok(()),
        }
    }

    fn start(&mut self, options: &RanksOptions, rank: u32, sender: &Sender<Event>) -> Result<(), BenchError> {
        let failed = |source| BenchError::System { action: "connect to a rank", source };
        let (own, other) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new(&options.program);
        command.args(&options.words).arg(rank.to_string());
        command.stdin(Stdio::from(OwnedFd::from(other))).stdout(Stdio::null());
        self.children.push(Process::start(&format!("rank {rank}"), &mut command)?);
        // The command has the other end still.
        drop(command);
        own.set_read_timeout(Some(HELLO_PATIENCE)).map_err(failed)?;
        let mut from = BufReader::new(own.try_clone().map_err(failed)?);
        let hello = introduced(&mut from).map_err(|why| gone(rank, &why))?;
        own.set_read_timeout(None).map_err(failed)?;
        self.add(hello, Box::new(own), from, sender)
    }

    /// Waits for ranks 1 and up.
    fn await_others(
        &mut self,
        place: &MeetingPlace,
        size: u32,
        sender: &Sender<Event>,
    ) -> Result<(), BenchError> {
        let failed = |source| BenchError::System { action: "listen for the other ranks", source };
        place.listener.set_nonblocking(true).map_err(failed)?;
        let began = Instant::now();
        let mut come: Vec<Option<(Hello, TcpStream, BufReader<TcpStream>)>> =
            (1..size).map(|_| None).collect();
        while come.iter().any(Option::is_none) {
            if began.elapsed() > MEETING_PATIENCE {
                let missing = come.iter().filter(|rank| rank.is_none()).count();
                let what = format!(
                    "{missing} of {size} ranks have not come within {} s: can their machines reach this one, \
                     and is the tested folder the same on all?",
                    MEETING_PATIENCE.as_secs()
                );
                return Err(BenchError::Invalid { what });
            }
            let stream = match place.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.pause(Duration::from_millis(5))?;
                    continue;
                }
                Err(error) => return Err(failed(error)),
            };
            if let Some((hello, from)) = welcomed(&stream, &place.key) {
                let free = (hello.rank as usize).checked_sub(1).and_then(|n| come.get_mut(n));
                match free.filter(|seat| seat.is_none()) {
                    Some(seat) => *seat = Some((hello, stream, from)),
                    None => tracing::warn!(rank = hello.rank, "a rank came that is there already"),
                }
            }
        }
        for (hello, stream, from) in come.into_iter().flatten() {
            self.add(hello, Box::new(stream), from, sender)?;
        }
        Ok(())
    }

    /// Takes a rank in, and has a thread listen to it.
    fn add(
        &mut self,
        hello: Hello,
        socket: Box<dyn Socket>,
        mut from: impl BufRead + Send + 'static,
        sender: &Sender<Event>,
    ) -> Result<(), BenchError> {
        let (rank, sender) = (hello.rank, sender.clone());
        if hello.version != env!("CARGO_PKG_VERSION") {
            let why = format!("it is weft {}, expected {}", hello.version, env!("CARGO_PKG_VERSION"));
            return Err(gone(rank, &why));
        }
        let listen = move || {
            loop {
                let event = match receive::<Word>(&mut from) {
                    Ok(Some(word)) => Event::Said(rank, word),
                    Ok(None) => Event::Gone(rank, "it has ended".to_owned()),
                    Err(error) => Event::Gone(rank, error.to_string()),
                };
                let is_last = matches!(event, Event::Gone(..));
                if sender.send(event).is_err() || is_last {
                    return;
                }
            }
        };
        let started = Builder::new().name(format!("bench-rank-{rank}")).spawn(listen);
        started.map_err(|source| BenchError::System { action: "start a thread", source })?;
        self.sockets.push(socket);
        self.hellos.push(hello);
        Ok(())
    }

    fn send(&mut self, rank: u32, order: &Order) -> Result<(), BenchError> {
        let sent = send(&mut self.sockets[rank as usize], order);
        sent.map_err(|error| self.why_gone(rank, &error.to_string()))
    }

    fn next_word(&mut self) -> Result<(u32, Word), BenchError> {
        match self.events.recv() {
            Ok(Event::Said(rank, word)) => Ok((rank, word)),
            Ok(Event::Gone(rank, why)) => Err(self.why_gone(rank, &why)),
            Ok(Event::Interrupted) | Err(_) => Err(BenchError::Stopped),
        }
    }

    /// A rank is gone: by itself, or because the user's request to end has reached it, too.
    fn why_gone(&mut self, rank: u32, why: &str) -> BenchError {
        let until = Instant::now() + SIGNAL_PATIENCE;
        while let Ok(event) = self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            match event {
                Event::Interrupted => return BenchError::Stopped,
                Event::Said(_, Word::Failed(message, hint)) => {
                    return BenchError::Rank { rank, message, hint };
                }
                Event::Said(..) | Event::Gone(..) => {}
            }
        }
        gone(rank, why)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for socket in &mut self.sockets {
            let _ = send(socket, &Order::End);
            // A rank that is in the middle of something ends with the next thing that it wants to say.
            socket.cut();
        }
    }
}

fn gone(rank: u32, why: &str) -> BenchError {
    BenchError::Rank { rank, message: why.to_owned(), hint: None }
}

/// The first word of a rank.
fn introduced(from: &mut dyn BufRead) -> Result<Hello, String> {
    match receive::<Word>(from) {
        Ok(Some(Word::Hello(hello))) => Ok(hello),
        Ok(Some(_)) => Err("it did not say who it is".to_owned()),
        Ok(None) => Err("it ended before it said who it is".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The first message of a new connection; none if it is not of a rank.
fn welcomed(stream: &TcpStream, key: &str) -> Option<(Hello, BufReader<TcpStream>)> {
    stream.set_nonblocking(false).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(HELLO_PATIENCE)).ok()?;
    let mut from = BufReader::new(stream.try_clone().ok()?);
    let hello = introduced(&mut from).ok().filter(|hello| hello.key == key)?;
    stream.set_read_timeout(None).ok()?;
    Some((hello, from))
}

fn hundredths(progress: &[(u64, u64)]) -> u64 {
    let (done, of) = progress.iter().fold((0, 0), |sum, rank| (sum.0 + rank.0, sum.1 + rank.1));
    (done * 100).checked_div(of).unwrap_or(0)
}

/// How far it is to a rank on another machine.
fn ranks_to_next(machines: &[&str]) -> u32 {
    let other = machines.iter().position(|machine| Some(machine) != machines.first());
    other.unwrap_or(1) as u32
}

fn span_s(machines: &[&str], reports: &[PhaseReport]) -> f64 {
    let names: BTreeSet<&&str> = machines.iter().take(reports.len()).collect();
    let spans = names.into_iter().map(|name| {
        let here = || machines.iter().zip(reports).filter(move |(machine, _)| *machine == name);
        let began = here().map(|(_, report)| report.began_ns).min().unwrap_or(0);
        let ended = here().map(|(_, report)| report.ended_ns).max().unwrap_or(0);
        super::rank::seconds(began, ended)
    });
    spans.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(began_s: u64, ended_s: u64) -> PhaseReport {
        let ns = 1_000_000_000;
        PhaseReport { began_ns: began_s * ns, ended_ns: ended_s * ns, ..PhaseReport::default() }
    }

    #[test]
    fn clocks_of_different_machines_are_not_compared() {
        let reports = [report(10, 12), report(11, 14), report(1000, 1003)];
        assert_eq!(span_s(&["a", "a", "b"], &reports), 4.0);
        assert_eq!(span_s(&["a", "a", "b"], &reports[..1]), 2.0);
        assert_eq!(span_s(&["a"], &[]), 0.0);
    }

    #[test]
    fn the_next_machine_is_as_many_ranks_away_as_the_launcher_has_put_on_one() {
        assert_eq!(ranks_to_next(&["a", "a", "a", "b", "b", "b"]), 3);
        assert_eq!(ranks_to_next(&["a", "b", "a", "b"]), 1);
        assert_eq!(ranks_to_next(&["a", "a"]), 1, "on one machine it is the next process");
    }

    #[test]
    fn progress_is_that_of_all_ranks() {
        assert_eq!(hundredths(&[(50, 100), (0, 100)]), 25);
        assert_eq!(hundredths(&[(0, 0)]), 0);
    }
}

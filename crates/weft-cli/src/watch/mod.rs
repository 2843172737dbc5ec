//! `weft watch`: what the fabric does, second by second.
//!
//! It owns the loop: ask, subtract, show. A manager that does not answer is told on the screen and asked again; the
//! counters are the nodes' own, so nothing is lost meanwhile.

mod file;
mod rates;
mod screen;
mod table;

pub use table::{By, SortColumn};

use crate::connection::Connection;
use crate::error::CliError;
use crate::interrupt::unless_interrupted;
use crate::locate::FabricPlace;
use crate::output::{Output, note};
use crate::paint::{Paint, Tone};
use crate::report;
use crate::size::Size;
use crate::span::{span, span_ms};
use file::RecordFile;
use rates::Rates;
use screen::{Screen, Wish};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use table::word;
use weft_api::{
    ApiAnswer, ApiRequest, EventFilter, EventInfo, FabricLoad, FabricStatus, Health, Presence, Timestamp,
};
use weft_rt::{Instant, now, sleep_until, timeout, wall_clock_us};

/// Between two questions at least: below this the questions would be the load.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// And at most: a day.
const INTERVAL_MAX: Duration = Duration::from_secs(86_400);

/// How long a manager may take to answer: it waits a second for each target, and asks them together.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// How often keys are looked for: below what a person notices.
const KEYS_POLL: Duration = Duration::from_millis(50);

/// Show what the fabric does, second by second
///
/// Shows for nodes, drives, volumes or clients how many reads and writes are served and how long they take, and
/// how far resyncs and evacuations have come. On a terminal the screen is redrawn until `q`; otherwise one table
/// is printed for each interval.
///
/// --record keeps what is seen in a file, with the fabric's events: `weft report` makes charts of it, at once with
/// --html. It is written as JSON, a line for each interval, the same that --json prints.
///
/// Keys: n, d, v, c show nodes, drives, volumes, clients; s sorts by the next column; q ends.
///
/// R/s and W/s are reads and writes: requests of clients as the nodes see them: one that crosses objects counts once for each,
/// a write to several copies once; writes of zeroes and discards are writes. A drive and a node count each copy
/// that they write. QUEUE is what is being served at the moment. p50, p99 and p99.9 are times in microseconds
/// between a request's arrival at a node and the answer; they are at most a sixteenth too long. CPU% is that of
/// the node's process, in percent of one core; the network is that of its machine.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  weft watch\n  weft watch --by client --sort write-bytes\n  \
        weft watch --interval 5s --count 12 > minute.txt\n  \
        weft watch --record night.jsonl --html night.html\n  \
        weft watch --json | jq -c '.volumes[] | [.name, .reads_per_s, .read_latency_us.p99]'")]
pub struct WatchArgs {
    /// What the rows are about
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub by: By,
    /// The column to sort by
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t)]
    pub sort: SortColumn,
    /// How often to look, such as 500ms, 1s or 1min
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    pub interval: Duration,
    /// End after so many intervals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Also keep what is seen in this new file, which `weft report` reads
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// At the end make a page with charts of what was recorded
    #[arg(long, value_name = "PAGE", requires = "record")]
    pub html: Option<PathBuf>,
}

pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let form = || "expected a number with a unit such as 500ms, 1s or 1min".to_owned();
    let number: f64 = number.parse().map_err(|_| form())?;
    let seconds = match unit.trim() {
        "ms" => number / 1000.0,
        "s" => number,
        "min" => number * 60.0,
        _ => return Err(form()),
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(interval) if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) => Ok(interval),
        _ => Err("expected 100ms at least, and a day at most".into()),
    }
}

/// An interval, for programs and for records.
#[derive(Serialize)]
struct Interval<'a> {
    #[serde(flatten)]
    rates: &'a Rates,
    health: Health,
    /// Copies that are missing, behind, or on drives that do not answer.
    copies_behind: usize,
    /// What a scrub has read.
    scrubbed_bytes_per_s: u64,
    /// What happened since the last answer.
    events: &'a [EventInfo],
}

/// An interval without an answer, for programs and for records.
#[derive(Serialize)]
struct Silence<'a> {
    time: Timestamp,
    error: &'a str,
}

/// What is known, and how it is shown.
struct Watch {
    place: FabricPlace,
    connection: Option<Connection>,
    by: By,
    sort: SortColumn,
    interval: Duration,
    last: Option<FabricLoad>,
    rates: Option<Rates>,
    status: Option<FabricStatus>,
    scrubbed_bytes_per_s: u64,
    /// What happened since the last answer, and the newest event that is known.
    events: Vec<EventInfo>,
    newest_event: Option<(u64, Timestamp)>,
    record: Option<RecordFile>,
    /// Why there is no newer answer.
    trouble: Option<String>,
}

pub(crate) async fn watch(place: &FabricPlace, args: &WatchArgs, output: Output) -> Result<(), CliError> {
    // A place that cannot be one is told at once; a manager that is away may come back.
    if place.managers()?.is_empty() {
        Connection::open(place).await?;
    }
    if let Some(page) = &args.html {
        report::check_page(page)?;
    }
    let record = args.record.as_deref().map(RecordFile::create).transpose()?;
    let mut watch = Watch {
        place: place.clone(),
        connection: None,
        by: args.by,
        sort: args.sort,
        interval: args.interval,
        last: None,
        rates: None,
        status: None,
        scrubbed_bytes_per_s: 0,
        events: Vec::new(),
        newest_event: None,
        record,
        trouble: None,
    };
    let screen = if output.is_json { None } else { Screen::open() };
    let ended = unless_interrupted(watch.run(args.count, screen.as_ref(), output)).await;
    drop(screen);
    ended.unwrap_or(Ok(()))?;
    if let (Some(record), Some(page)) = (&args.record, &args.html) {
        report::write_page(record, page, None)?;
    }
    Ok(())
}

impl Watch {
    async fn run(
        &mut self,
        count: Option<u64>,
        screen: Option<&Screen>,
        output: Output,
    ) -> Result<(), CliError> {
        let mut next = now();
        let mut shown = 0;
        self.look().await;
        // The first look has nothing to compare with; but that nobody answers is worth telling.
        if screen.is_some() {
            self.draw(screen, output)?;
        } else if let Some(trouble) = &self.trouble {
            note(&format!("warning: {trouble}; trying again"));
        }
        while count.is_none_or(|count| shown < count) {
            next = (next + self.interval).max(now());
            if !self.wait(next, screen, output).await? {
                return Ok(());
            }
            self.look().await;
            self.keep()?;
            let is_shown = match screen {
                Some(_) => self.draw(screen, output).map(|()| true)?,
                None => self.print(output)?,
            };
            shown += u64::from(is_shown);
        }
        Ok(())
    }

    /// Waits until it is time to look again, and follows what a person types; false if that is to end.
    async fn wait(
        &mut self,
        until: Instant,
        screen: Option<&Screen>,
        output: Output,
    ) -> Result<bool, CliError> {
        let Some(terminal) = screen else {
            sleep_until(until).await;
            return Ok(true);
        };
        loop {
            match terminal.wish().map_err(CliError::Output)? {
                Some(Wish::Quit) => return Ok(false),
                Some(Wish::Key(key)) => {
                    match key {
                        'n' => self.by = By::Node,
                        'd' => self.by = By::Drive,
                        'v' => self.by = By::Volume,
                        'c' => self.by = By::Client,
                        's' => self.sort = self.sort.next(),
                        _ => {}
                    }
                    self.draw(screen, output)?;
                }
                Some(Wish::Redraw) => self.draw(screen, output)?,
                None if now() >= until => return Ok(true),
                None => sleep_until(until.min(now() + KEYS_POLL)).await,
            }
        }
    }

    /// Asks, and subtracts what was known. What goes wrong is kept to be shown.
    async fn look(&mut self) {
        // A new connection may be to another manager process, which numbers its events anew.
        let after = self.connection.as_ref().and(self.newest_event).map_or(0, |(seq, _)| seq);
        let asked = timeout(ANSWER_MAX, ask(&self.place, self.connection.take(), after)).await;
        match asked {
            Ok(Ok((connection, load, status, events))) => {
                self.connection = Some(connection);
                self.take_events(events, load.time);
                self.rates = self.last.as_ref().map(|last| Rates::between(last, &load));
                self.last = Some(load);
                self.scrubbed_bytes_per_s = self.status.as_ref().map_or(0, |then| scrubbed(then, &status));
                self.status = Some(status);
                self.trouble = None;
            }
            Ok(Err(error)) => self.trouble = Some(error.chain()),
            Err(_) => self.trouble = Some(format!("the manager does not answer within {}", span(ANSWER_MAX))),
        }
    }

    /// Keeps those events that are news. Of what was before the first answer none is.
    fn take_events(&mut self, mut events: Vec<EventInfo>, time: Timestamp) {
        let known = self.newest_event.unwrap_or((0, time));
        let newest = events.last().map_or(known, |event| (event.seq, event.time.max(known.1)));
        events.retain(|event| event.time > known.1 || (event.time == known.1 && event.seq > known.0));
        self.events = if self.newest_event.is_some() { events } else { Vec::new() };
        self.newest_event = Some(newest);
    }

    /// What a program is told of the interval; nothing after the first answer, and after the first of a silence.
    fn interval(&self) -> Option<Interval<'_>> {
        let (rates, status) = (self.rates.as_ref()?, self.status.as_ref()?);
        let (health, copies_behind) = (status.health, status.degraded_groups.len());
        let scrubbed_bytes_per_s = self.scrubbed_bytes_per_s;
        Some(Interval { rates, health, copies_behind, scrubbed_bytes_per_s, events: &self.events })
    }

    /// Writes the interval to the record, if there is one.
    fn keep(&mut self) -> Result<(), CliError> {
        let Some(mut record) = self.record.take() else { return Ok(()) };
        let kept = match (&self.trouble, self.interval()) {
            (Some(trouble), _) => record.add(&Silence { time: wall_clock(), error: trouble }),
            (None, Some(interval)) => record.add(&interval),
            (None, None) => Ok(()),
        };
        self.record = Some(record);
        kept
    }

    fn draw(&self, screen: Option<&Screen>, output: Output) -> Result<(), CliError> {
        let Some(screen) = screen else { return Ok(()) };
        let paint = output.paint;
        let keys = "n nodes  d drives  v volumes  c clients  s sort  q quit";
        let text = format!("{}\n{}\n", self.text(paint), paint.text(Tone::Faint, keys));
        screen.draw(&text).map_err(CliError::Output)
    }

    /// One interval for a file, a pipe or a program; false if there is nothing to say about it.
    fn print(&self, output: Output) -> Result<bool, CliError> {
        match (&self.trouble, self.interval()) {
            (Some(trouble), _) if output.is_json => {
                output.show_line(&Silence { time: wall_clock(), error: trouble }, |_, _| String::new())?;
            }
            (Some(trouble), _) => {
                note(&format!("warning: {trouble}; trying again"));
            }
            (None, Some(interval)) => {
                output.show_line(&interval, |_, paint| format!("{}\n", self.text(paint)))?;
            }
            // The first answer after a silence: there is nothing to subtract from yet.
            (None, None) => return Ok(false),
        }
        Ok(true)
    }

    fn text(&self, paint: Paint) -> String {
        let mut text = String::new();
        if let Some(trouble) = &self.trouble {
            let what = paint.text(Tone::Bad, "no answer: trying again, what is below is old");
            text.push_str(&format!("{what}\n{trouble}\n"));
        }
        if let (Some(status), Some(load)) = (&self.status, &self.last) {
            text.push_str(&headline(status, load, paint));
            text.push_str(&progress(status));
        }
        let Some(rates) = &self.rates else {
            text.push_str("\nmeasuring\n");
            return text;
        };
        let (by, sort) = (word(&self.by), word(&self.sort));
        let every = span(self.interval);
        text.push_str(&format!(
            "by {by}, sorted by {sort}, every {every}; R reads, W writes, times in us\n\n"
        ));
        text.push_str(&table::render(rates, self.by, self.sort, paint));
        text
    }
}

fn wall_clock() -> Timestamp {
    Timestamp::from_millis(wall_clock_us() / 1000)
}

/// Bytes a second that the scrub which runs has read since an earlier status.
fn scrubbed(then: &FabricStatus, now: &FabricStatus) -> u64 {
    let Some(run) = &now.scrub else { return 0 };
    let same = then.scrub.as_ref().filter(|before| before.started == run.started);
    let bytes = run.bytes_read.saturating_sub(same.map_or(0, |before| before.bytes_read));
    let ms = now.time.as_millis().saturating_sub(then.time.as_millis());
    bytes.saturating_mul(1000) / ms.max(1)
}

/// The counters and the state of the fabric, and its events with a number above `after`, over a connection that is
/// there or a new one.
async fn ask(
    place: &FabricPlace,
    connection: Option<Connection>,
    after: u64,
) -> Result<(Connection, FabricLoad, FabricStatus, Vec<EventInfo>), CliError> {
    let connection = match connection {
        Some(connection) => connection,
        None => Connection::open(place).await?,
    };
    let ApiAnswer::Load(load) = connection.ask(&ApiRequest::Load {}).await? else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    let ApiAnswer::Status(status) = connection.ask(&ApiRequest::Status {}).await? else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    let ApiAnswer::Events { events } =
        connection.ask(&ApiRequest::Events { after, limit: None, filter: EventFilter::default() }).await?
    else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    Ok((connection, *load, *status, events))
}

fn headline(status: &FabricStatus, load: &FabricLoad, paint: Paint) -> String {
    let (health, tone) = match status.health {
        Health::Healthy => ("healthy", Tone::Good),
        Health::Degraded => ("degraded", Tone::Warning),
        Health::Unavailable => ("unavailable", Tone::Bad),
    };
    let up = status.nodes.iter().filter(|n| n.presence == Presence::Up).count();
    let silent = match load.silent.as_slice() {
        [] => String::new(),
        names => format!(", no counters of {}", names.join(", ")),
    };
    format!(
        "{}  fabric {} is {}, {up} of {} nodes up{silent}\n",
        load.time,
        status.fabric.short(),
        paint.text(tone, health),
        status.nodes.len()
    )
}

/// How far resyncs and evacuations have come, a line for each that goes on.
fn progress(status: &FabricStatus) -> String {
    let mut text = String::new();
    let behind = status.degraded_groups.len();
    let running = status.resyncs.iter().filter(|r| !r.done);
    let (count, copied) = running.fold((0, 0), |(n, bytes), r| (n + 1, bytes + r.bytes_copied));
    if behind > 0 || count > 0 {
        let eta = status.resync_eta_ms.map_or_else(String::new, |ms| format!(", about {} left", span_ms(ms)));
        text.push_str(&format!(
            "repair: {behind} copies missing or behind, {count} being brought up to date, {} copied{eta}\n",
            Size(copied)
        ));
    }
    for drive in &status.emptying {
        text.push_str(&format!(
            "emptying {} on {}: {} copies left, {} on their way, {} copied of these\n",
            drive.drive.short(),
            drive.node,
            drive.copies_left,
            drive.copies_passing,
            Size(drive.bytes_copied)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_read() {
        for (text, ms) in [("1s", 1_000), ("500ms", 500), ("0.1s", 100), ("2min", 120_000), ("1.5 s", 1_500)]
        {
            assert_eq!(parse_interval(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "1", "s", "-1s", "99ms", "0s", "1e9s", "1h", "2000min", "inf s"] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
    }
}

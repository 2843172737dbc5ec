//! Lines of a log as JSON: one flat object each, for programs that collect and search.
//!
//! It owns the shape, which docs/logs.md documents: `time`, `level`, `daemon`, `node`, `module`, `message`, then the
//! fields of the event by their names.

use super::Daemon;
use serde::Serializer;
use serde_json::{Map, Value};
use std::fmt;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Writes events as JSON, one on each line.
pub(super) struct JsonLines {
    kind: &'static str,
    node: Option<String>,
}

impl JsonLines {
    pub(super) fn new(daemon: Daemon<'_>) -> JsonLines {
        JsonLines { kind: daemon.kind, node: daemon.node.map(str::to_owned) }
    }

    /// The names and values of an event's object, in the order in which people read them.
    fn object(&self, time: String, event: &Event<'_>) -> Vec<(String, Value)> {
        let meta = event.metadata();
        let mut object: Vec<(String, Value)> = Vec::new();
        object.push(("time".into(), time.into()));
        object.push(("level".into(), meta.level().as_str().to_ascii_lowercase().into()));
        object.push(("daemon".into(), self.kind.into()));
        if let Some(node) = &self.node {
            object.push(("node".into(), node.as_str().into()));
        }
        object.push(("module".into(), meta.target().into()));
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        if let Some(message) = fields.0.remove("message") {
            object.push(("message".into(), message));
        }
        let fixed = object.clone();
        for (name, value) in fields.0 {
            let taken = fixed.iter().find(|(known, _)| *known == name);
            if taken.is_some_and(|(_, known)| *known == value) {
                continue;
            }
            // An event's own field may have the name of one that every line has: neither is lost.
            let name = if taken.is_some() { format!("event_{name}") } else { name };
            object.push((name, value));
        }
        object
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut line = serde_json::Serializer::new(Vec::new());
        line.collect_map(self.object(time, event)).map_err(|_| fmt::Error)?;
        let line = String::from_utf8(line.into_inner()).map_err(|_| fmt::Error)?;
        writeln!(writer, "{line}")
    }
}

/// An event's fields, by name.
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.0.insert(field.name().into(), weft_types::with_causes(value).into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::filter::LevelFilter;
    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Memory {
        type Writer = Memory;
        fn make_writer(&'a self) -> Memory {
            self.clone()
        }
    }

    #[test]
    fn a_line_is_one_flat_object_with_what_every_line_has() {
        let memory = Memory::default();
        let daemon = Daemon { kind: "node", node: Some("node-1"), default: LevelFilter::INFO };
        let subscriber = tracing_subscriber::fmt()
            .with_writer(memory.clone())
            .event_format(JsonLines::new(daemon))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let (group, none) = (7, None::<u64>);
            tracing::warn!(%group, took_ms = 12u64, node = "node-2", none, "a \"quoted\"\nword");
        });
        let bytes = memory.0.lock().expect("not poisoned").clone();
        let text = String::from_utf8(bytes).expect("text");
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(
            text.starts_with("{\"time\":\"2") && text.contains("Z\",\"level\":\"warn\",\"daemon\":"),
            "{text}"
        );
        let line: Value = serde_json::from_str(&text).expect("JSON");
        let expected = serde_json::json!({
            "time": line["time"], "level": "warn", "daemon": "node", "node": "node-1",
            "module": module_path!(), "message": "a \"quoted\"\nword", "group": "7", "took_ms": 12,
            "event_node": "node-2",
        });
        assert_eq!(line, expected);
        assert!(line["time"].as_str().is_some_and(|t| t.ends_with('Z') && t.contains('T')), "{text}");
    }
}

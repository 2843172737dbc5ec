//! Targets of what people and files give the command line: values of options, documents, records of a watch.

use weft_api::Timestamp;
use weft_cli::fuzzing;
use weft_rt::Addr;
use weft_types::{DriveId, FabricId, GroupId, VolumeId};

/// A value of an option, an identifier, a time or an address: what is read is written so that it is read again.
pub(crate) fn value(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    fuzzing::value(text);
    if let Ok(id) = text.parse::<DriveId>() {
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!(text.to_ascii_lowercase().starts_with(&id.short()));
    }
    if let Ok(id) = text.parse::<FabricId>() {
        assert_eq!(FabricId::from_bytes(id.to_bytes()), id);
    }
    let _ = (serde_json::from_str::<GroupId>(text), serde_json::from_str::<VolumeId>(text));
    if let Ok(time) = text.parse::<Timestamp>() {
        assert_eq!(time.to_string(), text);
        assert_eq!(Timestamp::from_millis(time.as_millis()), time);
    }
    if let Ok(addr) = text.parse::<Addr>() {
        assert_eq!(addr.to_string().parse(), Ok(addr));
    }
}

pub(crate) fn value_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "64KiB",
        "1.5TiB",
        "15EiB",
        "512B",
        "10GB",
        "500ms",
        "30 s",
        "7d",
        "1.5min",
        "80%",
        "12:3456:boot",
        "127.0.0.1:4800",
        "[::1]:4800",
        "unix:/run/weft.sock",
        "2026-01-31",
        "2026-01-31T23:59:59Z",
        "2026-01-31T23:59:59.000Z",
        "0000000a-0000-4000-8000-00000000000b",
        "\"g7\"",
        "1 (na)me) S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 12345 1 1",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// The document of a local fabric.
pub(crate) fn local_config(bytes: &[u8]) {
    fuzzing::local_config(bytes);
}

pub(crate) fn local_config_seeds() -> Vec<Vec<u8>> {
    let config = weft_cli::LocalConfig {
        schema: 1,
        fabric: FabricId::from_random(7),
        manager_addr: "127.0.0.1:4800".into(),
        drive_bytes: 1 << 30,
        sparse: true,
        is_formatted: true,
        threads: 1,
        parts: 1,
        nodes: vec![weft_cli::LocalNode { name: "node-1".into(), addr: "127.0.0.1:4801".into(), drives: 2 }],
    };
    vec![serde_json::to_vec(&config).expect("a document serialises")]
}

/// A record of `weft watch`.
pub(crate) fn watch_record(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        fuzzing::record(text);
    }
}

pub(crate) fn watch_record_seeds() -> Vec<Vec<u8>> {
    let row = |name: &str| {
        format!(
            "{{\"name\":\"{name}\",\"reads_per_s\":3.5,\"writes_per_s\":1000.0,\"zeroes_per_s\":0.0,\"read_bytes\":4096,\
             \"written_bytes\":4096000,\"read_bytes_per_s\":4096,\"written_bytes_per_s\":4096000,\"errors\":0,\
             \"read_latency_us\":{{\"p50\":10,\"p99\":20,\"p99.9\":30}},\"write_latency_us\":{{\"p50\":100,\"p99\":200,\
             \"p99.9\":null}}}}"
        )
    };
    let event = "{\"seq\":1,\"time\":\"2026-01-31T10:00:01.500Z\",\"clock_back_ms\":null,\"map\":4,\"who\":\"manager\",\
                 \"what\":\"note\",\"why\":\"a note\",\"volumes\":[],\"nodes\":[],\"drives\":[]}";
    let line = |second: u32, events: &str, behind: u32| {
        format!(
            "{{\"schema_version\":1,\"time\":\"2026-01-31T10:00:{second:02}.000Z\",\
             \"fabric\":\"00000000-0000-4000-8000-000000000001\",\"interval_ms\":1000,\"total\":{},\"volumes\":[{},{}],\
             \"drives\":[{{\"written_bytes_per_s\":100,\"stored_bytes_per_s\":250}}],\"health\":\"degraded\",\
             \"copies_behind\":{behind},\"scrubbed_bytes_per_s\":5,\"events\":[{events}]}}\n",
            row("total"),
            row("a"),
            row("b")
        )
    };
    let silence = "{\"schema_version\":1,\"time\":\"2026-01-31T10:00:04.000Z\",\"error\":\"gone\"}\n";
    vec![
        line(1, "", 0).into_bytes(),
        [line(1, "", 2), line(2, event, 0), silence.to_owned(), line(20, "", 0)].concat().into_bytes(),
    ]
}

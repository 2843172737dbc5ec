//! The HTTP server of the metrics: `GET /metrics`, and nothing else.
//!
//! It owns the bounds: few connections, small requests, little time; each connection carries one request. Requests
//! are parsed by `httparse`. It runs on the daemon's own executor, so it needs no thread and no lock, and a page costs
//! the data path nothing but the moment in which it is made.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::{Buf, BufMut, Listener, Stream, sleep, spawn, timeout};
use weft_types::limits::{METRICS_CONNECTIONS_MAX, METRICS_HEADERS_MAX, METRICS_REQUEST_BYTES_MAX};

/// What the pages are (OpenMetrics 1.0, section 4.2).
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long a request and its answer may take: the time-out of a scrape is 10 s where nothing else is said.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// How long to wait after a connection could not be accepted: the process may have run out of files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Serves the page that `page` makes anew for each request, for ever.
pub async fn serve<F, P>(listener: Listener, page: F)
where
    F: Fn() -> P + 'static,
    P: Future<Output = String> + 'static,
{
    let (page, open) = (Rc::new(page), Rc::new(Cell::new(0)));
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for metrics");
                sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        if open.get() >= METRICS_CONNECTIONS_MAX {
            stream.shutdown();
            continue;
        }
        open.set(open.get() + 1);
        let (page, open) = (page.clone(), open.clone());
        spawn(async move {
            // Whoever is too slow, or has gone, gets no answer.
            let _ = timeout(ANSWER_MAX, answer(&stream, &*page)).await;
            stream.shutdown();
            open.set(open.get() - 1);
        });
    }
}

async fn answer<F, P>(stream: &Stream, page: &F)
where
    F: Fn() -> P,
    P: Future<Output = String>,
{
    let Some(asked) = read_request(stream).await else { return };
    let (status, kind, body) = match &asked {
        Asked::Page { .. } => ("200 OK", CONTENT_TYPE, page().await),
        Asked::Other(status) => (*status, "text/plain; charset=utf-8", format!("{status}: GET /metrics\n")),
    };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    let mut parts = vec![Buf::from(head.into_bytes())];
    if !matches!(asked, Asked::Page { is_head: true }) {
        parts.push(Buf::from(body.into_bytes()));
    }
    if let Err(error) = stream.write(parts).await {
        tracing::debug!(%error, "an answer with metrics was not taken");
    }
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// The metrics, or only the head of the answer.
    Page { is_head: bool },
    /// Something that is answered with this status.
    Other(&'static str),
}

/// Reads one request; none if the peer has gone.
async fn read_request(stream: &Stream) -> Option<Asked> {
    let (mut buf, mut length) = (BufMut::zeroed(METRICS_REQUEST_BYTES_MAX), 0);
    loop {
        let (read, back) = stream.read(buf, length).await;
        buf = back;
        match read {
            Ok(0) | Err(_) => return None,
            Ok(count) => length += count,
        }
        if let Some(asked) = parse(&buf[..length]) {
            return Some(asked);
        }
        if length == buf.len() {
            return Some(Asked::Other("431 Request Header Fields Too Large"));
        }
    }
}

/// What these bytes ask for; none if the request has not ended.
fn parse(bytes: &[u8]) -> Option<Asked> {
    let mut headers = [httparse::EMPTY_HEADER; METRICS_HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => return None,
        Err(httparse::Error::TooManyHeaders) => {
            return Some(Asked::Other("431 Request Header Fields Too Large"));
        }
        Err(_) => return Some(Asked::Other("400 Bad Request")),
        Ok(httparse::Status::Complete(_)) => {}
    }
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    Some(match (request.method, path) {
        (Some(method @ ("GET" | "HEAD")), "/metrics") => Asked::Page { is_head: method == "HEAD" },
        (Some("GET" | "HEAD"), _) => Asked::Other("404 Not Found"),
        _ => Asked::Other("405 Method Not Allowed"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_page_is_served() {
        let whole = Some(Asked::Page { is_head: false });
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), whole);
        assert_eq!(parse(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n"), whole);
        assert_eq!(parse(b"HEAD /metrics HTTP/1.1\r\n\r\n"), Some(Asked::Page { is_head: true }));
        assert_eq!(parse(b"GET / HTTP/1.1\r\n\r\n"), Some(Asked::Other("404 Not Found")));
        assert_eq!(parse(b"POST /metrics HTTP/1.1\r\n\r\n"), Some(Asked::Other("405 Method Not Allowed")));
        assert_eq!(parse(b"\x16\x03\x01 hello\r\n\r\n"), Some(Asked::Other("400 Bad Request")));
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost"), None);
    }
}

//! Fetching a member's page of metrics over HTTP: one request, one bounded answer.

use std::time::Duration;
use weft_rt::{Addr, Buf, BufMut, Stream, timeout};

/// How long a member may take: as long as a scrape of Prometheus may.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of an answer: a page of a node with thousands of volumes has some ten MiB.
const ANSWER_MAX: usize = 32 << 20;

/// Fetches the page.
///
/// # Errors
/// Why there is none, for people.
pub(super) async fn scrape(addr: &Addr) -> Result<Vec<u8>, String> {
    match timeout(PATIENCE, fetch(addr)).await {
        Ok(page) => page,
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

async fn fetch(addr: &Addr) -> Result<Vec<u8>, String> {
    let stream = Stream::connect(addr).await.map_err(|e| format!("cannot connect: {e}"))?;
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {addr}\r\n\r\n");
    let failed = |e: std::io::Error| format!("the connection broke: {e}");
    stream.write(vec![Buf::from(request.into_bytes())]).await.map_err(failed)?;
    let (mut answer, mut buf) = (Vec::new(), BufMut::zeroed(64 << 10));
    loop {
        let (read, back) = stream.read(buf, 0).await;
        buf = back;
        match read.map_err(failed)? {
            0 => break,
            count => answer.extend_from_slice(&buf[..count]),
        }
        if answer.len() > ANSWER_MAX {
            return Err(format!("the answer passes {ANSWER_MAX} bytes"));
        }
    }
    page(&answer)
}

/// The body of an answer with status 200.
fn page(answer: &[u8]) -> Result<Vec<u8>, String> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(answer) {
        Ok(httparse::Status::Complete(head)) => match response.code {
            Some(200) => Ok(answer[head..].to_vec()),
            code => Err(format!("the answer has status {}", code.unwrap_or(0))),
        },
        _ => Err("the answer is not HTTP".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_page_is_taken() {
        assert_eq!(page(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\npage\n"), Ok(b"page\n".to_vec()));
        assert_eq!(page(b"HTTP/1.1 404 Not Found\r\n\r\n"), Err("the answer has status 404".into()));
        assert_eq!(page(b"WEFT\x00"), Err("the answer is not HTTP".into()));
        assert_eq!(page(b"HTTP/1.1 200 OK\r\nA"), Err("the answer is not HTTP".into()));
    }
}

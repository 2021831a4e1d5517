//! As much of HTTP/1.1 as a page that is only read needs: one GET or HEAD per connection, with limits on everything.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The request's head may be so long, and must be here within this time.
const MOST_BYTES: usize = 8192;
const MOST_HEADERS: usize = 64;
const READ: Duration = Duration::from_secs(5);
/// The answer must be taken within this time.
const WRITE: Duration = Duration::from_secs(10);

/// What a client wants.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) target: String,
    pub(super) head_only: bool,
    headers: Vec<(String, String)>,
}

impl Asked {
    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// What it gets.
#[derive(Debug)]
pub(super) struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Answer {
    pub(super) fn new(kind: &'static str, body: String) -> Answer {
        Answer { status: "200 OK", kind, body }
    }
}

/// Why it gets nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Malformed,
    Forbidden(&'static str),
    NotFound,
    Method,
    Late,
    TooLong,
}

impl Refusal {
    pub(super) fn answer(self) -> Answer {
        let (status, why) = match self {
            Refusal::Malformed => ("400 Bad Request", "This is no request that can be answered here."),
            Refusal::Forbidden(why) => ("403 Forbidden", why),
            Refusal::NotFound => ("404 Not Found", "There is no such page. Try: /"),
            Refusal::Method => ("405 Method Not Allowed", "This page is only read: GET and HEAD."),
            Refusal::Late => ("408 Request Timeout", "The request did not come in time."),
            Refusal::TooLong => ("431 Request Header Fields Too Large", "The request is too long."),
        };
        Answer { status, kind: "text/plain; charset=utf-8", body: format!("{why}\n") }
    }
}

/// Reads the head of a request.
pub(super) fn read(stream: &mut TcpStream) -> Result<Asked, Refusal> {
    let deadline = Instant::now() + READ;
    let mut bytes = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes) {
            Ok(httparse::Status::Complete(_)) => return understand(&request),
            Ok(httparse::Status::Partial) if bytes.len() >= MOST_BYTES => return Err(Refusal::TooLong),
            Ok(httparse::Status::Partial) => {}
            Err(httparse::Error::TooManyHeaders) => return Err(Refusal::TooLong),
            Err(_) => return Err(Refusal::Malformed),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Refusal::Late);
        }
        let mut chunk = [0; 2048];
        let read = stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut chunk));
        match read {
            Ok(0) => return Err(Refusal::Malformed),
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(Refusal::Late);
            }
            Err(_) => return Err(Refusal::Malformed),
        }
    }
}

fn understand(request: &httparse::Request<'_, '_>) -> Result<Asked, Refusal> {
    let method = request.method.unwrap_or_default();
    if !matches!(method, "GET" | "HEAD") {
        return Err(Refusal::Method);
    }
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Refusal::Malformed);
    let header = |h: &httparse::Header<'_>| Ok((h.name.to_owned(), text(h.value)?));
    let headers = request.headers.iter().map(header).collect::<Result<_, _>>()?;
    let asked = Asked { target: request.path.unwrap_or_default().to_owned(), head_only: method == "HEAD", headers };
    // What follows the head would be taken for the next request somewhere on the way.
    let has_body = asked.all("Transfer-Encoding").next().is_some() || asked.all("Content-Length").any(|n| n != "0");
    if has_body { Err(Refusal::Malformed) } else { Ok(asked) }
}

/// Is this meant for us, and does it come from our own page, or from no page at all?
pub(super) fn check_origin(asked: &Asked, address: SocketAddr) -> Result<(), Refusal> {
    let own = [address.to_string(), format!("localhost:{}", address.port())];
    let mut hosts = asked.all("Host");
    let host = hosts.next().unwrap_or_default();
    if hosts.next().is_some() || !own.iter().any(|o| o == host) {
        return Err(Refusal::Forbidden(
            "The Host of the request is not the address of this page: open it by its number.",
        ));
    }
    let foreign = |site: &str| !matches!(site, "same-origin" | "none");
    let elsewhere = asked.all("Origin").any(|origin| !own.iter().any(|o| origin == format!("http://{o}")));
    if elsewhere
        || asked.all("Sec-Fetch-Site").any(foreign) && asked.all("Sec-Fetch-Mode").all(|mode| mode != "navigate")
    {
        return Err(Refusal::Forbidden("The request comes from a page of another site."));
    }
    Ok(())
}

/// Sends an answer; the connection ends after it.
pub(super) fn write(stream: &mut TcpStream, answer: &Answer, head_only: bool) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE))?;
    let allow = if answer.status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
         Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\nX-Frame-Options: DENY\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\n{allow}\r\n",
        answer.status,
        answer.kind,
        answer.body.len()
    );
    stream.write_all(head.as_bytes())?;
    if !head_only {
        stream.write_all(answer.body.as_bytes())?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // What the client sent beyond its head would otherwise have the kernel throw our answer away.
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    let mut rest = [0; 4096];
    let mut most = 16;
    while most > 0 && matches!(stream.read(&mut rest), Ok(n) if n > 0) {
        most -= 1;
    }
    Ok(())
}

/// `%2F` to `/`. What is not UTF-8 then names nothing.
pub(super) fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let hex = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (bytes[at], hex) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_default()
}

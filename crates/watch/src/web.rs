//! `urbd web`: one page that only looks, on a loopback address.
//!
//! Who can reach it: every user of this machine, and every page that a browser on this machine shows. So it has
//! nothing that changes anything and no secret; requests are refused whose `Host` is not this address (a page elsewhere
//! may have its name point here), or that a browser says come from another site.

mod history;
mod http;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::look::Looker;
use history::History;
use http::{Answer, Asked, Refusal};

/// Where it listens unless told otherwise.
pub const DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7780);

/// Distance of looks.
const LOOK: Duration = Duration::from_secs(1);
/// Nobody may be served beyond so many at the same time.
const MOST: usize = 32;

const PAGE: &str = include_str!("web/page.html");
const STYLE: &str = include_str!("web/page.css");
const SCRIPT: &str = include_str!("web/page.js");

/// The address in a text: `[ADDRESS:]PORT`, `localhost[:PORT]`, `ADDRESS`.
///
/// # Errors
/// It is none, or not a loopback address.
pub fn parse(text: &str) -> Result<SocketAddr, String> {
    let replaced = text.replace("localhost", "127.0.0.1");
    let port = || replaced.parse::<u16>().map(|port| SocketAddr::new(DEFAULT.ip(), port));
    let host = || replaced.trim_matches(['[', ']']).parse::<IpAddr>().map(|ip| SocketAddr::new(ip, DEFAULT.port()));
    let parsed = replaced.parse::<SocketAddr>().ok().or_else(|| port().ok()).or_else(|| host().ok());
    let address = parsed.ok_or_else(|| format!("{text}: must be a port, or an address with or without a port"))?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "{text}: is not a loopback address (127.0.0.1, ::1): the page has no passwords, and whoever reaches it sees it"
        ));
    }
    Ok(address)
}

/// A server that is ready: it listens, and has looked once.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    state: Arc<State>,
    looker: Looker,
}

#[derive(Debug)]
struct State {
    address: SocketAddr,
    host: String,
    history: Mutex<History>,
    serving: AtomicUsize,
}

impl Server {
    /// Listens on `address`. `host` is this node's name.
    ///
    /// # Errors
    /// When the kernel does not let us.
    pub fn new(address: SocketAddr, host: &str, mut looker: Looker) -> io::Result<Server> {
        if !address.ip().is_loopback() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a loopback address"));
        }
        let listener = TcpListener::bind(address)?;
        let mut history = History::default();
        history.look(looker.look(), Instant::now());
        let state = State {
            address: listener.local_addr()?,
            host: host.to_owned(),
            history: Mutex::new(history),
            serving: AtomicUsize::new(0),
        };
        Ok(Server { listener, state: Arc::new(state), looker })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.state.address
    }

    /// Serves for ever.
    ///
    /// # Errors
    /// When the listener fails.
    pub fn run(mut self) -> io::Result<()> {
        let state = Arc::clone(&self.state);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(LOOK);
                let seen = self.looker.look();
                lock(&state.history).look(seen, Instant::now());
            }
        });
        for stream in self.listener.incoming() {
            let Ok(stream) = stream else { continue };
            let state = Arc::clone(&self.state);
            if state.serving.fetch_add(1, Ordering::Relaxed) >= MOST {
                state.serving.fetch_sub(1, Ordering::Relaxed);
                // It is closed: whoever asks too much at once is not even told so.
                continue;
            }
            std::thread::spawn(move || {
                serve(&state, stream);
                state.serving.fetch_sub(1, Ordering::Relaxed);
            });
        }
        Ok(())
    }
}

fn lock(history: &Mutex<History>) -> std::sync::MutexGuard<'_, History> {
    history.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// One request, one answer.
fn serve(state: &State, mut stream: TcpStream) {
    let answer =
        http::read(&mut stream).and_then(|asked| respond(state, &asked).map(|answer| (asked.head_only, answer)));
    // Who does not take the answer in time gets no more of it.
    let _ = match answer {
        Ok((head_only, answer)) => http::write(&mut stream, &answer, head_only),
        Err(refusal) => http::write(&mut stream, &refusal.answer(), false),
    };
}

fn respond(state: &State, asked: &Asked) -> Result<Answer, Refusal> {
    http::check_origin(asked, state.address)?;
    let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
    Ok(match path {
        "/" => Answer::new("text/html; charset=utf-8", PAGE.to_owned()),
        "/page.css" => Answer::new("text/css; charset=utf-8", STYLE.to_owned()),
        "/page.js" => Answer::new("text/javascript; charset=utf-8", SCRIPT.to_owned()),
        "/status" => Answer::new("application/json", lock(&state.history).status(&state.host).to_string()),
        "/history" => {
            let name = query.strip_prefix("resource=").unwrap_or_default();
            let history = lock(&state.history).points(&http::decoded(name)).ok_or(Refusal::NotFound)?;
            Answer::new("application/json", history.to_string())
        }
        "/metrics" => {
            let history = lock(&state.history);
            let page =
                control::metrics::running(&history.running()) + &control::metrics::text(&history.statuses(), false);
            Answer::new("text/plain; version=0.0.4; charset=utf-8", page)
        }
        _ => return Err(Refusal::NotFound),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn only_loopback_addresses_are_taken() {
        for (text, expected) in [
            ("8000", "127.0.0.1:8000"),
            ("localhost:8000", "127.0.0.1:8000"),
            ("127.0.0.1", "127.0.0.1:7780"),
            ("127.0.0.2:1", "127.0.0.2:1"),
            ("::1", "[::1]:7780"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), expected);
        }
        for text in ["0.0.0.0:80", "10.1.1.1", "[::]:80", "192.168.1.1:7780", "::ffff:10.1.1.1"] {
            assert!(parse(text).unwrap_err().contains("not a loopback address"), "{text}");
        }
        assert!(parse("here").unwrap_err().contains("must be a port"));
        let looker = Looker::new(std::path::Path::new("/nonexistent"), Vec::new());
        assert!(Server::new("0.0.0.0:0".parse().unwrap(), "a", looker).is_err());
    }

    /// A server on a free port, and what it answers to raw bytes.
    fn server() -> impl Fn(&str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let looker = Looker::new(dir.path(), Vec::new());
        let server = Server::new("127.0.0.1:0".parse().unwrap(), "alpha", looker).unwrap();
        let address = server.address();
        std::thread::spawn(move || server.run());
        move |request: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let request = request.replace("HERE", &address.to_string()).replace("PORT", &address.port().to_string());
            let _ = stream.write_all(request.as_bytes());
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            String::from_utf8_lossy(&answer).into_owned()
        }
    }

    fn status_of(answer: &str) -> &str {
        answer.split(' ').nth(1).unwrap_or(answer)
    }

    #[test]
    fn serves_its_page_and_nothing_else() {
        let ask = server();
        for (path, kind) in [
            ("/", "text/html"),
            ("/page.css", "text/css"),
            ("/page.js", "text/javascript"),
            ("/status", "application/json"),
            ("/metrics", "text/plain"),
        ] {
            let answer = ask(&format!("GET {path} HTTP/1.1\r\nHost: HERE\r\n\r\n"));
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(status_of(head) == "200" && head.contains(kind), "{path}: {head}");
            for header in ["Content-Security-Policy: default-src 'none'", "X-Frame-Options: DENY", "nosniff"] {
                assert!(head.contains(header), "{header}: {head}");
            }
            assert!(head.contains(&format!("Content-Length: {}", body.len())) && !body.contains("://"), "{path}");
            let short = ask(&format!("HEAD {path} HTTP/1.1\r\nHost: localhost:PORT\r\n\r\n"));
            assert!(status_of(&short) == "200" && short.ends_with("\r\n\r\n"), "{short}");
        }
        for path in ["/nothing", "/../etc/passwd", "/history?resource=%2e%2e%2f", "/status/"] {
            assert_eq!(status_of(&ask(&format!("GET {path} HTTP/1.1\r\nHost: HERE\r\n\r\n"))), "404", "{path}");
        }
    }

    #[test]
    fn hostile_requests_are_refused() {
        let ask = server();
        let get = |headers: &str| ask(&format!("GET /status HTTP/1.1\r\n{headers}\r\n"));
        // A name of somebody else's that points here; another port; none at all; two of them.
        for host in
            ["evil.example", "evil.example:PORT", "127.0.0.1:1", "10.0.0.1:PORT", "127.0.0.1.evil.example:PORT", ""]
        {
            let answer = get(&format!("Host: {host}\r\n"));
            assert!(status_of(&answer) == "403" && answer.contains("Host"), "{host}: {answer}");
        }
        assert_eq!(status_of(&get("")), "403");
        assert_eq!(status_of(&get("Host: HERE\r\nHost: evil.example\r\n")), "403");
        assert_eq!(status_of(&get("Host: HERE\r\nSec-Fetch-Site: cross-site\r\n")), "403");
        assert_eq!(status_of(&get("Host: HERE\r\nOrigin: null\r\n")), "403");
        assert_eq!(status_of(&get("Host: HERE\r\nSec-Fetch-Site: same-origin\r\nOrigin: http://HERE\r\n")), "200");
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT"] {
            let answer = ask(&format!("{method} /status HTTP/1.1\r\nHost: HERE\r\nContent-Length: 2\r\n\r\nhi"));
            assert!(status_of(&answer) == "405" && answer.contains("Allow: GET, HEAD"), "{answer}");
        }
        for body in ["Content-Length: 5", "Transfer-Encoding: chunked", "Content-Length: 99999999999999999999"] {
            assert_eq!(status_of(&get(&format!("Host: HERE\r\n{body}\r\n"))), "400", "{body}");
        }
        assert_eq!(status_of(&ask("nonsense\r\n\r\n")), "400");
        assert_eq!(status_of(&ask("GET / HTTP/9.9\r\n\r\n")), "400");
        assert_eq!(status_of(&get(&format!("Host: HERE\r\nX: {}\r\n", "x".repeat(20_000)))), "431");
        assert_eq!(status_of(&get(&format!("Host: HERE\r\n{}", "A: b\r\n".repeat(200)))), "431");
        assert_eq!(status_of(&ask("GET / HTTP/1.1\r\nHost: HERE\r\n")), "408", "nothing more comes");
    }
}

//! What `setup` asks on a terminal.

use std::io::{self, Write};
use std::net::IpAddr;

use super::{Host, disk};
use crate::problem::Problem;

/// The words that a call with everything would have had.
pub(super) fn words(node: &str, addresses: &[IpAddr], keep_data: bool) -> Result<Vec<String>, Problem> {
    let host = |name: &str, address: &str, disk: &str| Host::parse(&format!("{name}={address}:{disk}"));
    println!("This writes the configuration of one mirrored device. Nothing is changed before the last answer.");
    let name = ask("Name of the resource", "r0")?;
    let hosts = ask_until("Hosts: 2, or 3 for one more copy", "2", |answer| match answer {
        "2" | "3" => Ok(()),
        other => Err(Problem::usage(format!("'{other}': two or three"))),
    })?;
    let hosts = if hosts == "3" { 3 } else { 2 };
    let mut words = vec![name];
    let own = addresses.iter().find(|address| !address.is_loopback() && address.is_ipv4());
    for n in 0..hosts {
        let (of, name, address) = match n {
            0 => ("this host".to_owned(), node.to_owned(), own.map(ToString::to_string).unwrap_or_default()),
            _ => (format!("host {}", n + 1), String::new(), String::new()),
        };
        let question = format!("Name of {of} (uname -n there)");
        let name = ask_until(&question, &name, |name| host(name, "127.0.0.1", "/disk").map(drop))?;
        let question = format!("Its address, over which data goes, [PORT may follow]: {name}");
        let address = ask_until(&question, &address, |address| host(&name, &bracketed(address), "/disk").map(drop))?;
        let address = bracketed(&address);
        let disk = ask_until("Its disk, all of which is used", "", |path| {
            let host = host(&name, &address, path)?;
            // What another host has is not seen from here.
            host.disk.filter(|_| n == 0).map_or(Ok(()), |path| disk::check(&path, keep_data))
        })?;
        words.push(format!("{name}={address}:{disk}"));
    }
    Ok(words)
}

/// An IPv6 address as it stands before a colon.
fn bracketed(address: &str) -> String {
    if address.contains("::") && !address.starts_with('[') { format!("[{address}]") } else { address.to_owned() }
}

/// Asks again, after saying why, until `check` takes the answer.
fn ask_until(question: &str, default: &str, check: impl Fn(&str) -> Result<(), Problem>) -> Result<String, Problem> {
    loop {
        let answer = ask(question, default)?;
        match check(&answer) {
            Ok(()) => return Ok(answer),
            Err(problem) => problem.report(),
        }
    }
}

/// One line; an empty one is the default.
fn ask(question: &str, default: &str) -> Result<String, Problem> {
    let shown = if default.is_empty() { String::new() } else { format!(" [{default}]") };
    print!("{question}{shown}: ");
    let mut line = String::new();
    let read = io::stdout().flush().and_then(|()| io::stdin().read_line(&mut line));
    match (read, line.trim()) {
        (Ok(0) | Err(_), _) => Err(Problem::usage("no answer: nothing was written")),
        (Ok(_), "") if default.is_empty() => ask(question, default),
        (Ok(_), "") => Ok(default.to_owned()),
        (Ok(_), answer) => Ok(answer.to_owned()),
    }
}

//! What `setup` asks on a terminal.

use std::io::{self, Write};
use std::net::IpAddr;

use crate::problem::Problem;

/// The words that a call with everything would have had.
pub(super) fn words(node: &str, addresses: &[IpAddr]) -> Result<Vec<String>, Problem> {
    println!("This writes the configuration of one mirrored device. Nothing is changed before the last answer.");
    let name = ask("Name of the resource", "r0")?;
    let third = ask("Hosts: 2, or 3 for one more copy", "2")?;
    let hosts = match third.as_str() {
        "2" => 2,
        "3" => 3,
        other => return Err(Problem::usage(format!("'{other}': two or three"))),
    };
    let mut words = vec![name];
    let own = addresses.iter().find(|address| !address.is_loopback() && address.is_ipv4());
    for n in 0..hosts {
        let (of, host, address) = match n {
            0 => ("this host".to_owned(), node.to_owned(), own.map(ToString::to_string).unwrap_or_default()),
            _ => (format!("host {}", n + 1), String::new(), String::new()),
        };
        let host = ask(&format!("Name of {of} (uname -n there)"), &host)?;
        let address = ask(&format!("Its address, over which data goes, [PORT may follow]: {host}"), &address)?;
        let disk = ask("Its disk, all of which is used", "")?;
        let address =
            if address.contains("::") && !address.starts_with('[') { format!("[{address}]") } else { address };
        words.push(format!("{host}={address}:{disk}"));
    }
    Ok(words)
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

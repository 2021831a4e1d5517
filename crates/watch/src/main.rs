//! `urbd-watch`: what `urbd top` and `urbd web` become. The process that holds the data has no terminal and no browser.
#![forbid(unsafe_code)]

use std::env;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use urbd::problem::{Problem, exit};
use urbd::watching::{self, Watching};
use urbd_watch::{Looker, top, web};

fn main() -> ExitCode {
    ExitCode::from(watching::run(env::args_os(), |call| match call.verb() {
        "web" => serve(call),
        _ => show(call),
    }))
}

/// `top`: in a terminal until a key ends it; without one, one plain picture.
fn show(call: &Watching) -> Result<u8, Problem> {
    let (looker, exit) = looker(call)?;
    let failed = |e: io::Error| Problem::new(exit::BROKEN, format!("the terminal: {e}"));
    if io::stdout().is_terminal() && io::stdin().is_terminal() && !call.flag("once") {
        top::run(looker, call.wants_color()?).map_err(failed)?;
    } else {
        match top::snapshot(looker, &mut io::stdout().lock()) {
            // Who reads has seen enough.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
            result => return silent(&result.map_err(failed)?).map_or(Ok(exit), Err),
        }
    }
    Ok(exit)
}

/// Of those whose process did not answer.
fn silent(which: &[(String, String)]) -> Option<Problem> {
    let (name, why) = which.first()?;
    let names = which.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    Some(match why.contains("permission denied") {
        true => Problem::denied(&names),
        false => Problem::new(exit::BROKEN, format!("{names}: {why}")).hint(format!("urbd status {name}")),
    })
}

/// `web`: serves the page until it is ended.
fn serve(call: &Watching) -> Result<u8, Problem> {
    let address = call.value("listen").map_or(Ok(web::DEFAULT), web::parse).map_err(|why| {
        Problem::usage(format!("--listen {why}"))
            .hint("to look from another machine: ssh -L 7780:127.0.0.1:7780 THIS_MACHINE, and urbd web here")
    })?;
    if call.is_dry_run() {
        print(&format!("http://{address}/\n"));
        return Ok(0);
    }
    let (looker, exit) = looker(call)?;
    let failed = |e: io::Error| {
        let hint = match e.kind() {
            io::ErrorKind::AddrInUse => "it runs already, or choose another port: urbd web --listen PORT",
            _ => "choose another loopback address: urbd web --listen 127.0.0.1:PORT",
        };
        Problem::new(exit::BROKEN, format!("cannot listen on {address}: {e}")).hint(hint)
    };
    let server = web::Server::new(address, call.node(), looker).map_err(failed)?;
    print(&format!("http://{}/\n", server.address()));
    server.run().map_err(failed)?;
    Ok(exit)
}

/// Sees also what is configured and does not run.
fn looker(call: &Watching) -> Result<(Looker, u8), Problem> {
    let (names, exit) = call.resources()?;
    Ok((Looker::new(call.run_dir(), names).with_absent(call.absent()), exit))
}

/// A reader that went away (`| head`) is no error.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

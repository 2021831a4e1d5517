//! `top` and `web`: to look at.

use std::io::{self, IsTerminal};

use watch::{Looker, top, web};

use super::{absent, status};
use crate::cli::Call;
use crate::context::Context;
use crate::problem::{Problem, exit};

/// `top`: in a terminal until a key ends it; without one, one plain picture.
pub(crate) fn top(call: &Call) -> Result<u8, Problem> {
    let (looker, exit) = looker(call)?;
    let failed = |e: io::Error| Problem::new(exit::BROKEN, format!("the terminal: {e}"));
    if io::stdout().is_terminal() && io::stdin().is_terminal() && !call.flag("once") {
        top::run(looker, status::wants_color(call)?).map_err(failed)?;
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
pub(crate) fn web(call: &Call) -> Result<u8, Problem> {
    let address = call.value("listen").map_or(Ok(web::DEFAULT), web::parse).map_err(|why| {
        Problem::usage(format!("--listen {why}"))
            .hint("to look from another machine: ssh -L 7780:127.0.0.1:7780 THIS_MACHINE, and urbd web here")
    })?;
    if call.context.dry_run {
        status::print(&format!("http://{address}/\n"));
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
    let server = web::Server::new(address, &call.context.node, looker).map_err(failed)?;
    status::print(&format!("http://{}/\n", server.address()));
    server.run().map_err(failed)?;
    Ok(exit)
}

fn looker(call: &Call) -> Result<(Looker, u8), Problem> {
    call.context.may_look()?;
    let objects = call.objects();
    if objects.is_empty() || objects.iter().any(|name| name == "all") {
        return Ok((of(call.context, Vec::new()), 0));
    }
    let (names, worst) = status::named(call.context, &objects);
    match names.is_empty() {
        true => Err(Problem::new(worst, "none of these resources is known")),
        false => Ok((of(call.context, names), worst)),
    }
}

/// Sees also what is configured and does not run. The configuration is read anew each time: it may have changed.
fn of(context: &Context, names: Vec<String>) -> Looker {
    let asked = context.unread();
    Looker::new(&context.run_dir, names).with_absent(move |running| {
        let found = absent::absent(&asked.unread(), running);
        found.into_iter().map(|one| (one.name.clone(), one.reason())).collect()
    })
}

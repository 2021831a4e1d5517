//! `dump` and `dump-xml`: the configuration as it was understood (`docs/spec/config-and-cli.md` 1.10).

use crate::cli::Call;
use crate::objects::{Takes, targets};
use crate::problem::Problem;
use crate::verbs::status;
use config::Config;

/// With `-v` everything is expanded: inherited options, generated connections.
pub(crate) fn dump(call: &Call) -> Result<u8, Problem> {
    let (host, verbose) = (call.context.this_host(), call.context.verbose > 0);
    print(call, |config, only| config.dump(&host, verbose, only))
}

/// `dump-xml`: the same for programs.
pub(crate) fn dump_xml(call: &Call) -> Result<u8, Problem> {
    print(call, Config::dump_xml)
}

/// Prints the named resources, or all.
fn print(call: &Call, text: impl Fn(&Config, &[&str]) -> String) -> Result<u8, Problem> {
    let config = call.context.config()?;
    let names = call.objects();
    if names.is_empty() || names.iter().any(|n| n == "all") {
        status::print(&text(config, &[]));
        return Ok(0);
    }
    let (found, worst) = targets(call.context, &names, Takes::Resource)?;
    let only: Vec<&str> = found.iter().map(|t| t.name.resource.as_str()).collect();
    if !only.is_empty() {
        status::print(&text(config, &only));
    }
    Ok(worst)
}

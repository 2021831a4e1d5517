//! `dump` and `dump-xml`: the configuration as it was understood (`docs/spec/config-and-cli.md` 1.10).

use crate::cli::Call;
use crate::objects::{Takes, targets};
use crate::problem::Problem;
use crate::verbs::status;
use config::Config;

/// All of it, or only the named resources. With `-v` everything is expanded: inherited options, generated connections.
pub(crate) fn dump(call: &Call) -> Result<u8, Problem> {
    let (host, verbose) = (call.context.this_host(), call.context.verbose > 0);
    print(call, |config| config.dump(&host, verbose, &[]), |config, name| config.dump_resource(&host, verbose, name))
}

/// `dump-xml`: the same for programs.
pub(crate) fn dump_xml(call: &Call) -> Result<u8, Problem> {
    print(call, Config::dump_xml, Config::dump_resource_xml)
}

/// Prints the named resources, or all.
fn print(
    call: &Call,
    all: impl Fn(&Config) -> String,
    one: impl Fn(&Config, &str) -> Option<String>,
) -> Result<u8, Problem> {
    let config = call.context.config()?;
    let names = call.objects();
    if names.is_empty() || names.iter().any(|n| n == "all") {
        status::print(&all(config));
        return Ok(0);
    }
    let (found, worst) = targets(call.context, &names, Takes::Resource)?;
    let texts: Vec<String> = found.iter().filter_map(|t| one(config, &t.name.resource)).collect();
    status::print(&texts.concat());
    Ok(worst)
}

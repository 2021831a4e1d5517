//! `urbd-sim`: the simulator without the product around it; `urbd sim` is the same for people who have only that.

use std::collections::BTreeMap;
use std::process::ExitCode;
use urbd_sim::{BAD_CALL, BROKEN, Campaign, FAILED, OPTIONS};

fn main() -> ExitCode {
    let campaign = options().and_then(|options| {
        let given = |name: &str| options.get(name).map(String::as_str);
        Campaign::from_options(&given)
    });
    let campaign = match campaign {
        Ok(campaign) => campaign,
        Err(text) => {
            eprintln!("{text}\n{}", usage());
            return ExitCode::from(BAD_CALL);
        }
    };
    match campaign.run() {
        Ok(failed) => ExitCode::from(if failed { FAILED } else { 0 }),
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(BROKEN)
        }
    }
}

/// The command line: `--name value` or `--name=value`.
fn options() -> Result<BTreeMap<&'static str, String>, String> {
    let mut args = std::env::args().skip(1);
    let mut options = BTreeMap::new();
    while let Some(arg) = args.next() {
        let (name, text) = arg.split_once('=').map_or((&*arg, None), |(name, text)| (name, Some(text.to_owned())));
        let option = name.strip_prefix("--").and_then(|name| OPTIONS.iter().find(|o| o.name == name));
        let option = option.ok_or_else(|| format!("{name}: there is no such option"))?;
        let value = match (option.value, text) {
            (None, None) => String::new(),
            (None, Some(_)) => return Err(format!("{name} takes no value")),
            (Some(_), Some(text)) => text,
            (Some(what), None) => args.next().ok_or_else(|| format!("{name} needs a value: {what}"))?,
        };
        options.insert(option.name, value);
    }
    Ok(options)
}

fn usage() -> String {
    let lines = OPTIONS.iter().map(|o| {
        let option = format!("--{} {}", o.name, o.value.unwrap_or_default());
        format!("\n  {option:<30} {}", o.help)
    });
    format!("usage: urbd-sim [OPTION…]{}", lines.collect::<String>())
}

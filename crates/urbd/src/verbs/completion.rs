//! `completion` and `version`.

use clap_complete::{Shell, generate};

use crate::cli::{self, Call};
use crate::problem::Problem;
use crate::verbs::status;

/// `completion SHELL`: a script made from the table of verbs.
pub(crate) fn print(call: &Call) -> Result<u8, Problem> {
    let shell = call.value("shell").unwrap_or_default();
    let shell: Shell = shell.parse().map_err(|_| {
        Problem::usage(format!("no completion for '{shell}'")).hint("one of: bash zsh fish elvish powershell")
    })?;
    let mut script = Vec::new();
    generate(shell, &mut cli::parser(), "urbd", &mut script);
    status::print(&String::from_utf8_lossy(&script));
    Ok(0)
}

/// The kernel's version that we stand for in front of programs that ask (`docs/spec/config-and-cli.md` 3.6).
const KERNEL_VERSION: (u32, u32, u32) = (9, 2, 14);
/// The version of the tools whose outputs ours follow.
const TOOLS_VERSION: (u32, u32, u32) = (9, 34, 0);

/// `version`, `--version`: assignments that scripts evaluate.
pub(crate) fn version(_: &Call) -> Result<u8, Problem> {
    status::print(&version_words());
    Ok(0)
}

/// The text of `--version`.
pub(crate) fn version_words() -> String {
    let code = |(major, minor, patch): (u32, u32, u32)| format!("0x{:06x}", (major << 16) + (minor << 8) + patch);
    let dotted = |(major, minor, patch): (u32, u32, u32)| format!("{major}.{minor}.{patch}");
    let urbd = env!("CARGO_PKG_VERSION");
    format!(
        "DRBDADM_BUILDTAG=urbd-{urbd}\nDRBDADM_API_VERSION=2\nDRBD_KERNEL_VERSION_CODE={}\nDRBD_KERNEL_VERSION={}\n\
         DRBDADM_VERSION_CODE={}\nDRBDADM_VERSION={}\nURBD_VERSION={urbd}\n",
        code(KERNEL_VERSION),
        dotted(KERNEL_VERSION),
        code(TOOLS_VERSION),
        dotted(TOOLS_VERSION),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_codes_are_hexadecimal_pairs() {
        let words = version_words();
        assert!(words.contains("DRBD_KERNEL_VERSION_CODE=0x09020e\n"), "{words}");
        assert!(words.contains("DRBDADM_VERSION_CODE=0x092200\n"), "{words}");
    }

    #[test]
    fn every_verb_is_completed_in_every_shell() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            generate(shell, &mut cli::parser(), "urbd", &mut script);
            let script = String::from_utf8(script).unwrap();
            for verb in crate::verbs::VERBS.iter().filter(|v| !v.hidden) {
                assert!(script.contains(verb.name), "{shell}: {}", verb.name);
            }
        }
    }
}

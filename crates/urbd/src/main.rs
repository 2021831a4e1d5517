//! The program urbd; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(urbd::run(std::env::args_os()))
}

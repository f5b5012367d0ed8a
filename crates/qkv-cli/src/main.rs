//! The command `qkv`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(qkv_cli::run(std::env::args_os()))
}

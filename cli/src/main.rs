//! The berth command.

fn main() -> std::process::ExitCode {
    berth_cli::main()
}

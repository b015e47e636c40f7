//! The program `berth-sidecar`.

fn main() -> std::process::ExitCode {
    berth_sidecar::main()
}

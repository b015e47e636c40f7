//! The program `berth-controller`.

fn main() -> std::process::ExitCode {
    berth_controller::main()
}

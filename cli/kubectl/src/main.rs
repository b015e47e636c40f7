//! The program `kubectl-berth`, which kubectl runs as `kubectl berth`.

fn main() -> std::process::ExitCode {
    berth_kubectl::main()
}

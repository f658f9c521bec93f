//! The binary `bpvs`; everything is in the library.

fn main() -> std::process::ExitCode {
    lb_userspace::cli::main()
}

//! `bpvs-oracle`: do bpvs and IPVS choose the same server? `cargo xtask oracle` runs it in virtual machines whose kernels
//! have IPVS; against the model it runs anywhere (as root), in namespaces that it removes.
//!
//! It says `at <scheduler> <scripts done>` now and then, `row <scheduler> <scripts> <decisions> <differences>` for each
//! scheduler, each difference's history in lines that begin with `| `, and with `--record` the scripts with the
//! reference's answers, as `fixed <text>` and `record <text>`.

mod options;
mod run;
mod subjects;
mod twos;

use std::process::ExitCode;

use bpvs_tests::{arguments, cleanup};

use options::{Options, USAGE};

fn main() -> ExitCode {
    let options = match arguments::parse(Options::read, USAGE) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let done = cleanup::on_signals().and_then(|()| run::run(&options));
    cleanup::wait_if_closing();
    match done {
        Ok(0) => ExitCode::SUCCESS,
        Ok(differences) => {
            println!("{differences} differences");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("| {}", format!("{error:#}").replace('\n', "\n| "));
            ExitCode::FAILURE
        }
    }
}

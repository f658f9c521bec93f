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

use bpvs_tests::cleanup;

use options::{Options, USAGE};

fn main() -> ExitCode {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprint!("{error:#}\n\n{USAGE}");
            return ExitCode::from(2);
        }
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
